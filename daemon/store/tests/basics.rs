//! A store in a real folder: create once, write, read, close, open, rotate.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use hearth_audit::{Finding, Kind, Remembered, Stamp};
use hearth_scope::{CallId, ToolName};
use hearth_store::{
    AuditLog, Batch, Options, RealDisk, Store, StoreError, Table, create, inbox, memory, read_header,
    sessions, write_header,
};
use hearth_vault::{Argon2Params, DataKey, Header, Secret, SlotRandom};
use ulid::Ulid;

fn options(dir: &Path) -> Options {
    let clock = Arc::new(|| Stamp { boot: Ulid::from_parts(1, 1), mono_ns: 5, wall_ms: Some(7) });
    let mut options = Options::at(&dir.join("state"), &dir.join("initialized"), true, clock).unwrap();
    options.segment_bytes = 32 * 1024;
    options
}

fn key() -> DataKey {
    DataKey::from_bytes([4; 32])
}

fn header() -> Header {
    let mut header = Header::new([8; 16]);
    let random = SlotRandom { salt: [1; 16], nonce: [2; 24] };
    header
        .add_slot(&key(), &Secret::KeyFile(&[3; 32]), "key file", Argon2Params::default(), &random)
        .unwrap();
    header
}

fn started(n: u64) -> Kind {
    Kind::Shutdown { reason: format!("reason {n}") }
}

fn new_store(dir: &Path) -> Store {
    create(&options(dir), &key(), &header()).unwrap();
    Store::open(options(dir), &key()).unwrap().0
}

/// Opens a store whose last handle was dropped: its writer may still be ending.
fn reopen(dir: &Path) -> (Store, hearth_store::Opened) {
    loop {
        match Store::open(options(dir), &key()) {
            Err(StoreError::Locked) => std::thread::yield_now(),
            other => return other.unwrap(),
        }
    }
}

fn entry(id: u128, text: &str) -> memory::Row {
    memory::Row {
        id: Ulid(id << 64),
        text: text.to_owned(),
        topic: Some("boiler".into()),
        label: memory::Label::Owner,
        source: "console".into(),
        turn: None,
        created_ms: None,
    }
}

/// Somebody's folder stays as it was, to the last file.
#[test]
fn inv_10_a_folder_with_something_else_gets_no_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("state/photos")).unwrap();
    let refused = create(&options(dir.path()), &key(), &header());
    assert!(matches!(refused, Err(StoreError::NotEmpty(name)) if name == "photos"));
    assert_eq!(std::fs::read_dir(dir.path().join("state")).unwrap().count(), 1);
    assert!(!dir.path().join("initialized").exists());
}

/// INV-10: once, on the owner's word.
#[test]
fn inv_10_a_store_is_created_once_and_never_silently_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(options(dir.path()), &key());
    assert!(matches!(open(), Err(StoreError::NotInitialized)));
    create(&options(dir.path()), &key(), &header()).unwrap();
    assert!(matches!(create(&options(dir.path()), &key(), &header()), Err(StoreError::AlreadyInitialized)));
    let (store, _) = open().unwrap();
    assert!(matches!(open(), Err(StoreError::Locked)));
    store.close_blocking().unwrap();
    assert!(matches!(store.commit_blocking(Batch::new().audit(started(1))), Err(StoreError::Closed)));
    assert!(matches!(
        Store::open(options(dir.path()), &DataKey::from_bytes([5; 32])),
        Err(StoreError::WrongKey)
    ));
    for name in ["store.redb", "keys", "journal-00000000.seg"] {
        let path = dir.path().join("state").join(name);
        let away = dir.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        for refused in [open().map(drop), create(&options(dir.path()), &key(), &header())] {
            assert!(matches!(&refused, Err(StoreError::Missing(part)) if part == name), "{refused:?}");
        }
        std::fs::rename(&away, &path).unwrap();
    }
    open().unwrap();
}

