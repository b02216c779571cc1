//! The unlock header: which store this is, and the slots that open it.
//!
//! Bytes: magic, format (u16), length of the body (u32), body (JSON), SHA-256 of
//! all that. Numbers are big-endian.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::slot::{Argon2Params, Secret, Slot, SlotRandom};
use crate::{DataKey, VaultError};

/// Format that this version writes, and the newest that it reads.
pub const FORMAT: u16 = 1;
/// Largest encoded header, in bytes.
pub const HEADER_MAX: usize = 8192;
/// Most slots.
const SLOTS_MAX: usize = 8;
const MAGIC: &[u8; 8] = b"HEARTHK\0";
const PREFIX: usize = MAGIC.len() + 2 + 4;
const SUM: usize = 32;

/// The unlock header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Random identity of the store.
    pub store_id: [u8; 16],
    /// Goes up with every change; the newer of two valid copies counts.
    pub generation: u64,
    next_slot: u32,
    /// The ways to unlock; never empty.
    pub slots: Vec<Slot>,
}

impl Header {
    /// A header without any slot yet; add one before it is written.
    pub fn new(store_id: [u8; 16]) -> Self {
        Self { store_id, generation: 0, next_slot: 1, slots: Vec::new() }
    }

    /// Adds a way to unlock. Existing data is not touched.
    pub fn add_slot(
        &mut self,
        key: &DataKey,
        secret: &Secret<'_>,
        label: &str,
        params: Argon2Params,
        random: &SlotRandom,
    ) -> Result<u32, VaultError> {
        if self.slots.len() == SLOTS_MAX {
            return Err(VaultError::TooManySlots(SLOTS_MAX));
        }
        let id = self.next_slot;
        let slot = Slot::wrap(id, &self.store_id, key, secret, label, params.checked()?, random)?;
        self.slots.push(slot);
        self.next_slot += 1;
        self.generation += 1;
        Ok(id)
    }

    /// Removes a way to unlock; never the last.
    pub fn remove_slot(&mut self, id: u32) -> Result<(), VaultError> {
        if self.slots.len() == 1 {
            return Err(VaultError::LastSlot);
        }
        self.slots.retain(|s| s.id != id);
        self.generation += 1;
        Ok(())
    }

