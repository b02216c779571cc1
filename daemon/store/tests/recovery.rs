//! What must still hold after something went wrong: a group whose end was lost,
//! a lost marker, a log without its beginning, a failed write of the index.

#![allow(clippy::unwrap_used)]

mod common;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use common::{Disks, Run, key, note};
use hearth_store::sim::SimDisk;
use hearth_store::{AuditLog, Batch, Disk, DiskFile, Options, Store, StoreError, Table, Write};

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
    assert!(matches!(lost().create(), Err(StoreError::AlreadyInitialized)));
    assert_eq!(disks.killed().open().unwrap().1.entries, 1);
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

/// A disk without room for new files.
#[derive(Debug)]
struct Full {
    disk: SimDisk,
    full: AtomicBool,
}

impl Disk for Full {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        if create && self.full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.disk.open(name, create)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn lock(&self) -> io::Result<bool> {
        self.disk.lock()
    }
    fn unlock(&self) {
        self.disk.unlock();
    }
}

#[test]
fn a_full_disk_is_told_as_such_and_the_store_goes_on_when_there_is_room() {
    let disks = Disks::default();
    disks.create().unwrap();
    let full = Arc::new(Full { disk: disks.killed().state, full: AtomicBool::new(true) });
    let options = Options { disk: full.clone(), ..disks.options() };
    let (store, _) = Store::open(options, &key()).unwrap();
    let mut written = 0;
    while store.commit_blocking(note("before")).is_ok() {
        written += 1;
    }
    let len = full.disk.content("journal-00000000.seg").unwrap().len();
    for _ in 0..50 {
        let refused = store.commit_blocking(note("refused"));
        assert!(matches!(refused, Err(StoreError::Full)), "{refused:?}");
    }
    assert_eq!(full.disk.content("journal-00000000.seg").unwrap().len(), len, "the segment does not grow");
    full.full.store(false, Ordering::Relaxed);
    store.commit_blocking(note("after")).unwrap();
    store.close_blocking().unwrap();
    let report = AuditLog::new(&full.disk, &key()).verify(None, None).unwrap();
    assert_eq!((report.entries, report.finding), (written + 1, None));
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
