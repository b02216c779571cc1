//! What must still hold after something went wrong: a group whose end was lost,
//! a lost marker, a log without its beginning, a failed write of the index.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Condvar, Mutex};

use common::{Disks, Run, key, note};
use hearth_store::sim::{Rng, SimDisk};
use hearth_store::{AuditLog, Batch, Disk, StoreError, Table, Write};

/// Nine batches of which eight wait while the first is written: they share one
/// write and one sync.
fn grouped() -> Disks {
    let disks = Disks::default();
    disks.create().unwrap();
    let (store, _) = disks.open().unwrap();
    let gate = Arc::new((Mutex::new(0), Condvar::new()));
    let held = gate.clone();
    disks.state.watch(Arc::new(move |_, _: &SimDisk| {
        let mut waiting = held.0.lock().unwrap();
        while *waiting < 8 {
            waiting = held.1.wait(waiting).unwrap();
        }
    }));
    let first = {
        let store = store.clone();
        std::thread::spawn(move || store.commit_blocking(note("first")))
    };
    let mut futures = Vec::new();
    for n in 0..8 {
        let store = store.clone();
        let mut future = Box::pin(async move { store.commit(note(&format!("note {n}"))).await });
        // The first poll puts the request into the queue.
        let waker = std::task::Waker::noop();
        assert!(future.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
        futures.push(future);
        *gate.0.lock().unwrap() += 1;
        gate.1.notify_all();
    }
    first.join().unwrap().unwrap();
    store.checkpoint_blocking().unwrap();
    let figures = store.figures();
    assert_eq!(figures.batches, 9);
    assert!(figures.syncs < 9, "batches that wait together share a sync: {figures:?}");
    disks.state.watch(Arc::new(|_, _: &SimDisk| {}));
    disks.killed()
}

#[test]
fn a_group_whose_end_is_lost_is_refused() {
    let disks = grouped();
    let name = "journal-00000000.seg";
    let bytes = disks.state.content(name).unwrap();
    let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    for from in (4096..used).step_by(16) {
        let image = disks.killed();
        let mut short = bytes.clone();
        short[from..].fill(0);
        image.state.set_content(name, Some(short));
        assert!(matches!(image.open(), Err(StoreError::Damaged { .. })), "from {from} of {used}");
    }
}

#[test]
fn inv_10_a_used_store_without_its_marker_is_not_replaced() {
    let disks = Disks::default();
    disks.create().unwrap();
    let (store, _) = disks.open().unwrap();
    let lost = || Disks { marker: SimDisk::default(), ..disks.killed() };
    // Nothing was ever written: creation may start over.
    lost().create().unwrap();
    store.commit_blocking(note("precious")).unwrap();
    assert!(matches!(lost().create(), Err(StoreError::Unmarked(name)) if name == "journal-00000000.seg"));
    assert_eq!(disks.killed().open().unwrap().1.entries, 1);
}

/// INV-10: whatever a folder holds, creation removes nothing but what a creation
/// that was cut short left behind.
#[test]
fn inv_10_creation_touches_nothing_that_is_not_its_own() {
    #[track_caller]
    fn check(disks: &Disks, what: &str) -> StoreError {
        let image = Disks { marker: SimDisk::default(), ..disks.killed() };
        let names = image.state.list().unwrap();
        let before: Vec<_> = names.iter().map(|n| image.state.content(n)).collect();
        let refused = image.create().expect_err(what);
        assert_eq!(image.state.list().unwrap(), names, "{what}");
        assert_eq!(names.iter().map(|n| image.state.content(n)).collect::<Vec<_>>(), before, "{what}");
        assert!(!image.marked(), "{what}");
        refused
    }
    let fresh = || {
        let disks = Disks::default();
        disks.create().unwrap();
        disks.killed()
    };
    let names =
        ["letter.txt", "letter.tmp", "journal.seg", "journal-0.seg", ".hidden", "store.redb.old", "keys2"];
    for foreign in names {
        for disks in [Disks::default(), fresh()] {
            disks.state.set_content(foreign, Some(b"Dear all,".to_vec()));
            assert!(matches!(check(&disks, foreign), StoreError::NotEmpty(name) if name == foreign));
        }
    }
    // A used store that lost its marker and any one of its files.
    for turns in [1, 10] {
        let run = Run::new(Disks::default());
        run.script(11, turns).unwrap();
        let whole = run.disks.killed();
        check(&whole, "nothing else lost");
        for name in whole.state.list().unwrap() {
            let disks = whole.killed();
            disks.state.set_content(&name, None);
            check(&disks, &format!("{name} lost, {turns} turns"));
        }
        // Its first segment lost what it held, as after a file system was repaired.
        let first = "journal-00000000.seg";
        let bytes = whole.state.content(first).unwrap();
        for keep in [0, 512, 4096, 4097, 4119] {
            for zeros in [0, bytes.len() - keep] {
                let disks = whole.killed();
                for name in whole.state.list().unwrap().into_iter().filter(|n| n.ends_with(".seg")) {
                    disks.state.set_content(&name, None);
                }
                disks.state.set_content(first, Some([&bytes[..keep], &vec![0; zeros]].concat()));
                let refused = check(&disks, &format!("{keep} bytes and {zeros} zeros, {turns} turns"));
                let part = if [512, 4096].contains(&keep) && zeros > 0 { "store.redb" } else { first };
                assert!(
                    matches!(&refused, StoreError::Unmarked(name) if name == part),
                    "{keep}, {zeros}: {refused}"
                );
            }
        }
    }
    // What was never used may be made again.
    let unused = Disks { marker: SimDisk::default(), ..fresh() };
    unused.create().unwrap();
}

/// A file that somebody put into the folder later is left alone.
#[test]
fn inv_10_opening_removes_only_unfinished_parts_of_the_store() {
    let disks = Disks::default();
    disks.create().unwrap();
    for (name, stays) in [("letter.tmp", true), ("journal-00000001.seg.tmp", false), ("keys.tmp", false)] {
        disks.state.set_content(name, Some(b"Dear all,".to_vec()));
        disks.killed().open().unwrap();
        let image = disks.killed();
        drop(image.open().unwrap());
        assert_eq!(image.state.content(name).is_some(), stays, "{name}");
    }
}

/// An older copy of the index beside a newer journal: its rows are gone with the
/// keys of the sealed segments, and that is told.
#[test]
fn inv_10_an_older_index_is_refused() {
    let disks = Disks::default();
    disks.create().unwrap();
    let (store, _) = disks.open().unwrap();
    let row =
        |n| Write { table: Table::History, partition: b"x".to_vec(), ordinal: n, value: Some(vec![7; 900]) };
    let mut copies = Vec::new();
    for n in 0..60 {
        store.commit_blocking(Batch::new().put([row(n)])).unwrap();
        if n % 10 == 5 {
            store.checkpoint_blocking().unwrap();
            copies.push((store.figures().segment, disks.state.content("store.redb").unwrap()));
        }
    }
    let last = store.figures().segment;
    store.close_blocking().unwrap();
    assert!(last > 2, "the journal rotated");
    let older: Vec<_> = copies.into_iter().filter(|(segment, _)| *segment < last).collect();
    let mut refused = 0;
    for (segment, copy) in older {
        let image = disks.killed();
        image.state.set_content("store.redb", Some(copy));
        match image.open() {
            Err(StoreError::Damaged { what, .. }) if what.contains("older copy") => refused += 1,
            Err(error) => panic!("from segment {segment} of {last}: {error}"),
            // It was copied right before a rotation, and the journal has the rest.
            Ok((store, _)) => {
                let whole = (0..60).all(|n| store.get(Table::History, b"x", n).unwrap().is_some());
                assert!(whole, "from segment {segment} of {last}: rows are gone");
            }
        }
    }
    assert!(refused > 2, "only {refused} were refused");
    assert!(disks.killed().open().is_ok());
}

/// The process is killed while its last batch is in the cache of the system only,
/// the next one starts, and the power goes: at any operation of that start.
#[test]
fn a_kill_and_then_a_power_cut_leave_a_store_that_opens() {
    let (mut cuts, mut lost) = (0, 0);
    for (seed, rotates) in (0..40).flat_map(|seed| [(seed, false), (seed, true)]) {
        let disks = Disks::default();
        disks.create().unwrap();
        let (store, _) = disks.open().unwrap();
        store.commit_blocking(note("acknowledged")).unwrap();
        while rotates && store.figures().segment == 0 {
            store.append_blocking(note("filling")).unwrap();
        }
        store.append_blocking(note(&"in the cache ".repeat(100))).unwrap();
        let entries = store.audit_end().0;
        let mut operations = 1;
        loop {
            let image = disks.killed();
            image.state.freeze_at(operations);
            common::start(&image);
            let came_through = image.state.operations() < operations;
            let image = image.power_cut(&mut Rng(seed << 8 | operations));
            match image.open() {
                Ok((_, opened)) => {
                    assert!((1..=entries).contains(&opened.entries), "operation {operations}, seed {seed}");
                    lost += u64::from(opened.entries < entries);
                }
                Err(error) => panic!("operation {operations}, seed {seed}: {error}"),
            }
            cuts += 1;
            if came_through {
                break;
            }
            operations += 1;
        }
    }
    println!("kills_then_cuts {cuts} refused 0, without the last batch {lost}");
    assert!(lost > 10, "what was in the cache is lost now and then: {lost} of {cuts}");
}

#[test]
fn a_log_without_its_beginning_is_refused() {
    let disks = Disks::default();
    Run::new(disks.clone()).script(11, 10).unwrap();
    let disks = disks.killed();
    disks.state.set_content("journal-00000000.seg", None);
    assert!(matches!(disks.open(), Err(StoreError::Missing(_))));
    let (disk, key) = (disks.state.clone(), key());
    assert!(matches!(AuditLog::new(&disk, &key).verify(None, None), Err(StoreError::Missing(_))));
}

#[test]
fn after_a_failed_write_nothing_is_written_and_everything_is_read() {
    let row =
        |n| Write { table: Table::History, partition: b"x".to_vec(), ordinal: n, value: Some(vec![7; 900]) };
    let mut index_failed = 0;
    for n in 1..=24 {
        let disks = Disks::default();
        let run = Run::new(disks.clone());
        run.script(5, 3).unwrap();
        let disks = disks.killed();
        let (store, _) = disks.open().unwrap();
        disks.state.fail_at(n);
        let first =
            store.commit_blocking(Batch::new().put([row(1)])).and_then(|()| store.checkpoint_blocking());
        let Err(first) = first else { continue };
        assert!(matches!(first, StoreError::Io { .. }), "the first error says what happened: {first}");
        index_failed += u32::from(first.to_string().contains("store.redb"));
        let operations = disks.state.operations();
        for _ in 0..3 {
            let refused = [store.commit_blocking(note("b")), store.checkpoint_blocking()];
            for refused in refused {
                assert!(matches!(refused, Err(StoreError::Frozen(_))), "operation {n}: {refused:?}");
            }
        }
        assert_eq!(disks.state.operations(), operations, "nothing is tried again");
        if let Err(what) = common::check_rows(&store, &run.newest()) {
            panic!("operation {n}: reads do not go on: {what}");
        }
        // And what was acknowledged is there after a restart.
        if n > 2 {
            assert!(store.get(Table::History, b"x", 1).unwrap().is_some(), "operation {n}, before");
            let (store, _) = disks.killed().open().unwrap();
            assert!(store.get(Table::History, b"x", 1).unwrap().is_some(), "operation {n}");
        }
    }
    assert!(index_failed > 5, "only {index_failed} points lay in the index");
}
