//! The audit log: entry types, the chain over them, signed heads, verification.
//!
//! Pure: no clock, no I/O, no randomness. The store appends what this crate encodes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod canonical;
mod chain;
pub mod entry;
mod export;
mod signed;
mod verify;

pub use chain::{Chain, ChainState, EpochKeys, Sealed};
pub use entry::{Draft, Kind, Stamp};
pub use export::{Line, entry_line, epoch_line, head_line};
pub use signed::{Certificate, Head, short_code};
pub use verify::{Finding, Remembered, Report, Verifier};

/// A SHA-256 value.
pub type Hash = [u8; 32];

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of `N * 2` lower-case hexadecimal digits.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return None;
    }
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(out)
}