#[test]
fn rows_and_entries_survive_with_and_without_closing() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for round in 0..4_u128 {
        let (store, opened) = if round == 0 {
            (new_store(dir.path()), None)
        } else {
            let (store, opened) = reopen(dir.path());
            (store, Some(opened))
        };
        if let Some(opened) = opened {
            assert_eq!(opened.unclean, round % 2 == 1, "round {round}");
            assert_eq!(opened.entries, expected.len() as u64);
        }
        assert_eq!(memory::all(&store).unwrap(), expected);
        for n in 0..60 {
            let row = entry(round * 1000 + n + (1 << 50), &format!("text {round} {n} {}", "x".repeat(300)));
            store.commit_blocking(Batch::new().put([memory::store(&row)]).audit(started(n as u64))).unwrap();
            assert_eq!(memory::get(&store, row.id).unwrap().as_ref(), Some(&row));
            expected.push(row);
        }
        assert!(store.figures().segment > 0, "it has rotated");
        // Otherwise as if the process were killed: nothing is flushed on the way out.
        if round % 2 == 1 {
            store.close_blocking().unwrap();
        }
    }
}

/// What is read has a limit, and reaching it is told: no entry is left out silently.
#[test]
fn more_entries_than_are_read_at_once_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let rows: Vec<_> = (1..=5).map(|n| entry(n << 20, &format!("text {n}"))).collect();
    for (n, row) in rows.iter().enumerate() {
        store.commit_blocking(Batch::new().put([memory::store(row)])).unwrap();
        // Some lie in the index, the others in front of it.
        if n == 2 {
            store.checkpoint_blocking().unwrap();
        }
    }
    for limit in 0..8 {
        let newest: Vec<_> = rows.iter().rev().take(limit).cloned().collect();
        assert_eq!(memory::newest(&store, limit).unwrap(), newest);
        match memory::at_most(&store, limit) {
            Ok(all) => assert!(limit >= 5 && all == rows, "{limit}"),
            Err(StoreError::TooMany { limit: named, .. }) => assert!(limit < 5 && named == limit, "{limit}"),
            Err(error) => panic!("{limit}: {error}"),
        }
    }
    assert_eq!(memory::all(&store).unwrap(), rows);
}

/// A turn ends with a signed head, which costs no sync of its own.
#[test]
fn every_turn_ends_with_a_signed_head() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let ended = |n| Kind::TurnEnded {
        turn: Ulid::from_parts(n, 1),
        outcome: "completed".to_owned(),
        reason: None,
        tool_calls: 0,
        duration_ms: 9,
    };
    let (mut ends, before) = (Vec::new(), store.figures());
    for n in 1..=5 {
        store.append_blocking(Batch::new().audit(started(n))).unwrap();
        store
            .commit_blocking(Batch::new().audit(ended(n)).put([memory::store(&entry(n.into(), "x"))]))
            .unwrap();
        ends.push(store.audit_end().0);
    }
    assert_eq!(store.figures().syncs - before.syncs, 5);
    let mut heads = Vec::new();
    let disk = RealDisk::read_only(&dir.path().join("state"));
    let log = AuditLog::new(&disk, &key());
    log.export(None, &mut |line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        heads.extend(line["head"]["size"].as_u64().filter(|_| line["head"]["closing"] == false));
        Ok(())
    })
    .unwrap();
    assert_eq!(heads, ends);
    assert_eq!(log.verify(None, None).unwrap().heads, 5);
}

