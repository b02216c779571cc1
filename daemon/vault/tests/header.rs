//! A header that somebody changed gives a typed error, and never the key.
#![allow(clippy::unwrap_used)]

use hearth_vault::{
    Argon2Params, DataKey, Domain, HEADER_MAX, Header, RecoveryError, Secret, SlotRandom, VaultError,
    parse_recovery_code, recovery_code,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const CHEAP: Argon2Params = Argon2Params { memory_kib: 32, passes: 1, lanes: 1 };
const STORE: [u8; 16] = [1; 16];
const PHRASE: &str = "canary of a passphrase";

fn key() -> DataKey {
    DataKey::from_bytes(*b"canary of a data key, 32 bytes!!")
}

fn random(n: u8) -> SlotRandom {
    SlotRandom { salt: [n; 16], nonce: [n; 24] }
}

/// Two slots of each kind, so that slots can be exchanged.
fn header() -> Header {
    let mut header = Header::new(STORE);
    let code = recovery_code([3; 16]);
    for n in 0..2 {
        for (i, secret) in secrets(&code).iter().enumerate() {
            header.add_slot(&key(), secret, "label", CHEAP, &random(4 * n + i as u8)).unwrap();
        }
    }
    header
}

fn secrets(code: &str) -> [Secret<'_>; 4] {
    [
        Secret::KeyFile(b"canary of a key file, 32 bytes!!"),
        Secret::Credential(b"canary of a credential, 32 bytes"),
        Secret::Passphrase(PHRASE),
        Secret::Recovery(code),
    ]
}

/// The bytes of a header around any body, with a right checksum.
fn around(body: &[u8], format: u16) -> Vec<u8> {
    let mut out = b"HEARTHK\0".to_vec();
    out.extend(format.to_be_bytes());
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(body);
    let sum = Sha256::digest(&out);
    out.extend(sum);
    out
}

fn body(header: &Header) -> Value {
    let bytes = header.encode();
    serde_json::from_slice(&bytes[14..bytes.len() - 32]).unwrap()
}

/// Both keys seal alike, so they are the same.
fn same(a: &DataKey, b: &DataKey) -> bool {
    a.domain(Domain::Memory).index(b"x") == b.domain(Domain::Memory).index(b"x")
}

#[test]
fn every_flipped_bit_and_every_cut_is_damage() {
    let bytes = header().encode();
    let mut found = 0;
    let mut check = |bytes: &[u8]| {
        assert!(matches!(Header::decode(bytes), Err(VaultError::Damaged(_))));
        found += 1;
    };
    for at in 0..bytes.len() {
        check(&bytes[..at]);
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[at] ^= 1 << bit;
            check(&other);
        }
    }
    println!("damages found: {found}");
    // What follows a header does not matter: it lies in a block of its own.
    let long = [&bytes[..], &[0xff; 100]].concat();
    assert_eq!(Header::decode(&long).unwrap(), header());
}

/// Whoever can write the file can make the checksum right; the slots still do not open.
#[test]
fn a_slot_opens_only_as_itself() {
    let code = recovery_code([3; 16]);
    let kinds = ["key_file", "credential", "passphrase", "recovery"];
    let refused = |change: &dyn Fn(&mut Value), kind: usize, what: &str| {
        let mut value = body(&header());
        // Only the changed slot of the kind is left.
        let slots = value["slots"].as_array_mut().unwrap();
        *slots = vec![slots[kind].clone()];
        change(&mut value);
        let bytes = around(value.to_string().as_bytes(), 1);
        let result = Header::decode(&bytes).and_then(|h| h.unlock(&secrets(&code)[kind]));
        assert_eq!(result.err(), Some(VaultError::WrongSecret), "{what} of {}", kinds[kind]);
    };
    for kind in 0..4 {
        let other = body(&header())["slots"][kind + 4].clone();
        let take = |field: &'static str| {
            let other = other[field].clone();
            move |v: &mut Value| v["slots"][0][field] = other.clone()
        };
        refused(&take("id"), kind, "id");
        refused(&take("salt"), kind, "salt");
        refused(&take("wrapped"), kind, "wrapped key");
        refused(&|v| v["store_id"][15] = 2.into(), kind, "store");
        for at in 0..72 {
            let flip = |v: &mut Value| {
                let byte = &mut v["slots"][0]["wrapped"][at];
                *byte = (byte.as_u64().unwrap() ^ 1).into();
            };
            refused(&flip, kind, "a byte");
        }
    }
    refused(&|v| v["slots"][0]["argon2"]["passes"] = 2.into(), 2, "passes");
    // A key file does not open as a credential of the same bytes.
    let mut value = body(&header());
    value["slots"] = json!([value["slots"][0]]);
    value["slots"][0]["kind"] = "credential".into();
    let moved = Header::decode(&around(value.to_string().as_bytes(), 1)).unwrap();
    let bytes = b"canary of a key file, 32 bytes!!";
    assert_eq!(moved.unlock(&Secret::Credential(bytes)).err(), Some(VaultError::WrongSecret));
    // Unchanged, through the same detour, all of them open.
    let whole = Header::decode(&around(body(&header()).to_string().as_bytes(), 1)).unwrap();
    for secret in secrets(&code) {
        assert!(same(&whole.unlock(&secret).unwrap(), &key()), "{secret:?}");
    }
}

