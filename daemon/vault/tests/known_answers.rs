//! The primitives give the answers of the public documents that define them.
#![allow(clippy::unwrap_used)]

use argon2::{Algorithm, Argon2, ParamsBuilder, Version};
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use hkdf::Hkdf;
use hkdf::hmac::{Hmac, Mac};
use sha2::Sha256;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// RFC 4231, test cases 1 to 4 and 6.
#[test]
fn hmac_sha256() {
    fn check(key: &[u8], data: &[u8], expect: &str) {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(data);
        assert_eq!(hex(&mac.finalize().into_bytes()), expect);
    }
    let counted: Vec<u8> = (1..=25).collect();
    check(&[0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check(
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    );
    check(&[0xaa; 20], &[0xdd; 50], "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check(&counted, &[0xcd; 50], "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    check(
        &[0xaa; 131],
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    );
}

/// RFC 5869, test cases 1 to 3.
#[test]
fn hkdf_sha256() {
    fn check(salt: &[u8], secret: &[u8], info: &[u8], expect: &str) {
        let mut out = vec![0; expect.len() / 2];
        Hkdf::<Sha256>::new(Some(salt), secret).expand(info, &mut out).unwrap();
        assert_eq!(hex(&out), expect);
    }
    let range = |from: u8, to: u8| (from..=to).collect::<Vec<u8>>();
    check(
        &range(0, 0x0c),
        &[0x0b; 22],
        &range(0xf0, 0xf9),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    );
    check(
        &range(0x60, 0xaf),
        &range(0, 0x4f),
        &range(0xb0, 0xff),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09\
         da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    );
    check(
        &[],
        &[0x0b; 22],
        &[],
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    );
}

/// RFC 9106, section 5.3.
#[test]
fn argon2id() {
    let params = ParamsBuilder::new()
        .m_cost(32)
        .t_cost(3)
        .p_cost(4)
        .output_len(32)
        .data(argon2::AssociatedData::new(&[4; 12]).unwrap())
        .build()
        .unwrap();
    let mut out = [0; 32];
    Argon2::new_with_secret(&[3; 8], Algorithm::Argon2id, Version::V0x13, params)
        .unwrap()
        .hash_password_into(&[1; 32], &[2; 16], &mut out)
        .unwrap();
    assert_eq!(hex(&out), "0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659");
}

/// draft-irtf-cfrg-xchacha-03, appendix A.3.1, all of it.
#[test]
fn xchacha20_poly1305() {
    let mut text = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
        future, sunscreen would be it.";
    let key: [u8; 32] = std::array::from_fn(|i| 0x80 + i as u8);
    let nonce: [u8; 24] = std::array::from_fn(|i| 0x40 + i as u8);
    let aad = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
    let tag = XChaCha20Poly1305::new((&key).into())
        .encrypt_inout_detached(&XNonce::from(nonce), &aad, text.as_mut_slice().into())
        .unwrap();
    assert_eq!(
        hex(&text),
        "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39\
         ae64c6708c54c216cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9\
         21f9664c97637da9768812f615c68b13b52e"
    );
    assert_eq!(hex(tag.as_slice()), "c0875924c1c7987947deafd8780acf49");
}
