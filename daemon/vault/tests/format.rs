//! The page about keys agrees with the code: its example is what is written, and
//! its rules, followed here with the primitives alone, open what the code sealed.
#![allow(clippy::unwrap_used)]

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use hearth_vault::{
    Aad, Argon2Params, DataKey, Domain, Header, Secret, SlotRandom, parse_recovery_code, recovery_code,
};
use hkdf::Hkdf;
use hkdf::hmac::{Hmac, Mac};
use proptest::prelude::*;
use sha2::Sha256;

const PAGE: &str = include_str!("../../../docs/formats/key-schedule.md");
const KEY_FILE: [u8; 32] = [0x0f; 32];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn data_key() -> [u8; 32] {
    std::array::from_fn(|i| i as u8)
}

/// The page's `derive(key, info)`.
fn derive(key: &[u8], info: &str) -> [u8; 32] {
    let mut out = [0; 32];
    Hkdf::<Sha256>::new(Some(b"hearth-v1-storage"), key).expand(info.as_bytes(), &mut out).unwrap();
    out
}

/// The page's associated data.
fn associated(format: u16, domain: &str, table: &str, key: &[u8]) -> Vec<u8> {
    let mut out = format.to_be_bytes().to_vec();
    for part in [domain.as_bytes(), table.as_bytes(), key] {
        out.extend((part.len() as u64).to_be_bytes());
        out.extend(part);
    }
    out
}

/// Opens nonce, cipher text and tag as the page says.
fn open(root: &[u8; 32], aad: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, rest) = sealed.split_at(24);
    let (body, tag) = rest.split_at(rest.len() - 16);
    let mut plain = body.to_vec();
    XChaCha20Poly1305::new((&derive(root, "seal")).into())
        .decrypt_inout_detached(
            &XNonce::try_from(nonce).unwrap(),
            aad,
            plain.as_mut_slice().into(),
            &Tag::try_from(tag).unwrap(),
        )
        .ok()?;
    Some(plain)
}

fn header() -> Header {
    let mut header = Header::new(data_key()[..16].try_into().unwrap());
    let random = SlotRandom { salt: [0xaa; 16], nonce: [0xbb; 24] };
    let secret = Secret::KeyFile(&KEY_FILE);
    header
        .add_slot(&DataKey::from_bytes(data_key()), &secret, "default", Argon2Params::default(), &random)
        .unwrap();
    header
}

/// What the page shows, `name value` a line.
fn example() -> String {
    let key = DataKey::from_bytes(data_key());
    let memory = key.domain(Domain::Memory);
    let aad = Aad { table: "memory", key: &[1, 2, 3], format: 1 };
    let bytes = header().encode();
    let (signed, sum) = bytes.split_at(bytes.len() - 32);
    let code = recovery_code(data_key()[..16].try_into().unwrap());
    [
        ("data-key", hex(&data_key())),
        ("audit/subkey/arguments", hex(&*key.domain(Domain::Audit).subkey("arguments"))),
        ("memory/index/boiler", hex(&memory.index(b"boiler"))),
        ("memory/sealed", hex(&memory.seal([0xbb; 24], &aad, b"hello"))),
        ("header-prefix", hex(&signed[..14])),
        ("header-body", String::from_utf8(signed[14..].to_vec()).unwrap()),
        ("header-checksum", hex(sum)),
        ("recovery-code", code.to_string()),
    ]
    .iter()
    .map(|(name, value)| format!("{name} {value}\n"))
    .collect()
}

#[test]
fn the_example_of_the_page_is_what_is_written() {
    let example = example();
    assert!(PAGE.contains(&format!("```example\n{example}```")), "the page should show:\n{example}");
    let code = example.lines().last().unwrap().strip_prefix("recovery-code ").unwrap();
    assert_eq!(parse_recovery_code(code).unwrap()[..], data_key()[..16]);
}

