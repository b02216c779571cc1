//! Every kind of tampering with a log of a thousand entries is found and named.
#![allow(clippy::unwrap_used)]

use hearth_audit::{
    Chain, Draft, EpochKeys, Finding, Kind, Line, Remembered, Report, Stamp, Verifier, entry_line,
    epoch_line, head_line,
};
use hearth_scope::{CallId, Scope, ToolName};
use proptest::prelude::*;
use ulid::Ulid;
use zeroize::Zeroizing;

const STORE: [u8; 16] = [5; 16];

struct Log {
    lines: Vec<String>,
    /// Index of the line of each entry.
    at: Vec<usize>,
    identity: [u8; 32],
    last: EpochKeys,
    last_epoch: u32,
}

fn draft(n: u64) -> Draft {
    let turn = Ulid::from_parts(n, u128::from(n));
    let (call, tool) = (CallId(1), ToolName::parse("memory.read").unwrap());
    match n % 3 {
        0 => Draft::new(Kind::TurnEnded {
            turn,
            outcome: "completed".into(),
            reason: None,
            tool_calls: 1,
            duration_ms: n,
        }),
        1 => Draft {
            kind: Kind::ToolIntent {
                turn,
                call,
                tool,
                version: 1,
                scopes: vec![Scope::parse("memory.read").unwrap()],
                subject: format!("query {n}"),
                repaired: false,
                label: hearth_scope::Label::NEUTRAL,
            },
            arguments: Some(n.to_be_bytes().to_vec()),
        },
        _ => Draft::new(Kind::ToolOutcome { turn, call, tool, outcome: "verified".into(), duration_ms: n }),
    }
}

fn log(entries: u64, per_epoch: u64, per_head: u64) -> Log {
    let (mut chain, certificate) =
        Chain::create(STORE, EpochKeys::first([1; 32], [2; 32]), Zeroizing::new([3; 32]));
    let identity = certificate.public_key;
    let (mut lines, mut at) = (vec![epoch_line(&certificate)], Vec::new());
    for n in 0..entries {
        if n > 0 && n % per_epoch == 0 {
            lines.push(head_line(&chain.head(false)));
            let seed = [(n % 251) as u8; 32];
            let (certificate, keys) = chain.prepare_next(seed);
            chain.enter(keys);
            lines.push(epoch_line(&certificate));
        } else if n % per_head == 0 {
            lines.push(head_line(&chain.head(false)));
        }
        let stamp =
            Stamp { boot: Ulid::from_parts(9, 9), mono_ns: n * 1000, wall_ms: (n % 2 == 0).then_some(n) };
        at.push(lines.len());
        lines.push(entry_line(&chain.append(&draft(n), stamp)));
    }
    lines.push(head_line(&chain.head(true)));
    Log { lines, at, identity, last: chain.keys().clone(), last_epoch: chain.epoch() }
}

fn verify<'a>(identity: [u8; 32], lines: impl IntoIterator<Item = &'a [u8]>) -> Report {
    let mut verifier = Verifier::new(Some(identity), None);
    for line in lines {
        verifier.push(line);
    }
    verifier.finish(true)
}

fn finding(log: &Log, lines: &[String]) -> Option<Finding> {
    verify(log.identity, lines.iter().map(|l| l.as_bytes())).finding
}

#[test]
fn an_honest_log_verifies_and_names_its_end() {
    let log = log(1000, 300, 64);
    let report = verify(log.identity, log.lines.iter().map(|l| l.as_bytes()));
    assert_eq!((report.entries, report.epochs, report.finding), (1000, 4, None));
    assert!(report.heads > 15);
    // Verified against the identity of another box, or a head that it never had.
    let other = verify([0; 32], log.lines.iter().map(|l| l.as_bytes()));
    assert_eq!(other.finding, Some(Finding::OtherIdentity));
    for (remembered, expect) in [
        (report.end, None),
        (
            Remembered { size: 1001, hash: [0; 32] },
            Some(Finding::RolledBack { have: 1000, remembered: 1001 }),
        ),
        (Remembered { size: 500, hash: [0; 32] }, Some(Finding::RolledBack { have: 500, remembered: 500 })),
    ] {
        let mut verifier = Verifier::new(Some(log.identity), Some(remembered));
        log.lines.iter().for_each(|l| verifier.push(l.as_bytes()));
        assert_eq!(verifier.finish(true).finding, expect);
    }
}

