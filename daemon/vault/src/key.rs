//! The data key, the subkeys of each domain, and sealing under them.

use std::fmt;

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hkdf::hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::VaultError;

/// Salt of the key schedule; a new schedule gets a new salt.
const SALT: &[u8] = b"hearth-v1-storage";
/// Bytes of a nonce.
pub const NONCE: usize = 24;
const TAG: usize = 16;
/// What sealing adds to a plain text, in bytes.
pub const OVERHEAD: usize = NONCE + TAG;

/// The random key from which all others follow. 32 bytes, wiped on drop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct DataKey([u8; 32]);

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(..)")
    }
}

/// A part of the store with keys of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Conversations.
    Sessions,
    /// What is remembered.
    Memory,
    /// The audit log.
    Audit,
    /// API keys and tokens.
    Secrets,
    /// State of channels, the inbox included.
    ChannelState,
    /// The journal's own records and keys.
    Journal,
    /// Answers on their way out.
    Outbox,
}

impl Domain {
    /// All domains.
    pub const ALL: [Self; 7] = [
        Self::Sessions,
        Self::Memory,
        Self::Audit,
        Self::Secrets,
        Self::ChannelState,
        Self::Journal,
        Self::Outbox,
    ];

    /// The name in the key schedule and in associated data.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Memory => "memory",
            Self::Audit => "audit",
            Self::Secrets => "secrets",
            Self::ChannelState => "channel-state",
            Self::Journal => "journal",
            Self::Outbox => "outbox",
        }
    }
}

impl DataKey {
    /// Takes 32 random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A key for one purpose.
    pub(crate) fn derive(&self, info: &str) -> Zeroizing<[u8; 32]> {
        expand(&self.0, info)
    }

    /// The keys of a domain.
    pub fn domain(&self, domain: Domain) -> DomainKeys {
        let name = domain.as_str();
        DomainKeys::new(domain, self.derive(name))
    }
}

/// HKDF-SHA256 of `key` under the salt of the schedule.
pub(crate) fn expand(key: &[u8], info: &str) -> Zeroizing<[u8; 32]> {
    let mut out = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(Some(SALT), key)
        .expand(info.as_bytes(), &mut *out)
        .expect("32 bytes are less than 255 hashes");
    out
}

/// Where a record lies. Bound to the record, so that it cannot be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aad<'a> {
    /// The table or file.
    pub table: &'a str,
    /// The key in the table.
    pub key: &'a [u8],
    /// Format version of the record.
    pub format: u16,
}

impl Aad<'_> {
    /// Every part with its length in front: no two places give the same bytes.
    fn bytes(&self, domain: Domain) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.key.len());
        out.extend(self.format.to_be_bytes());
        for part in [domain.as_str().as_bytes(), self.table.as_bytes(), self.key] {
            out.extend((part.len() as u64).to_be_bytes());
            out.extend(part);
        }
        out
    }
}

/// The keys of one domain. Wiped on drop.
#[derive(Clone)]
pub struct DomainKeys {
    domain: Domain,
    root: Zeroizing<[u8; 32]>,
    cipher: XChaCha20Poly1305,
    index: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for DomainKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DomainKeys({}, ..)", self.domain.as_str())
    }
}

impl DomainKeys {
    fn new(domain: Domain, root: Zeroizing<[u8; 32]>) -> Self {
        let seal = expand(&*root, "seal");
        let cipher = XChaCha20Poly1305::new((&*seal).into());
        let index = expand(&*root, "index");
        Self { domain, root, cipher, index }
    }

    /// Keys of the same domain under a key of its own, for example one that is
    /// destroyed before the domain's own key.
    pub fn from_key(domain: Domain, key: &[u8; 32]) -> Self {
        Self::new(domain, Zeroizing::new(*key))
    }

    /// Seals `plain` for the place `aad`: nonce, cipher text, tag. The nonce is
    /// 24 bytes from a random source and must never be used again.
    pub fn seal(&self, nonce: [u8; NONCE], aad: &Aad<'_>, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(plain.len() + OVERHEAD);
        out.extend(nonce);
        out.extend(plain);
        let tag = self
            .cipher
            .encrypt_inout_detached(&XNonce::from(nonce), &aad.bytes(self.domain), (&mut out[NONCE..]).into())
            .expect("records are far below the cipher's limit of 256 GiB");
        out.extend(tag.as_slice());
        out
    }