#[test]
fn messages_are_known_by_their_channel_and_identity() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let row = inbox::Row {
        id: Ulid::from_parts(1_800_000_000_000, 9),
        channel: "console".into(),
        external_id: "m1".into(),
        session: Ulid::from_parts(1, 1),
        conversation: "default".into(),
        origin: serde_json::json!({"kind": "console"}),
        text: "hello".into(),
        received_ms: None,
        stage: inbox::Stage::Received,
    };
    assert_eq!(inbox::find(&store, "console", "m1").unwrap(), None);
    store.commit_blocking(Batch::new().put(inbox::accept(&row))).unwrap();
    assert_eq!(inbox::find(&store, "console", "m1").unwrap(), Some(row.id));
    assert_eq!(inbox::pending(&store).unwrap(), std::slice::from_ref(&row));
    store.commit_blocking(Batch::new().put([inbox::acting(&row)])).unwrap();
    assert_eq!(inbox::pending(&store).unwrap()[0].stage, inbox::Stage::Acting);
    store.commit_blocking(Batch::new().put([inbox::done(row.id)])).unwrap();
    store.checkpoint_blocking().unwrap();
    assert!(inbox::pending(&store).unwrap().is_empty());
    assert_eq!(inbox::find(&store, "console", "m1").unwrap(), Some(row.id), "still known");
    let session = sessions::Row { id: row.session, name: "default".into(), created_ms: None };
    store.commit_blocking(Batch::new().put([sessions::create(&session)])).unwrap();
    for n in 0..10 {
        assert_eq!(sessions::count(&store, session.id).unwrap(), n);
        store
            .commit_blocking(Batch::new().put([sessions::append(session.id, n, &format!("exchange {n}"))]))
            .unwrap();
        if n == 5 {
            store.checkpoint_blocking().unwrap();
        }
    }
    let read = |from, bytes| {
        let rows = sessions::history::<String>(&store, session.id, from, bytes).unwrap();
        assert!(rows.iter().all(|(ordinal, text)| *text == format!("exchange {ordinal}")));
        rows.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
    };
    assert_eq!(read(0, 1 << 20).len(), 10);
    assert_eq!(read(7, 1 << 20), ["exchange 7", "exchange 8", "exchange 9"]);
    assert_eq!(read(0, 60), ["exchange 8", "exchange 9"]);
}

#[test]
fn an_intent_without_an_outcome_becomes_a_gap_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let (turn, tool) = (Ulid::from_parts(3, 3), ToolName::parse("fs.write").unwrap());
    let intent = |n| Kind::ToolIntent {
        turn,
        call: CallId(n),
        tool: tool.clone(),
        version: 1,
        scopes: vec![],
        subject: String::new(),
        repaired: false,
        label: hearth_scope::Label::NEUTRAL,
    };
    let outcome = |n| Kind::ToolOutcome {
        turn,
        call: CallId(n),
        tool: tool.clone(),
        outcome: "verified".into(),
        duration_ms: 1,
    };
    store.commit_blocking(Batch::new().audit(intent(1))).unwrap();
    store.commit_blocking(Batch::new().audit(outcome(1)).audit(intent(2))).unwrap();
    store.checkpoint_blocking().unwrap();
    for n in 0..300 {
        store.commit_blocking(Batch::new().audit(started(n))).unwrap();
    }
    assert!(store.figures().segment > 1, "the intent lies in an older segment");
    drop(store);
    let gap = Kind::Gap { turn, call: CallId(2), tool: tool.clone() };
    let (store, opened) = reopen(dir.path());
    assert_eq!(opened.gaps, [gap]);
    store.close_blocking().unwrap();
    let (_, opened) = Store::open(options(dir.path()), &key()).unwrap();
    assert!(opened.gaps.is_empty());
}