/// INV-15: every kind of tampering is found and named.
#[test]
fn every_single_edit_is_found_and_named() {
    let log = log(1000, 300, 64);
    let mut found = 0;
    let mut edit = |seq: usize, byte: usize, mask: u8| {
        let at = log.at[seq];
        let mut line = log.lines[at].clone().into_bytes();
        let byte = byte % line.len();
        line[byte] ^= mask;
        let lines = log.lines.iter().enumerate().map(|(i, l)| if i == at { &line[..] } else { l.as_bytes() });
        let finding = verify(log.identity, lines).finding;
        let text = String::from_utf8_lossy(&line).into_owned();
        match finding {
            Some(Finding::Edited { seq: named }) => assert_eq!(named, seq as u64, "byte {byte} of {text}"),
            // The frame around the entry: the line is no line of an export any more.
            Some(Finding::Malformed { line: named }) => assert_eq!(named, at as u64 + 1, "{text}"),
            other => panic!("{other:?}: byte {byte} of entry {seq}: {text}"),
        }
        found += 1;
    };
    // Every byte of some entries, one changing byte of each.
    for seq in [0, 1, 299, 300, 301, 640, 998, 999] {
        for byte in 0..log.lines[log.at[seq]].len() {
            edit(seq, byte, 1);
        }
    }
    for seq in 0..1000 {
        edit(seq, seq * 7919 + 11, 1 << (seq % 7));
    }
    println!("edits found and named: {found}");
    assert!(found > 4000);
}

#[test]
fn every_deletion_is_found_and_named() {
    let log = log(1000, 300, 64);
    for seq in 0..1000 {
        let mut lines = log.lines.clone();
        lines.remove(log.at[seq]);
        let expect = Finding::Deleted { from: seq as u64, to: seq as u64 };
        assert_eq!(finding(&log, &lines), Some(expect));
    }
    for (from, to) in [(0, 9), (10, 500), (250, 350), (900, 999)] {
        let cut: Vec<_> = log
            .lines
            .iter()
            .enumerate()
            .filter(|(i, _)| !log.at[from..=to].contains(i))
            .map(|(_, l)| l.clone())
            .collect();
        assert!(
            matches!(finding(&log, &cut), Some(Finding::Deleted { from: named, .. }) if named == from as u64)
        );
    }
    println!("deletions found and named: 1004");
}

#[test]
fn every_swap_is_found_and_named() {
    let log = log(1000, 300, 64);
    let mut pairs: Vec<(usize, usize)> = (0..999).map(|n| (n, n + 1)).collect();
    pairs.extend((0..500).map(|n| (n, 999 - (n * 37) % 400)));
    for (a, b) in &pairs {
        let mut lines = log.lines.clone();
        lines.swap(log.at[*a], log.at[*b]);
        let expect = Finding::Swapped { seq: *a as u64, with: *b as u64 };
        assert_eq!(finding(&log, &lines), Some(expect), "{a} {b}");
    }
    println!("swaps found and named: {}", pairs.len());
}

#[test]
fn every_truncation_is_found_and_named() {
    let log = log(1000, 300, 64);
    for keep in 0..log.lines.len() {
        let entries = log.at.iter().filter(|at| **at < keep).count() as u64;
        let expect = Finding::Truncated { have: entries, expected: None };
        assert_eq!(finding(&log, &log.lines[..keep]), Some(expect), "{keep}");
    }
    println!("truncations found and named: {}", log.lines.len());
}