    /// Opens what [`DomainKeys::seal`] made for the same place.
    pub fn open(&self, aad: &Aad<'_>, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let damaged = VaultError::Damaged("a record does not open with the key of its place");
        if sealed.len() < OVERHEAD {
            return Err(damaged);
        }
        let (nonce, rest) = sealed.split_at(NONCE);
        let (body, tag) = rest.split_at(rest.len() - TAG);
        let (Ok(nonce), Ok(tag)) = (XNonce::try_from(nonce), Tag::try_from(tag)) else { return Err(damaged) };
        let mut plain = Zeroizing::new(body.to_vec());
        self.cipher
            .decrypt_inout_detached(&nonce, &aad.bytes(self.domain), plain.as_mut_slice().into(), &tag)
            .map_err(|_| damaged)?;
        Ok(plain)
    }

    /// A keyed hash of a name: the same name gives the same 16 bytes, and nothing
    /// of the name can be read from them.
    pub fn index(&self, name: &[u8]) -> [u8; 16] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.index).expect("HMAC takes any key length");
        mac.update(name);
        let full = mac.finalize().into_bytes();
        let mut out = [0; 16];
        out.copy_from_slice(&full[..16]);
        out
    }

    /// A key of this domain for another purpose.
    pub fn subkey(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        expand(&*self.root, &format!("subkey/{purpose}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(domain: Domain) -> DomainKeys {
        DataKey::from_bytes([7; 32]).domain(domain)
    }

    #[test]
    fn a_sealed_record_opens_only_in_its_place() {
        let aad = Aad { table: "t", key: b"k", format: 1 };
        let sealed = keys(Domain::Memory).seal([1; 24], &aad, b"text");
        assert_eq!(&**keys(Domain::Memory).open(&aad, &sealed).unwrap(), b"text");
        let refused = |keys: DomainKeys, aad: Aad<'_>| assert!(keys.open(&aad, &sealed).is_err(), "{aad:?}");
        refused(keys(Domain::Sessions), aad);
        refused(DataKey::from_bytes([8; 32]).domain(Domain::Memory), aad);
        refused(keys(Domain::Memory), Aad { table: "u", ..aad });
        refused(keys(Domain::Memory), Aad { key: b"l", ..aad });
        refused(keys(Domain::Memory), Aad { format: 2, ..aad });
        // The boundary between table and key is part of the place.
        refused(keys(Domain::Memory), Aad { table: "tk", key: b"", ..aad });
        for at in 0..sealed.len() {
            let mut other = sealed.clone();
            other[at] ^= 1;
            assert!(keys(Domain::Memory).open(&aad, &other).is_err());
            assert!(keys(Domain::Memory).open(&aad, &sealed[..at]).is_err());
        }
    }

    #[test]
    fn domains_and_purposes_have_different_keys() {
        let mut seen = std::collections::BTreeSet::new();
        for domain in Domain::ALL {
            let keys = keys(domain);
            assert!(seen.insert(keys.index(b"name").to_vec()));
            assert!(seen.insert(keys.subkey("a").to_vec()));
            assert!(seen.insert(keys.subkey("b").to_vec()));
        }
        assert_eq!(keys(Domain::Audit).index(b"x"), keys(Domain::Audit).index(b"x"));
    }

    /// RFC 5869, test case 1, through the same crate and hash.
    #[test]
    fn hkdf_known_answer() {
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let mut okm = [0; 42];
        Hkdf::<Sha256>::new(Some(&salt), &[0x0b; 22]).expand(&info, &mut okm).unwrap();
        let hex: String = okm.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        );
    }

    /// The example of draft-irtf-cfrg-xchacha-03, appendix A.3.1.
    #[test]
    fn xchacha20_poly1305_known_answer() {
        let plain = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
        let aad = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let key: [u8; 32] = std::array::from_fn(|i| 0x80 + i as u8);
        let nonce: [u8; 24] = std::array::from_fn(|i| 0x40 + i as u8);
        let mut text = plain.to_vec();
        let tag = XChaCha20Poly1305::new((&key).into())
            .encrypt_inout_detached(&XNonce::from(nonce), &aad, text.as_mut_slice().into())
            .unwrap();
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&text[..16]), "bd6d179d3e83d43b9576579493c0e939");
        assert_eq!(hex(tag.as_slice()), "c0875924c1c7987947deafd8780acf49");
    }

    #[test]
    fn keys_are_not_shown() {
        let key = DataKey::from_bytes(*b"canary-canary-canary-canary-cana");
        let shown = format!("{key:?} {:?}", key.domain(Domain::Secrets));
        assert_eq!(shown, "DataKey(..) DomainKeys(secrets, ..)");
    }
}