#[test]
fn hostile_headers_are_refused_before_any_work() {
    #[track_caller]
    fn check(change: impl Fn(&mut Value), expect: &str) {
        let mut value = body(&header());
        change(&mut value);
        let error = Header::decode(&around(value.to_string().as_bytes(), 1)).unwrap_err();
        assert!(format!("{error:?}").starts_with(expect), "{error:?}");
    }
    let argon2 = |memory: u64, passes: u64, lanes: u64| {
        move |v: &mut Value| {
            v["slots"][2]["argon2"] = json!({"memory_kib": memory, "passes": passes, "lanes": lanes})
        }
    };
    check(argon2(1024 * 1024 + 1, 3, 4), "BadParameters");
    check(argon2(u64::from(u32::MAX), 3, 4), "BadParameters");
    check(argon2(64 * 1024, 65, 4), "BadParameters");
    check(argon2(64 * 1024, 3, 17), "BadParameters");
    check(argon2(64 * 1024, 3, u64::from(u32::MAX)), "BadParameters");
    check(argon2(64 * 1024, 0, 4), "BadParameters");
    check(argon2(64 * 1024, 3, 0), "BadParameters");
    check(argon2(31, 3, 4), "BadParameters");
    check(argon2(1 << 40, 3, 4), "Damaged");
    check(|v| v["slots"] = json!([]), "Damaged");
    check(|v| v["slots"].as_array_mut().unwrap().push(body(&header())["slots"][0].clone()), "Damaged");
    check(|v| v["slots"][0]["kind"] = "tang".into(), "Damaged");
    check(|v| v["slots"][0]["more"] = 1.into(), "Damaged");
    check(|v| v["more"] = 1.into(), "Damaged");
    check(|v| v["generation"] = (-1).into(), "Damaged");
    check(|v| v["store_id"] = json!([1, 2]), "Damaged");
    // At the cap, decoding goes through: nothing is computed yet.
    let mut value = body(&header());
    argon2(1024 * 1024, 64, 16)(&mut value);
    assert!(Header::decode(&around(value.to_string().as_bytes(), 1)).is_ok());
    // A later format is told from damage, whatever its body is.
    assert_eq!(Header::decode(&around(b"\x01\x02", 2)), Err(VaultError::NewerFormat(2)));
    // Nesting, and a length that promises more than there is.
    let deep = "[".repeat(8000);
    assert!(matches!(Header::decode(&around(deep.as_bytes(), 1)), Err(VaultError::Damaged(_))));
    assert!(matches!(Header::decode(&around(&[b' '; HEADER_MAX], 1)), Err(VaultError::Damaged(_))));
}

#[test]
fn the_fullest_header_fits_its_block() {
    let mut header = Header::new([255; 16]);
    header.generation = u64::MAX - 8;
    let params = Argon2Params { memory_kib: 128, passes: 1, lanes: 16 };
    for n in 0..8 {
        // The longest that a character can become in JSON.
        let label = "\u{1}".repeat(100);
        header.add_slot(&key(), &Secret::Passphrase(PHRASE), &label, params, &random(255 - n)).unwrap();
    }
    assert!(header.encode().len() <= HEADER_MAX, "{}", header.encode().len());
    assert_eq!(Header::decode(&header.encode()).unwrap(), header);
    let ninth = header.add_slot(&key(), &Secret::Passphrase(PHRASE), "", params, &random(9));
    assert_eq!(ninth, Err(VaultError::TooManySlots(8)));
}

