//! The audit log as its owner meets it: verified, exported and tampered with,
//! through the real binary.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use hearth_audit::{Draft, Kind, Stamp};
use hearth_scope::{CallId, ToolName};
use hearth_store::{Batch, Options, Store, create};
use hearth_tests::{FakeModel, Home, Output, Reply};
use hearth_vault::{Argon2Params, DataKey, Header, Secret, SlotRandom};
use serde_json::Value;
use ulid::Ulid;

/// Entries of the large log, and of one batch.
const ENTRIES: u64 = 1_200;
const BATCH: u64 = 50;
/// Entries that are tampered with, spread over the log.
const SAMPLE: usize = 10;
/// Small segments, so that the log has several epochs.
const SEGMENT: usize = 64 * 1024;

/// A home with a store of small segments and a log of `ENTRIES`, written through
/// the store itself as one turn after the other.
fn filled(url: &str) -> Home {
    let home = Home::new(url, "");
    let clock = Arc::new(|| Stamp { boot: Ulid(1), mono_ns: 2, wall_ms: None });
    let options = Options::at(&home.path("state"), &home.path("initialized"), true, clock).unwrap();
    let options = Options { segment_bytes: SEGMENT, ..options };
    let data_key = DataKey::from_bytes([7; 32]);
    let (secret, random) = ([3; 64], SlotRandom { salt: [1; 16], nonce: [2; 24] });
    std::fs::write(home.path("key"), secret).unwrap();
    std::fs::set_permissions(home.path("key"), std::fs::Permissions::from_mode(0o400)).unwrap();
    let mut header = Header::new([9; 16]);
    header.add_slot(&data_key, &Secret::KeyFile(&secret), "", Argon2Params::default(), &random).unwrap();
    create(&options, &data_key, &header).unwrap();
    let (store, _) = Store::open(options, &data_key).unwrap();
    let tool = ToolName::parse("memory.write").unwrap();
    for first in (0..ENTRIES).step_by(BATCH as usize) {
        let mut batch = Batch::new();
        for n in first..first + BATCH {
            let (turn, call) = (Ulid::from_parts(n / 2, 1), CallId(1));
            let kind = match n % 2 {
                0 => Kind::ToolIntent {
                    turn,
                    call,
                    tool: tool.clone(),
                    version: 1,
                    scopes: Vec::new(),
                    subject: format!("entry {n}"),
                    repaired: false,
                    label: hearth_scope::Label::NEUTRAL,
                },
                _ => {
                    let (tool, outcome) = (tool.clone(), "verified".to_owned());
                    Kind::ToolOutcome { turn, call, tool, outcome, duration_ms: n }
                }
            };
            batch.audit.push(Draft::new(kind));
        }
        store.commit_blocking(batch).unwrap();
    }
    store.close_blocking().unwrap();
    home
}

fn export(home: &Home) -> Vec<String> {
    let out = home.run(&["audit", "export", "-"]);
    assert_eq!(out.code, 0, "{out:?}");
    out.stdout.lines().map(str::to_owned).collect()
}

/// The lines that hold entries.
fn entries(lines: &[String]) -> Vec<usize> {
    (0..lines.len()).filter(|n| lines[*n].starts_with("{\"entry\":")).collect()
}

fn write(path: &Path, lines: &[String]) {
    std::fs::write(path, lines.iter().map(|l| format!("{l}\n")).collect::<String>()).unwrap();
}

/// A finding: exit code 65, two lines, and the words that name it.
#[track_caller]
fn refused(out: &Output, words: &str) {
    assert_eq!(out.code, 65, "{words}: {out:?}");
    assert_eq!(out.stderr.trim_end().lines().count(), 2, "{words}: {out:?}");
    assert!(out.stderr.contains(words), "{words}: {out:?}");
}