#[test]
fn the_log_is_verified_exported_and_read_offline() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    for n in 0..300 {
        store.commit_blocking(Batch::new().audit(started(n))).unwrap();
    }
    let disk = RealDisk::read_only(&dir.path().join("state"));
    let log = AuditLog::new(&disk, &key());
    let report = log.verify(None, None).unwrap();
    assert_eq!((report.entries, report.finding), (300, None));
    assert!(report.epochs > 2);
    assert_eq!(log.identity().unwrap(), report.identity.unwrap());
    let mut lines = Vec::new();
    log.export(None, &mut |l| {
        lines.push(l.to_owned());
        Ok(())
    })
    .unwrap();
    let mut verifier = hearth_audit::Verifier::new(report.identity, Some(report.end));
    lines.iter().for_each(|l| verifier.push(l.as_bytes()));
    assert_eq!(verifier.finish(true).finding, None);
    let newest = log.newest(5, &|_| true).unwrap();
    assert_eq!(newest.len(), 5);
    assert!(String::from_utf8_lossy(&newest[0]).contains("reason 299"));
    let later = Remembered { size: 301, hash: [0; 32] };
    assert_eq!(
        log.verify(None, Some(later)).unwrap().finding,
        Some(Finding::RolledBack { have: 300, remembered: 301 })
    );
    assert_eq!(log.remembered().unwrap(), None, "the store is open");
    let newest = dir.path().join(format!("state/journal-{:08}.seg", store.figures().segment));
    store.close_blocking().unwrap();
    let remembered = log.remembered().unwrap().unwrap();
    assert_eq!(remembered, report.end);
    // The end is gone: nothing in the segment itself says so.
    let whole = std::fs::read(&newest).unwrap();
    let mut cut = whole.clone();
    cut[5000..].fill(0);
    std::fs::write(&newest, cut).unwrap();
    assert!(matches!(log.verify(None, Some(remembered)).unwrap().finding, Some(Finding::RolledBack { .. })));
    std::fs::write(&newest, whole).unwrap();
    // One byte in the middle of a sealed segment.
    let path = dir.path().join("state/journal-00000001.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[9000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(log.verify(None, None).unwrap().finding, Some(Finding::Edited { .. })));
}

/// INV-7: neither names nor values.
#[test]
fn inv_7_names_and_values_are_unreadable_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(dir.path());
    let mut row = entry(77 << 20, "canary-text");
    row.topic = Some("canary-topic".into());
    row.source = "canary-source".into();
    let session =
        sessions::Row { id: Ulid::from_parts(2, 2), name: "canary-session".into(), created_ms: None };
    store
        .commit_blocking(
            Batch::new()
                .put([memory::store(&row), sessions::create(&session)])
                .audit(Kind::Shutdown { reason: "canary-audit".into() }),
        )
        .unwrap();
    store.commit_blocking(Batch::new().put([sessions::append(session.id, 0, &"canary-exchange")])).unwrap();
    assert!(store.get(Table::Sessions, b"name/canary-session", 0).unwrap().is_some());
    store.close_blocking().unwrap();
    let mut files = 0;
    for file in std::fs::read_dir(dir.path().join("state")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        files += 1;
        assert!(!bytes.windows(6).any(|w| w == b"canary"));
    }
    assert!(files >= 4);
    assert_eq!(read_header(&RealDisk::read_only(&dir.path().join("state"))).unwrap(), header());
}

#[test]
fn either_copy_of_the_unlock_header_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    new_store(dir.path()).close_blocking().unwrap();
    let path = dir.path().join("state/keys");
    let whole = std::fs::read(&path).unwrap();
    let disk = RealDisk::new(&dir.path().join("state"), false).unwrap();
    let damaged = |from: usize, to: usize| {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0xFF);
        std::fs::write(&path, bytes).unwrap();
        read_header(&disk)
    };
    assert_eq!(damaged(0, 8192).unwrap(), header());
    assert_eq!(damaged(8192, 16384).unwrap(), header());
    assert!(matches!(damaged(0, 16384), Err(StoreError::Damaged { .. })));
    // A change reaches both copies: what was revoked opens nothing any more.
    let mut changed = header();
    let random = SlotRandom { salt: [6; 16], nonce: [7; 24] };
    changed.add_slot(&key(), &Secret::KeyFile(&[9; 32]), "new", Argon2Params::default(), &random).unwrap();
    changed.remove_slot(1).unwrap();
    std::fs::write(&path, &whole).unwrap();
    write_header(&disk, &changed).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[..8192], bytes[8192..]);
    assert!(read_header(&disk).unwrap().unlock(&Secret::KeyFile(&[3; 32])).is_err());
    assert!(read_header(&disk).unwrap().unlock(&Secret::KeyFile(&[9; 32])).is_ok());
}