/// Changing the ways to unlock keeps the key, so nothing that was sealed is rewritten.
#[test]
fn slots_change_and_the_data_key_stays() {
    let mut header = Header::new(STORE);
    let first = header.add_slot(&key(), &Secret::Passphrase("old"), "", CHEAP, &random(1)).unwrap();
    let opened = header.unlock(&Secret::Passphrase("old")).unwrap();
    header.add_slot(&opened, &Secret::Passphrase("new"), "", CHEAP, &random(2)).unwrap();
    header.remove_slot(first).unwrap();
    let header = Header::decode(&header.encode()).unwrap();
    assert_eq!(header.unlock(&Secret::Passphrase("old")).err(), Some(VaultError::WrongSecret));
    assert!(same(&header.unlock(&Secret::Passphrase("new")).unwrap(), &key()));
}

#[test]
fn secrets_are_never_shown() {
    let header = header();
    let code = recovery_code([3; 16]);
    let mut shown = format!("{header:?} {:?} {:?}", key(), key().domain(Domain::Secrets));
    for secret in secrets(&code) {
        shown += &format!("{secret:?}");
    }
    let errors = [
        header.unlock(&Secret::Passphrase("canary of a wrong one")).unwrap_err(),
        header.unlock(&Secret::KeyFile(b"canary, too short")).unwrap_err(),
        header.unlock(&Secret::Recovery("CANARY-CANARY")).unwrap_err(),
    ];
    for error in errors {
        shown += &format!("{error} {error:?}");
    }
    let bytes = format!("{:?}", b"canary").replace(['[', ']'], "");
    assert!(!shown.to_lowercase().contains("canary") && !shown.contains(&bytes), "{shown}");
    assert!(!shown.contains(&code[..5]), "{shown}");
    // Nor are they in the file.
    let file = String::from_utf8_lossy(&header.encode()).into_owned();
    assert!(!file.contains("canary") && !file.contains(&bytes), "{file}");
}

#[test]
fn neighbours_that_changed_places_in_a_recovery_code_are_found() {
    let (mut tried, mut found) = (0, 0);
    for n in 0..64_u8 {
        let code = recovery_code(std::array::from_fn(|i| n.wrapping_mul(37).wrapping_add((i * 59) as u8)));
        let plain: Vec<char> = code.chars().filter(|c| *c != '-').collect();
        for at in 0..plain.len() - 1 {
            let mut typed = plain.clone();
            typed.swap(at, at + 1);
            if typed != plain {
                tried += 1;
                let result = parse_recovery_code(&typed.iter().collect::<String>());
                found += u32::from(matches!(result, Err(RecoveryError::Check)));
            }
        }
    }
    println!("neighbours exchanged: {tried}, found {found}");
    assert_eq!(tried, found);
}

proptest! {
    #[test]
    fn recovery_codes_survive_people(bits: [u8; 16], style in prop::collection::vec(0..4u8, 40)) {
        let code = recovery_code(bits);
        let mut typed = String::new();
        for (c, style) in code.chars().filter(|c| *c != '-').zip(style) {
            match (c, style) {
                ('0', 1) => typed.push('o'),
                ('0', 2) => typed.push('O'),
                ('1', 1) => typed.push('i'),
                ('1', 2) => typed.push('L'),
                (c, 1) => typed.push(c.to_ascii_lowercase()),
                (c, 2) => typed.extend([' ', c, '-']),
                (c, 3) => typed.extend([c, '\n']),
                (c, _) => typed.push(c),
            }
        }
        prop_assert_eq!(*parse_recovery_code(&typed).unwrap(), bits);
    }

    #[test]
    fn nothing_that_is_typed_panics(text in "\\PC{0,80}") {
        let _ = parse_recovery_code(&text);
        let _ = header().unlock(&Secret::Recovery(&text));
    }

    #[test]
    fn no_bytes_panic_and_none_pass(bytes in prop::collection::vec(any::<u8>(), 0..600), sealed: bool) {
        let bytes = if sealed { around(&bytes, 1) } else { bytes };
        prop_assert!(Header::decode(&bytes).is_err());
    }
}