/// The second verifier, in another language.
fn python(file: &Path) -> (bool, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/verify_export.py");
    let out = Command::new("python3").arg(script).arg(file).output().expect("python3 is installed");
    (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Identity and head, as a verification prints them.
fn printed(out: &Output, name: &str) -> String {
    let line = out.stdout.lines().find_map(|l| l.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{out:?}")).trim().to_owned()
}

/// INV-15
#[test]
fn inv_15_tampering_with_an_export_is_named() {
    let home = filled("http://127.0.0.1:9");
    let lines = export(&home);
    let at = entries(&lines);
    assert_eq!(at.len() as u64, ENTRIES);
    let file = home.path("export.jsonl");
    write(&file, &lines);
    let sound = home.run(&["audit", "verify", file.to_str().unwrap()]);
    assert_eq!(sound.code, 0, "{sound:?}");
    assert!(sound.stdout.contains(&format!("{ENTRIES} entries")), "{sound:?}");
    let epochs = lines.iter().filter(|l| l.starts_with("{\"epoch\":")).count();
    assert!(epochs > 3, "the log has several epochs");
    let (ok, said) = python(&file);
    assert!(ok && said.contains(&printed(&sound, "head")), "both verifiers see the same head: {said}");

    let mut found = 0;
    let mut check = |changed: Vec<String>, words: &str| {
        write(&file, &changed);
        refused(&home.run(&["audit", "verify", file.to_str().unwrap()]), words);
        let (ok, said) = python(&file);
        assert!(!ok, "{words}: {said}");
        found += 1;
    };
    for i in 0..SAMPLE {
        // Not the first or last one: those are in the table of every entry beside the verifier.
        let seq = 1 + i * (at.len() - 3) / SAMPLE;
        let line = at[seq];
        let mut edited = lines.clone();
        edited[line] = lines[line].replacen("memory.write", "memory.wrote", 1);
        check(edited, &format!("entry {seq} was edited"));
        let mut deleted = lines.clone();
        deleted.remove(line);
        check(deleted, &format!("entry {seq} was deleted"));
        let mut swapped = lines.clone();
        swapped.swap(line, at[seq + 1]);
        check(swapped, &format!("entry {seq} was swapped with entry {}", seq + 1));
        check(lines[..=line].to_vec(), "the end was cut off");
    }
    println!(
        "export: {ENTRIES} entries, {epochs} epochs, {found} tamperings named, and found by both verifiers"
    );
}

/// INV-15
#[test]
fn inv_15_another_box_and_an_older_copy_are_found_out() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let (home, other) = (filled(&model.url()), Home::new(&model.url(), ""));
    other.init();
    let identity = printed(&home.run(&["audit", "verify"]), "identity");
    let foreign = printed(&other.run(&["audit", "verify"]), "identity");
    let file = home.path("export.jsonl");
    write(&file, &export(&home));
    let file = file.to_str().unwrap();
    for place in [&[][..], &[file]] {
        let with = |identity: &str| {
            let args = [&["audit", "verify"], place, &["--identity", identity]].concat();
            home.run(&args)
        };
        assert_eq!(with(&identity).code, 0);
        refused(&with(&foreign), "the log of another box");
    }

    // The whole state folder is set back to an earlier copy.
    let copy = home.path("copy");
    copy_folder(&home.path("state"), &copy);
    let daemon = home.serve();
    assert_eq!(daemon.ask("hello").code, 0);
    let status: Value = serde_json::from_str(&home.run(&["status", "--json"]).stdout).unwrap();
    assert_eq!(status["audit"]["identity"], identity.as_str());
    let head = status["audit"]["head"].as_str().unwrap().to_owned();
    let noted = ["audit", "verify", "--head", &head];
    // Works while the daemon runs, and after it.
    let running = home.run(&noted);
    assert_eq!(running.code, 0, "{running:?}");
    assert_eq!(daemon.stop(), 0);
    assert_eq!(home.run(&noted).code, 0);
    std::fs::remove_dir_all(home.path("state")).unwrap();
    copy_folder(&copy, &home.path("state"));
    assert_eq!(home.run(&["audit", "verify"]).code, 0, "the copy is sound in itself");
    refused(&home.run(&noted), "older");
    refused(&home.run(&["audit", "verify", file, "--head", &head]), "older");
    println!("other identity: 2 of 2 found; older copy: 2 of 2 found with a noted head");
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The segments of the journal, in order.
fn segments(home: &Home) -> Vec<PathBuf> {
    let all = home.all_bytes().into_iter().map(|(path, _)| path);
    let mut found: Vec<_> = all.filter(|p| p.extension().is_some_and(|e| e == "seg")).collect();
    found.sort();
    found
}

/// Flips a bit at `share` of what is written in the file, and one 16 bytes on: what
/// is between two records and means nothing is shorter.
fn flip(path: &Path, share: f64) {
    let mut bytes = std::fs::read(path).unwrap();
    let used = bytes.iter().rposition(|b| *b != 0).unwrap();
    let at = (used as f64 * share) as usize;
    bytes[at] ^= 1;
    bytes[at + 16] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// INV-15
#[test]
fn inv_15_a_changed_segment_is_named_and_stops_the_daemon_that_needs_it() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let home = filled(&model.url());
    let all = segments(&home);
    let keep = home.path("keep");
    copy_folder(&home.path("state"), &keep);
    // Entries of each segment, by the certificates in an export.
    let lines = export(&home);
    let begins =
        lines.iter().filter_map(|l| serde_json::from_str::<Value>(l).unwrap()["epoch"]["first_seq"].as_u64());
    let begins: Vec<u64> = begins.chain([ENTRIES]).collect();
    assert_eq!(begins.len(), all.len() + 1);
    let mut named = 0;
    for (n, segment) in all.iter().enumerate() {
        for share in [0.3, 0.6, 0.9] {
            flip(segment, share);
            let out = home.run(&["audit", "verify"]);
            // In what was written last, nothing that follows tells an edit from a torn end: there the
            // head that the index remembers says that the end is missing, and from where.
            let cut = n + 1 == all.len() && out.stderr.contains("was cut off");
            let (words, before) = if cut { ("was cut off", "copy: ") } else { ("was edited", "entry ") };
            refused(&out, words);
            let seq = out.stderr.split(before).nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            assert!((begins[n]..begins[n + 1]).contains(&seq.parse().unwrap()), "segment {n}: {out:?}");
            named += 1;
            // Nothing vouches for such a log.
            refused(&home.run(&["audit", "export", "-"]), "hearth audit verify");
            let file = home.path("refused.jsonl");
            refused(&home.run(&["audit", "export", file.to_str().unwrap()]), "hearth audit verify");
            assert!(!file.exists(), "half an export is left behind");
            std::fs::remove_dir_all(home.path("state")).unwrap();
            copy_folder(&keep, &home.path("state"));
        }
    }
    assert_eq!(home.run(&["audit", "verify"]).code, 0);

    // After a crash the end of the journal has to be read again.
    let daemon = home.serve();
    for text in ["one", "two", "three", "four"] {
        assert_eq!(daemon.ask(text).code, 0);
    }
    daemon.kill();
    let newest = segments(&home).pop().unwrap();
    // It holds what this daemon wrote and nothing else. In the very last batch a changed byte could be a
    // torn end, of which nothing was acknowledged; before that it cannot.
    flip(&newest, 0.6);
    let out = home.run(&["serve"]);
    refused(&out, "seg");
    println!("segments: {} flips named {named}; serve refused 1 of 1", all.len());
}

#[test]
fn reading_works_with_and_without_the_daemon() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let home = filled(&model.url());
    let verbs = [&["audit", "verify"][..], &["audit", "tail", "-n", "5"], &["audit", "export", "-"]];
    let offline: Vec<_> = verbs.iter().map(|verb| home.run(verb)).collect();
    let daemon = home.serve();
    let online: Vec<_> = verbs.iter().map(|verb| home.run(verb)).collect();
    assert!(offline.iter().chain(&online).all(|out| out.code == 0), "{offline:?} {online:?}");
    assert_eq!(offline[1].json_lines().len(), 5);
    // The daemon has only added to what was there.
    let (before, after) = (&offline[2].stdout, &online[2].stdout);
    let whole = before.lines().count() - 1;
    assert!(before.lines().take(whole).eq(after.lines().take(whole)));
    let file = home.path("new.jsonl");
    assert_eq!(home.run(&["audit", "export", file.to_str().unwrap()]).code, 0);
    assert_eq!(home.run(&["audit", "export", file.to_str().unwrap()]).code, 1, "a file is never replaced");
    drop(daemon);
}