#[test]
fn the_rules_of_the_page_give_the_same_keys() {
    for domain in Domain::ALL {
        let keys = DataKey::from_bytes(data_key()).domain(domain);
        let name = domain.as_str();
        assert!(PAGE.contains(&format!("`{name}`")), "{name}");
        let root = derive(&data_key(), name);
        assert_eq!(*keys.subkey("arguments"), derive(&root, "subkey/arguments"));
        let mut mac = Hmac::<Sha256>::new_from_slice(&derive(&root, "index")).unwrap();
        mac.update(b"boiler");
        assert_eq!(keys.index(b"boiler")[..], mac.finalize().into_bytes()[..16]);
        let sealed = keys.seal([7; 24], &Aad { table: "t", key: b"k", format: 3 }, b"text");
        assert_eq!(open(&root, &associated(3, name, "t", b"k"), &sealed).unwrap(), b"text");
    }
}

#[test]
fn the_rules_of_the_page_open_a_slot() {
    let body = serde_json::to_value(header()).unwrap();
    let slot = &body["slots"][0];
    let wrapped: Vec<u8> = serde_json::from_value(slot["wrapped"].clone()).unwrap();
    let salted = derive(&[&[0xaa; 16][..], &KEY_FILE].concat(), "slot-secret");
    // Store, id and number of the kind are the place of the wrapped key.
    let place = [&data_key()[..16], &1_u32.to_be_bytes(), &[0]].concat();
    let aad = associated(1, "secrets", "slot", &place);
    assert_eq!(open(&derive(&salted, "slot"), &aad, &wrapped).unwrap(), data_key());

    // A passphrase, with Argon2id instead of the salted hash.
    let params = Argon2Params { memory_kib: 64, passes: 2, lanes: 2 };
    let mut header = Header::new([9; 16]);
    let random = SlotRandom { salt: [4; 16], nonce: [5; 24] };
    let key = DataKey::from_bytes(data_key());
    header.add_slot(&key, &Secret::Passphrase("pass phrase"), "", params, &random).unwrap();
    let body = serde_json::to_value(&header).unwrap();
    let wrapped: Vec<u8> = serde_json::from_value(body["slots"][0]["wrapped"].clone()).unwrap();
    let mut stretched = [0; 32];
    let params = argon2::Params::new(64, 2, 2, Some(32)).unwrap();
    argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params)
        .hash_password_into(b"pass phrase", &[4; 16], &mut stretched)
        .unwrap();
    let place = [&[9; 16][..], &1_u32.to_be_bytes(), &[2]].concat();
    let aad = associated(1, "secrets", "slot", &place);
    assert_eq!(open(&derive(&stretched, "slot"), &aad, &wrapped).unwrap(), data_key());
}

proptest! {
    #[test]
    fn what_is_sealed_opens_in_its_place_alone(
        key: [u8; 32], nonce: [u8; 24], table in "[a-z]{0,6}", place in prop::collection::vec(any::<u8>(), 0..6),
        format: u16, plain in prop::collection::vec(any::<u8>(), 0..300), domain in 0..7usize,
        other_table in "[a-z]{0,6}", other_place in prop::collection::vec(any::<u8>(), 0..6), other_domain in 0..7usize,
    ) {
        let keys = |d: usize| DataKey::from_bytes(key).domain(Domain::ALL[d]);
        let aad = Aad { table: &table, key: &place, format };
        let sealed = keys(domain).seal(nonce, &aad, &plain);
        prop_assert_eq!(sealed.len(), plain.len() + hearth_vault::OVERHEAD);
        prop_assert_eq!(&**keys(domain).open(&aad, &sealed).unwrap(), &plain[..]);
        let moved = Aad { table: &other_table, key: &other_place, format };
        let same = moved == aad && domain == other_domain;
        prop_assert_eq!(keys(other_domain).open(&moved, &sealed).is_ok(), same);
    }

    #[test]
    fn arbitrary_bytes_do_not_open(sealed in prop::collection::vec(any::<u8>(), 0..200)) {
        let aad = Aad { table: "t", key: b"k", format: 1 };
        prop_assert!(DataKey::from_bytes([1; 32]).domain(Domain::Memory).open(&aad, &sealed).is_err());
    }
}