    /// The data key, if the secret opens a slot of its kind.
    pub fn unlock(&self, secret: &Secret<'_>) -> Result<DataKey, VaultError> {
        let kind = secret.kind();
        let mut result = Err(VaultError::NoSuchSlot(kind));
        for slot in self.slots.iter().filter(|s| s.kind == kind) {
            match slot.unwrap(&self.store_id, secret) {
                Ok(key) => return Ok(key),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// The bytes to write; at most [`HEADER_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec(self).expect("a header has string keys only");
        let mut out = Vec::with_capacity(PREFIX + body.len() + SUM);
        out.extend(MAGIC);
        out.extend(FORMAT.to_be_bytes());
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        let sum = Sha256::digest(&out);
        out.extend(sum);
        out
    }

    /// Reads a header from the beginning of `bytes`; what follows is ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, VaultError> {
        let damaged = VaultError::Damaged;
        if bytes.len() < PREFIX || !bytes.starts_with(MAGIC) {
            return Err(damaged("this is no unlock header"));
        }
        let format = u16::from_be_bytes([bytes[8], bytes[9]]);
        let length = u32::from_be_bytes([bytes[10], bytes[11], bytes[12], bytes[13]]) as usize;
        if length > HEADER_MAX - PREFIX - SUM || bytes.len() < PREFIX + length + SUM {
            return Err(damaged("the unlock header is cut off"));
        }
        let (signed, rest) = bytes.split_at(PREFIX + length);
        if Sha256::digest(signed).as_slice() != &rest[..SUM] {
            return Err(damaged("the checksum of the unlock header is wrong"));
        }
        if format != FORMAT {
            return Err(VaultError::NewerFormat(format));
        }
        let header: Self = serde_json::from_slice(&signed[PREFIX..])
            .map_err(|_| damaged("the unlock header is malformed"))?;
        if header.slots.is_empty() || header.slots.len() > SLOTS_MAX {
            return Err(damaged("the unlock header has no slots, or too many"));
        }
        for slot in &header.slots {
            slot.argon2.map_or(Ok(()), |p| p.checked().map(drop))?;
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery_code;

    const CHEAP: Argon2Params = Argon2Params { memory_kib: 32, passes: 1, lanes: 1 };

    fn random(n: u8) -> SlotRandom {
        SlotRandom { salt: [n; 16], nonce: [n; 24] }
    }

    fn full() -> (Header, DataKey) {
        let key = DataKey::from_bytes([9; 32]);
        let mut header = Header::new([1; 16]);
        let code = recovery_code([3; 16]);
        let secrets = [
            Secret::KeyFile(&[5; 32]),
            Secret::Credential(&[6; 40]),
            Secret::Passphrase("horse"),
            Secret::Recovery(&code),
        ];
        for (n, secret) in secrets.iter().enumerate() {
            header.add_slot(&key, secret, "label", CHEAP, &random(n as u8)).unwrap();
        }
        (header, key)
    }

    #[test]
    fn every_slot_opens_the_same_key_and_nothing_else_does() {
        let (header, key) = full();
        let header = Header::decode(&header.encode()).unwrap();
        let code = recovery_code([3; 16]);
        for secret in [
            Secret::KeyFile(&[5; 32]),
            Secret::Credential(&[6; 40]),
            Secret::Passphrase("horse"),
            Secret::Recovery(&code),
        ] {
            assert_eq!(header.unlock(&secret).unwrap().bytes(), key.bytes());
        }
        let other = recovery_code([4; 16]);
        let table = [
            (Secret::KeyFile(&[4; 32]), VaultError::WrongSecret),
            (Secret::Credential(&[5; 32]), VaultError::WrongSecret),
            (Secret::Passphrase("Horse"), VaultError::WrongSecret),
            (Secret::Recovery(&other), VaultError::WrongSecret),
            (Secret::KeyFile(&[5; 31]), VaultError::ShortSecret),
        ];
        for (secret, error) in table {
            assert_eq!(header.unlock(&secret).unwrap_err(), error, "{secret:?}");
        }
        let mut only = Header::new([1; 16]);
        only.add_slot(&key, &Secret::KeyFile(&[5; 32]), "", CHEAP, &random(1)).unwrap();
        assert_eq!(
            only.unlock(&Secret::Passphrase("x")).unwrap_err(),
            VaultError::NoSuchSlot(crate::SlotKind::Passphrase)
        );
    }

    #[test]
    fn slots_come_and_go_but_the_last() {
        let (mut header, key) = full();
        for id in [1, 2, 3] {
            header.remove_slot(id).unwrap();
        }
        assert_eq!(header.remove_slot(4), Err(VaultError::LastSlot));
        let id = header.add_slot(&key, &Secret::Passphrase("new"), "", CHEAP, &random(9)).unwrap();
        assert_eq!((id, header.generation), (5, 8));
        assert!(header.unlock(&Secret::Passphrase("new")).is_ok());
        // A slot of another store does not open here.
        let mut foreign = header.clone();
        foreign.store_id = [2; 16];
        assert_eq!(foreign.unlock(&Secret::Passphrase("new")).unwrap_err(), VaultError::WrongSecret);
    }

    #[test]
    fn every_damage_is_a_typed_error() {
        let (header, _) = full();
        let bytes = header.encode();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert!(Header::decode(&other).is_err(), "byte {at}");
            assert!(Header::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn hostile_parameters_and_newer_formats_are_refused() {
        let mut header = full().0;
        header.slots[2].argon2 = Some(Argon2Params { memory_kib: 1 << 30, passes: 3, lanes: 4 });
        assert_eq!(Header::decode(&header.encode()), Err(VaultError::BadParameters));
        let mut bytes = full().0.encode();
        bytes[9] = 2;
        let at = bytes.len() - SUM;
        let sum = Sha256::digest(&bytes[..at]);
        bytes[at..].copy_from_slice(&sum);
        assert_eq!(Header::decode(&bytes), Err(VaultError::NewerFormat(2)));
    }
}
