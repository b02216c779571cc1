//! Unlock slots: the data key, wrapped once for each way to unlock.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::key::{Aad, DataKey, Domain, DomainKeys, expand};
use crate::recovery::parse_recovery_code;
use crate::{FORMAT, VaultError};

/// Least bytes of a key file or credential.
const SECRET_MIN: usize = 32;

/// A way to unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotKind {
    /// A file of random bytes.
    KeyFile,
    /// A systemd credential of random bytes.
    Credential,
    /// A passphrase, through Argon2id.
    Passphrase,
    /// The recovery code.
    Recovery,
}

impl fmt::Display for SlotKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyFile => "key file",
            Self::Credential => "credential",
            Self::Passphrase => "passphrase",
            Self::Recovery => "recovery code",
        })
    }
}

/// What a person or the system hands in to unlock.
pub enum Secret<'a> {
    /// Content of a key file, at least 32 bytes.
    KeyFile(&'a [u8]),
    /// Content of a credential, at least 32 bytes.
    Credential(&'a [u8]),
    /// A passphrase.
    Passphrase(&'a str),
    /// A recovery code as it was typed.
    Recovery(&'a str),
}

impl Secret<'_> {
    /// The kind of slot that it opens.
    pub fn kind(&self) -> SlotKind {
        match self {
            Self::KeyFile(_) => SlotKind::KeyFile,
            Self::Credential(_) => SlotKind::Credential,
            Self::Passphrase(_) => SlotKind::Passphrase,
            Self::Recovery(_) => SlotKind::Recovery,
        }
    }
}

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, ..)", self.kind())
    }
}

/// Cost of a passphrase guess. The defaults are RFC 9106's second choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argon2Params {
    /// Memory, in KiB: 8 per lane to 1 GiB.
    pub memory_kib: u32,
    /// Passes: 1 to 64.
    pub passes: u32,
    /// Lanes: 1 to 16.
    pub lanes: u32,
}

impl Default for Argon2Params {
    fn default() -> Self {
        Self { memory_kib: 64 * 1024, passes: 3, lanes: 4 }
    }
}

impl Argon2Params {
    /// Caps what a hostile header can make the daemon do.
    pub(crate) fn checked(self) -> Result<Self, VaultError> {
        let fits = (1..=16).contains(&self.lanes)
            && (1..=64).contains(&self.passes)
            && (8 * self.lanes..=1024 * 1024).contains(&self.memory_kib);
        if fits { Ok(self) } else { Err(VaultError::BadParameters) }
    }
}

/// Random bytes for a new slot.
pub struct SlotRandom {
    /// Salt of the derivation.
    pub salt: [u8; 16],
    /// Nonce of the wrapped key.
    pub nonce: [u8; 24],
}

/// One way to unlock. The wrapped key opens only in this slot of this store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Number, never used again.
    pub id: u32,
    /// Kind.
    pub kind: SlotKind,
    /// A word for people.
    pub label: String,
    /// Cost, for passphrases.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argon2: Option<Argon2Params>,
    pub(crate) salt: [u8; 16],
    pub(crate) wrapped: Vec<u8>,
}

impl Slot {
    pub(crate) fn wrap(
        id: u32,
        store: &[u8; 16],
        key: &DataKey,
        secret: &Secret<'_>,
        label: &str,
        params: Argon2Params,
        random: &SlotRandom,
    ) -> Result<Self, VaultError> {
        let kind = secret.kind();
        let argon2 = (kind == SlotKind::Passphrase).then_some(params);
        let mut slot = Self {
            id,
            kind,
            label: label.chars().take(64).collect(),
            argon2,
            salt: random.salt,
            wrapped: Vec::new(),
        };
        let wrapping = slot.wrapping_key(secret)?;
        slot.wrapped = wrapping.seal(random.nonce, &slot.place(&slot.place_key(store)), key.bytes());
        Ok(slot)
    }

    pub(crate) fn unwrap(&self, store: &[u8; 16], secret: &Secret<'_>) -> Result<DataKey, VaultError> {
        let wrapping = self.wrapping_key(secret)?;
        let plain = wrapping
            .open(&self.place(&self.place_key(store)), &self.wrapped)
            .map_err(|_| VaultError::WrongSecret)?;
        let bytes = <[u8; 32]>::try_from(plain.as_slice())
            .map_err(|_| VaultError::Damaged("a wrapped key has a wrong length"))?;
        Ok(DataKey::from_bytes(bytes))
    }

    fn place_key(&self, store: &[u8; 16]) -> Vec<u8> {
        let kind = self.kind as u8;
        [&store[..], &self.id.to_be_bytes(), &[kind]].concat()
    }

    fn place<'a>(&self, key: &'a [u8]) -> Aad<'a> {
        Aad { table: "slot", key, format: FORMAT }
    }

    fn wrapping_key(&self, secret: &Secret<'_>) -> Result<DomainKeys, VaultError> {
        let key = match secret {
            Secret::KeyFile(bytes) | Secret::Credential(bytes) => {
                if bytes.len() < SECRET_MIN {
                    return Err(VaultError::ShortSecret);
                }
                salted(bytes, &self.salt)
            }
            Secret::Recovery(code) => salted(&*parse_recovery_code(code)?, &self.salt),
            Secret::Passphrase(text) => {
                let p = self
                    .argon2
                    .ok_or(VaultError::Damaged("a passphrase slot without parameters"))?
                    .checked()?;
                let params = argon2::Params::new(p.memory_kib, p.passes, p.lanes, Some(32))
                    .map_err(|_| VaultError::BadParameters)?;
                let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
                let mut out = Zeroizing::new([0; 32]);
                argon
                    .hash_password_into(text.as_bytes(), &self.salt, &mut *out)
                    .map_err(|_| VaultError::BadParameters)?;
                out
            }
        };
        Ok(DomainKeys::from_key(Domain::Secrets, &expand(&*key, "slot")))
    }
}

fn salted(secret: &[u8], salt: &[u8; 16]) -> Zeroizing<[u8; 32]> {
    let joined = Zeroizing::new([&salt[..], secret].concat());
    expand(&joined, "slot-secret")
}
