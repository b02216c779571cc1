//! Keys and sealing: the key schedule, unlock slots, authenticated records.
//!
//! Pure: randomness (nonces, salts, new keys) is passed in by the caller.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod header;
mod key;
mod recovery;
mod slot;

pub use header::{FORMAT, HEADER_MAX, Header};
pub use key::{Aad, DataKey, Domain, DomainKeys, NONCE, OVERHEAD};
pub use recovery::{RecoveryError, parse_recovery_code, recovery_code};
pub use slot::{Argon2Params, Secret, Slot, SlotKind, SlotRandom};

/// Why a vault operation failed. Never holds key material.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// The secret does not open any slot of its kind.
    #[error("the secret does not open this store")]
    WrongSecret,
    /// The header has no slot of this kind.
    #[error("this store has no slot for a {0}")]
    NoSuchSlot(SlotKind),
    /// The header or a record is not what was written.
    #[error("damaged: {0}")]
    Damaged(&'static str),
    /// Written by a newer version.
    #[error("written in format {0}; this version reads up to {FORMAT}")]
    NewerFormat(u16),
    /// The last slot cannot be removed.
    #[error("the last way to unlock the store cannot be removed")]
    LastSlot,
    /// A key-derivation parameter is out of its range.
    #[error("key derivation parameters are out of range")]
    BadParameters,
    /// A secret is too short.
    #[error("a key file or credential needs at least 32 bytes")]
    ShortSecret,
    /// There are too many slots.
    #[error("a store has at most {0} slots")]
    TooManySlots(usize),
    /// The recovery code was mistyped.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
}
