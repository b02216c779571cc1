use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SMALL: Limits = Limits { bytes: 64, depth: 32, nodes: 100 };

/// Pushes `bytes` in pieces and returns the messages, or the first error.
fn decode(bytes: &[u8], cuts: &[usize], limits: Limits) -> Result<Vec<Value>, FrameError> {
    let mut decoder = Decoder::new(limits.bytes);
    let mut found = Vec::new();
    let mut cuts: Vec<_> = cuts.iter().map(|c| c % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
    cuts.sort_unstable();
    for piece in cuts.windows(2) {
        decoder.push(&bytes[piece[0]..piece[1]]);
        while let Some(frame) = decoder.next_frame()? {
            found.push(parse(frame, limits)?);
        }
    }
    if decoder.has_begun() { Err(FrameError::Truncated) } else { Ok(found) }
}

fn raw(length: u32, json: &[u8]) -> Vec<u8> {
    [&length.to_be_bytes(), json].concat()
}

#[test]
fn hostile_frames_have_their_errors() {
    let nested = |n: usize| ("[".repeat(n) + &"]".repeat(n)).into_bytes();
    let list = |n: usize| format!("[{}1]", "1,".repeat(n - 1)).into_bytes();
    let whole = |json: Vec<u8>| raw(json.len() as u32, &json);
    let not = |column| Err(FrameError::NotAMessage { column });
    let wide = Limits { bytes: 1 << 20, ..REQUEST };
    let table = [
        ("nothing", vec![], SMALL, Ok(0)),
        ("sound", raw(2, b"{}"), SMALL, Ok(1)),
        ("two", [raw(2, b"{}"), raw(1, b"1")].concat(), SMALL, Ok(2)),
        ("zero length", raw(0, b""), SMALL, Err(FrameError::Empty)),
        ("short header", vec![0, 0, 0], SMALL, Err(FrameError::Truncated)),
        ("length says more", raw(3, b"{}"), SMALL, Err(FrameError::Truncated)),
        ("length says less", raw(1, b"{}"), SMALL, not(1)),
        ("at the limit", whole(vec![b' '; 63].into_iter().chain(*b"1").collect()), SMALL, Ok(1)),
        ("over the limit", raw(65, b""), SMALL, Err(FrameError::TooLarge { length: 65, limit: 64 })),
        (
            "16 MiB and one",
            raw((16 << 20) + 1, b""),
            RESPONSE,
            Err(FrameError::TooLarge { length: (16 << 20) + 1, limit: 16 << 20 }),
        ),
        (
            "all ones",
            raw(u32::MAX, b"x"),
            RESPONSE,
            Err(FrameError::TooLarge { length: u32::MAX as usize, limit: 16 << 20 }),
        ),
        ("not UTF-8", raw(4, b"\"\xff\xfe\""), SMALL, not(4)),
        ("lone surrogate", raw(8, br#""\ud800""#), SMALL, not(8)),
        ("garbage", raw(7, b"GET / H"), SMALL, not(1)),
        ("32 deep", whole(nested(32)), wide, Ok(1)),
        ("33 deep", whole(nested(33)), wide, Err(FrameError::TooDeep(32))),
        ("100,000 deep", whole(vec![b'['; 100_000]), wide, Err(FrameError::TooDeep(32))),
        (
            "depth in a string",
            whole(format!("\"{}\\\"{}\"", "[".repeat(99), "{".repeat(99)).into()),
            wide,
            Ok(1),
        ),
        (
            "depth after an escape",
            whole(format!("[\"\\\"\",{}]", "[".repeat(40)).into()),
            wide,
            Err(FrameError::TooDeep(32)),
        ),
        ("wide and flat", whole(format!("[{}[]]", "[],".repeat(40)).into()), wide, Ok(1)),
        ("99 in a list", whole(list(98)), Limits { bytes: 4096, ..SMALL }, Ok(1)),
        ("101 nodes", whole(list(100)), Limits { bytes: 4096, ..SMALL }, Err(FrameError::TooManyNodes(100))),
        ("an HTTP request", b"GET / HTTP/1.1\r\n\r\n".to_vec(), REQUEST, {
            Err(FrameError::TooLarge { length: 0x4745_5420, limit: 1 << 20 })
        }),
    ];
    for (name, bytes, limits, expected) in table {
        let found = decode(&bytes, &[], limits).map(|v| v.len());
        match (&found, &expected) {
            // Where exactly the parser gave up is its own affair.
            (Err(FrameError::NotAMessage { .. }), Err(FrameError::NotAMessage { .. })) => {}
            _ => assert_eq!(found, expected, "{name}"),
        }
    }
}

#[test]
fn nothing_too_large_is_sent() {
    let text = "x".repeat(62);
    assert!(encode(&text, 64).is_ok());
    assert_eq!(encode(&(text + "y"), 64), Err(FrameError::TooLarge { length: 65, limit: 64 }));
}

#[test]
fn errors_quote_nothing() {
    let error = parse::<crate::protocol::FromClient>(br#"{"type":"canary"}"#, REQUEST).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("canary"));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z\"\\\\]{0,4}", inner, 0..4).prop_map(|m| json!(m)),
        ]
    })
}

proptest! {
    /// However the stream is cut, the same messages come out.
    #[test]
    fn any_split_gives_the_same_frames(
        messages in prop::collection::vec(value(), 0..6),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m, REQUEST.bytes).unwrap()).collect();
        prop_assert_eq!(decode(&stream, &cuts, REQUEST), Ok(messages.clone()));
        let each: Vec<_> = (0..stream.len()).collect();
        prop_assert_eq!(decode(&stream, &each, REQUEST), Ok(messages));
    }

    /// Arbitrary bytes give messages or an error, the same for every split.
    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(1_u8), any::<u8>()], 0..300),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        prop_assert_eq!(decode(&bytes, &cuts, SMALL), decode(&bytes, &[], SMALL));
    }
}
