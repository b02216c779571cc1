//! Signed statements: which key speaks for an epoch, and how far the log goes.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use crate::{Hash, hex};

/// Says which public key signs the heads of an epoch, and where the epoch
/// begins. Signed by the key of the epoch before; the first signs itself, and
/// its key is the identity of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Store that the log belongs to.
    pub store: [u8; 16],
    /// Number of the epoch, from 0.
    pub epoch: u32,
    /// Sequence number of its first entry.
    pub first_seq: u64,
    /// Hash of the entry before that; zeros for the first.
    pub prev: Hash,
    /// Key of the epoch.
    pub public_key: [u8; 32],
    /// Signature over [`Certificate::text`].
    pub signature: [u8; 64],
}

impl Certificate {
    /// The signed text.
    pub fn text(&self) -> String {
        format!(
            "hearth-audit-epoch/1\n{}\n{}\n{}\n{}\n{}\n",
            hex(&self.store),
            self.epoch,
            self.first_seq,
            hex(&self.prev),
            hex(&self.public_key)
        )
    }

    pub(crate) fn sign(mut self, key: &SigningKey) -> Self {
        self.signature = key.sign(self.text().as_bytes()).to_bytes();
        self
    }

    /// True when `by` signed it.
    pub fn verify(&self, by: &[u8; 32]) -> bool {
        verify(&self.text(), by, &self.signature)
    }
}

/// Says how many entries the log has and the hash of the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Store that the log belongs to.
    pub store: [u8; 16],
    /// Epoch whose key signed it.
    pub epoch: u32,
    /// Entries so far.
    pub size: u64,
    /// Hash of the last of them; zeros when there is none.
    pub hash: Hash,
    /// True for the last line of an export.
    pub closing: bool,
    /// Signature over [`Head::text`].
    pub signature: [u8; 64],
}

impl Head {
    /// The signed text.
    pub fn text(&self) -> String {
        let what = if self.closing { "close" } else { "head" };
        format!(
            "hearth-audit-{what}/1\n{}\n{}\n{}\n{}\n",
            hex(&self.store),
            self.epoch,
            self.size,
            hex(&self.hash)
        )
    }

    pub(crate) fn sign(mut self, key: &SigningKey) -> Self {
        self.signature = key.sign(self.text().as_bytes()).to_bytes();
        self
    }

    /// True when `by` signed it.
    pub fn verify(&self, by: &[u8; 32]) -> bool {
        verify(&self.text(), by, &self.signature)
    }
}

fn verify(text: &str, by: &[u8; 32], signature: &[u8; 64]) -> bool {
    let Ok(key) = VerifyingKey::from_bytes(by) else { return false };
    key.verify_strict(text.as_bytes(), &Signature::from_bytes(signature)).is_ok()
}

/// A short code of a hash for people to compare: four groups of four
/// characters (80 bits).
pub fn short_code(hash: &Hash) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let bits = hash[..10].iter().fold(0_u128, |v, b| (v << 8) | u128::from(*b));
    let digits: Vec<char> =
        (0..16).rev().map(|i| char::from(ALPHABET[((bits >> (5 * i)) & 31) as usize])).collect();
    digits.chunks(4).map(String::from_iter).collect::<Vec<_>>().join("-")
}