#[test]
fn duplicates_and_insertions_are_found() {
    let log = log(1000, 300, 64);
    for seq in [0, 1, 299, 300, 500, 999] {
        let mut lines = log.lines.clone();
        lines.insert(log.at[seq] + 1, log.lines[log.at[seq]].clone());
        assert_eq!(finding(&log, &lines), Some(Finding::Duplicated { seq: seq as u64 }));
        let mut lines = log.lines.clone();
        let forged =
            log.lines[log.at[seq]].replace("duration_ms\":", "duration_ms\":9").replace("query", "Query");
        lines.insert(log.at[seq], forged);
        assert!(
            matches!(finding(&log, &lines), Some(Finding::Inserted { .. } | Finding::Edited { .. })),
            "{seq}"
        );
    }
}

/// Rewrites the log from entry `from` on with the keys of `epoch`, as a thief could.
fn rewrite(log: &Log, from: u64, keys: &EpochKeys) -> Vec<String> {
    let mut prev: Option<[u8; 32]> = None;
    let mut out = Vec::new();
    for text in &log.lines {
        match Line::parse(text).unwrap() {
            Line::Entry { line, mac } => {
                let mut value: serde_json::Value = serde_json::from_slice(line).unwrap();
                let seq = value["seq"].as_u64().unwrap();
                if seq < from {
                    prev = Some(hearth_audit::Sealed { seq, line: line.to_vec(), mac }.hash());
                    out.push(text.clone());
                    continue;
                }
                value["prev"] = hearth_audit::hex(&prev.unwrap_or_default()).into();
                value["wall_ms"] = 7.into();
                let line = hearth_audit::canonical::to_canonical(&value).unwrap();
                let sealed = hearth_audit::Sealed { seq, mac: keys.mac(&line), line };
                prev = Some(sealed.hash());
                out.push(entry_line(&sealed));
            }
            _ => out.push(text.clone()),
        }
    }
    out
}

#[test]
fn a_stolen_key_cannot_rewrite_a_sealed_epoch() {
    let log = log(1000, 300, 64);
    assert_eq!(log.last_epoch, 3);
    for from in [0, 1, 100, 299, 300, 650, 899] {
        let lines = rewrite(&log, from, &log.last);
        assert!(finding(&log, &lines).is_some(), "from {from}");
    }
}

#[test]
fn macs_are_checked_where_the_keys_are_still_there() {
    let log = log(20, 300, 64);
    let mut verifier = Verifier::new(Some(log.identity), None).with_macs(0, log.last.clone());
    log.lines.iter().for_each(|l| verifier.push(l.as_bytes()));
    assert_eq!(verifier.finish(true).finding, None);
    let mut verifier =
        Verifier::new(Some(log.identity), None).with_macs(0, EpochKeys::first([9; 32], [2; 32]));
    log.lines.iter().for_each(|l| verifier.push(l.as_bytes()));
    assert_eq!(verifier.finish(true).finding, Some(Finding::Edited { seq: 0 }));
}

proptest! {
    #[test]
    fn any_honest_log_verifies(entries in 0..300u64, per_epoch in 1..80u64, per_head in 1..40u64) {
        let log = log(entries, per_epoch, per_head);
        prop_assert_eq!(finding(&log, &log.lines), None);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_never_pass(lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
        let report = verify([1; 32], lines.iter().map(|l| &l[..]));
        prop_assert!(report.finding.is_some());
    }

    #[test]
    fn mutated_logs_never_panic_and_never_pass(line in 0..40usize, byte in 0..600usize, mask in 1..255u8, cut in any::<bool>()) {
        let log = log(24, 9, 5);
        let mut lines: Vec<Vec<u8>> = log.lines.iter().map(|l| l.clone().into_bytes()).collect();
        let line = line % lines.len();
        let byte = byte % lines[line].len();
        if cut { lines[line].truncate(byte) } else { lines[line][byte] ^= mask }
        let report = verify(log.identity, lines.iter().map(|l| &l[..]));
        prop_assert!(report.finding.is_some(), "line {} byte {}", line, byte);
    }
}
