//! The writing side: numbers, links and authenticates entries.

use ed25519_dalek::SigningKey;
use hkdf::Hkdf;
use hkdf::hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::canonical::to_canonical;
use crate::signed::{Certificate, Head};
use crate::{Draft, Hash, Stamp, hex};

/// The secret keys of an epoch. Destroyed when the epoch ends.
#[derive(Clone)]
pub struct EpochKeys {
    mac: Zeroizing<[u8; 32]>,
    signing: SigningKey,
}

impl std::fmt::Debug for EpochKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EpochKeys(..)")
    }
}

impl EpochKeys {
    /// The keys of the first epoch from random bytes.
    pub fn first(mac: [u8; 32], seed: [u8; 32]) -> Self {
        Self { mac: Zeroizing::new(mac), signing: SigningKey::from_bytes(&seed) }
    }

    /// The keys of the next epoch: the MAC key moves forward one way, the
    /// signing key is new.
    pub fn next(&self, seed: [u8; 32]) -> Self {
        let mut mac = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(Some(b"hearth-audit-epoch"), &*self.mac)
            .expand(b"next", &mut *mac)
            .expect("32 bytes are less than 255 hashes");
        Self { mac, signing: SigningKey::from_bytes(&seed) }
    }

    /// Both keys, to be sealed.
    pub fn to_bytes(&self) -> Zeroizing<[u8; 64]> {
        let mut out = Zeroizing::new([0; 64]);
        out[..32].copy_from_slice(&*self.mac);
        out[32..].copy_from_slice(&self.signing.to_bytes());
        out
    }

    /// What [`EpochKeys::to_bytes`] gave.
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let (mut mac, mut seed) = (Zeroizing::new([0; 32]), Zeroizing::new([0; 32]));
        mac.copy_from_slice(&bytes[..32]);
        seed.copy_from_slice(&bytes[32..]);
        Self { mac, signing: SigningKey::from_bytes(&seed) }
    }

    /// The public key of the epoch.
    pub fn public_key(&self) -> [u8; 32] {
        self.signing.verifying_key().to_bytes()
    }

    /// MAC of an entry's line.
    pub fn mac(&self, line: &[u8]) -> Hash {
        mac(&*self.mac, line)
    }
}

fn mac(key: &[u8], bytes: &[u8]) -> Hash {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes any key length");
    mac.update(bytes);
    mac.finalize().into_bytes().into()
}

/// The hash that links an entry to the next: over its line and its MAC.
pub(crate) fn link(line: &[u8], mac: &Hash) -> Hash {
    Sha256::new_with_prefix(line).chain_update(mac).finalize().into()
}

/// How far a chain has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChainState {
    /// Number of the next entry, which is also how many there are.
    pub next_seq: u64,
    /// Hash of the last entry; zeros when there is none.
    pub last_hash: Hash,
}

/// An entry that is ready to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Its number.
    pub seq: u64,
    /// Canonical JSON.
    pub line: Vec<u8>,
    /// MAC of the line under the epoch's key.
    pub mac: Hash,
}

impl Sealed {
    /// The hash that the next entry names.
    pub fn hash(&self) -> Hash {
        link(&self.line, &self.mac)
    }
}

/// The writing side of a log.
#[derive(Debug)]
pub struct Chain {
    store: [u8; 16],
    epoch: u32,
    keys: EpochKeys,
    arguments_key: Zeroizing<[u8; 32]>,
    state: ChainState,
}

impl Chain {
    /// A new log and the certificate of its first epoch.
    pub fn create(
        store: [u8; 16],
        keys: EpochKeys,
        arguments_key: Zeroizing<[u8; 32]>,
    ) -> (Self, Certificate) {
        let state = ChainState { next_seq: 0, last_hash: [0; 32] };
        let chain = Self { store, epoch: 0, keys, arguments_key, state };
        let certificate = chain.certificate(0, &chain.keys).sign(&chain.keys.signing);
        (chain, certificate)
    }

    /// A log that goes on.
    pub fn resume(
        store: [u8; 16],
        epoch: u32,
        keys: EpochKeys,
        arguments_key: Zeroizing<[u8; 32]>,
        state: ChainState,
    ) -> Self {
        Self { store, epoch, keys, arguments_key, state }
    }

    fn certificate(&self, epoch: u32, keys: &EpochKeys) -> Certificate {
        Certificate {
            store: self.store,
            epoch,
            first_seq: self.state.next_seq,
            prev: self.state.last_hash,
            public_key: keys.public_key(),
            signature: [0; 64],
        }
    }

    /// How far it has come.
    pub fn state(&self) -> ChainState {
        self.state
    }

    /// The current epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The keys of the current epoch.
    pub fn keys(&self) -> &EpochKeys {
        &self.keys
    }

    /// Numbers, links and authenticates an entry.
    pub fn append(&mut self, draft: &Draft, stamp: Stamp) -> Sealed {
        let mut entry = match serde_json::to_value(&draft.kind) {
            Ok(Value::Object(map)) => map,
            _ => unreachable!("every kind of entry is an object with string keys"),
        };
        let seq = self.state.next_seq;
        entry.insert("seq".into(), seq.into());
        entry.insert("boot".into(), stamp.boot.to_string().into());
        entry.insert("mono_ns".into(), stamp.mono_ns.into());
        entry.insert("wall_ms".into(), stamp.wall_ms.into());
        entry.insert("prev".into(), hex(&self.state.last_hash).into());
        if let Some(arguments) = &draft.arguments {
            entry.insert("args".into(), hex(&mac(&*self.arguments_key, arguments)).into());
        }
        let line = to_canonical(&Value::Object(entry)).expect("entries hold integers only");
        let mac = self.keys.mac(&line);
        let sealed = Sealed { seq, line, mac };
        self.state = ChainState { next_seq: seq + 1, last_hash: sealed.hash() };
        sealed
    }

    /// A signed statement of how far the log goes.
    pub fn head(&self, closing: bool) -> Head {
        let ChainState { next_seq, last_hash } = self.state;
        let head = Head {
            store: self.store,
            epoch: self.epoch,
            size: next_seq,
            hash: last_hash,
            closing,
            signature: [0; 64],
        };
        head.sign(&self.keys.signing)
    }

    /// Goes back, or on, to another place: for what was numbered and then not
    /// written, and for entries that are read again at start-up.
    pub fn rewind(&mut self, state: ChainState) {
        self.state = state;
    }

    /// The certificate and keys of the next epoch; [`Chain::enter`] switches to it.
    pub fn prepare_next(&self, seed: [u8; 32]) -> (Certificate, EpochKeys) {
        let keys = self.keys.next(seed);
        (self.certificate(self.epoch + 1, &keys).sign(&self.keys.signing), keys)
    }

    /// Goes on in the next epoch; the old keys are wiped from memory.
    pub fn enter(&mut self, keys: EpochKeys) {
        self.epoch += 1;
        self.keys = keys;
    }
}
