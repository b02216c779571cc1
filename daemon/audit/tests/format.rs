//! The page about the format and the script that was written from it agree with the code.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use hearth_audit::{
    Chain, Draft, EpochKeys, Kind, Line, Stamp, Verifier, entry_line, epoch_line, head_line, hex, short_code,
};
use hearth_scope::{CallId, Label, Scope, ToolName, TrustTier};
use ulid::Ulid;
use zeroize::Zeroizing;

const PAGE: &str = include_str!("../../../docs/formats/audit-entry.md");

/// Appends `drafts`, with a new epoch before each that is marked.
fn export(mac: [u8; 32], drafts: impl IntoIterator<Item = (bool, Draft)>) -> Vec<String> {
    let keys = EpochKeys::first(mac, [2; 32]);
    let (mut chain, certificate) =
        Chain::create(std::array::from_fn(|i| i as u8), keys, Zeroizing::new([3; 32]));
    let mut lines = vec![epoch_line(&certificate)];
    for (n, (rotate, draft)) in drafts.into_iter().enumerate() {
        if rotate {
            lines.push(head_line(&chain.head(false)));
            let (certificate, keys) = chain.prepare_next([4; 32]);
            chain.enter(keys);
            lines.push(epoch_line(&certificate));
        }
        let boot = Ulid::from_parts(1_796_083_200_000, 7);
        let n = n as u64;
        let wall_ms = (n > 0).then_some(1_796_083_200_000 + n);
        lines.push(entry_line(&chain.append(&draft, Stamp { boot, mono_ns: 1_000_000 * n, wall_ms })));
    }
    lines.push(head_line(&chain.head(true)));
    lines
}

/// The log that the page shows.
fn example() -> Vec<String> {
    let turn = Ulid::from_parts(1_796_083_200_001, 1);
    let (call, tool) = (CallId(1), ToolName::parse("memory.read").unwrap());
    let intent = Draft {
        kind: Kind::ToolIntent {
            turn,
            call,
            tool: tool.clone(),
            version: 1,
            scopes: vec![Scope::parse("memory.read").unwrap()],
            subject: "“boiler”\n".into(),
            repaired: false,
            label: Label::said_by(TrustTier::Trusted),
        },
        arguments: Some(br#"{"query":"boiler"}"#.to_vec()),
    };
    let outcome = Kind::ToolOutcome { turn, call, tool, outcome: "verified".into(), duration_ms: 3 };
    export(
        [1; 32],
        [
            (false, Draft::new(Kind::Startup { version: "0.1.0".into(), unclean: false })),
            (false, intent),
            (false, Draft::new(outcome)),
            (true, Draft::new(Kind::Shutdown { reason: "stopped".into() })),
        ],
    )
}

/// The only fenced block of the page in this language.
fn block(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let mut parts = PAGE.split(&fence);
    let (_, body, None) = (parts.next(), parts.next().unwrap(), parts.next()) else {
        panic!("one block of {language}")
    };
    body.split("```").next().unwrap().lines().collect()
}

fn verify(lines: &[Vec<u8>]) -> bool {
    let mut verifier = Verifier::new(None, None);
    lines.iter().for_each(|line| verifier.push(line));
    verifier.finish(true).finding.is_none()
}

/// The script's exit status and what it prints.
fn script(lines: &[Vec<u8>], key: Option<&str>) -> (i32, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts/verify_export.py");
    let mut child = Command::new("python3")
        .arg(path)
        .arg("-")
        .args(key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is needed for the second verifier");
    // The script may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(&lines.join(&b'\n'));
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn bytes(lines: &[String]) -> Vec<Vec<u8>> {
    lines.iter().map(|line| line.clone().into_bytes()).collect()
}

#[test]
fn the_example_of_the_page_is_what_is_written() {
    let lines = example();
    assert_eq!(block("jsonl"), lines);
    assert!(verify(&bytes(&lines)));
    let Some(Line::Head(head)) = Line::parse(lines.last().unwrap()) else { panic!("no head") };
    assert_eq!(block("text").join("\n") + "\n", head.text());
    let remembered = format!("{}:{}", head.size, hex(&head.hash));
    for text in [remembered, short_code(&head.hash)] {
        assert!(PAGE.contains(&format!("`{text}`")), "{text}");
    }
}

#[test]
fn a_second_verifier_agrees() {
    let key = |first: u8| format!("0:{}", hex(&[first; 32]));
    let honest = bytes(&example());
    let (code, said) = script(&honest, Some(&key(1)));
    assert_eq!(
        (code, said.lines().next()),
        (0, Some("chain sound, 4 MACs checked, 4 signatures NOT checked"))
    );
    assert_eq!(script(&honest, Some(&key(9))), (1, "line 2: MAC of 0\n".into()));
    // A longer log with every kind of character in it.
    let drafts = (0..400_u32).map(|n| {
        let odd: String = (0..12).filter_map(|i| char::from_u32(n * 97 + i * 7919)).collect();
        (n % 90 == 89, Draft::new(Kind::Shutdown { reason: odd }))
    });
    let long = bytes(&export([1; 32], drafts));
    let (code, said) = script(&long, Some(&key(1)));
    assert_eq!((code, verify(&long)), (0, true), "{said}");
    assert!(said.starts_with("chain sound, 400 MACs checked"), "{said}");

    // Whatever is done to the example, neither accepts it. Bytes of signatures are
    // left alone: only one of the two can check them.
    let mut refused = 0;
    let mut check = |lines: &[Vec<u8>], what: &str| {
        assert!(!verify(lines), "{what}");
        let (code, said) = script(lines, None);
        assert_eq!(code, 1, "{what}: {said}");
        refused += 1;
    };
    for at in 0..honest.len() {
        // An ordinary head may be missing.
        if at != 4 {
            check(&[&honest[..at], &honest[at + 1..]].concat(), &format!("line {at} deleted"));
        }
        check(&honest[..at], &format!("cut before line {at}"));
        for other in at + 1..honest.len() {
            let mut lines = honest.clone();
            lines.swap(at, other);
            check(&lines, &format!("lines {at} and {other} swapped"));
        }
        let end = honest[at].windows(11).position(|w| w == b"\"signature\"").unwrap_or(honest[at].len());
        for byte in (at..end).step_by(29) {
            let mut lines = honest.clone();
            lines[at][byte] ^= 1;
            // The public key is only vouched for by signatures, and a first epoch may begin anywhere.
            let public_key = honest[at].windows(12).position(|w| w == b"\"public_key\"").unwrap_or(end);
            if byte < public_key {
                check(&lines, &format!("byte {byte} of line {at} edited"));
            }
        }
    }
    println!("refused by both verifiers: {refused}");
    assert!(refused > 90);
}
