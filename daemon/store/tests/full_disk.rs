//! A full disk: ordinary batches are refused as such, ends are recorded from the
//! reserve, everything is read, and all goes on once there is room.

#![allow(clippy::unwrap_used)]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Disks, key, note};
use hearth_store::sim::{Rng, SimDisk};
use hearth_store::{AuditLog, Batch, Disk, DiskFile, Options, Store, StoreError, Table, Write};

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

/// A disk that cannot grow: ends are still recorded, reads go on, and everything
/// goes on once there is room.
#[test]
fn on_a_full_disk_ends_are_recorded_from_the_reserve() {
    let disks = Disks::default();
    let options = Options { ballast_bytes: 192 * 1024, ..disks.options() };
    disks.create().unwrap();
    let (store, _) = Store::open(options.clone(), &key()).unwrap();
    let ballast = || disks.state.content("ballast").map_or(0, |bytes| bytes.len());
    assert_eq!(ballast(), options.ballast_bytes);
    disks.state.set_capacity(Some(disks.state.used()));
    let row =
        |n| Write { table: Table::History, partition: b"x".to_vec(), ordinal: n, value: Some(vec![7; 900]) };
    let mut rows = 0;
    let refused = loop {
        match store.commit_blocking(Batch::new().put([row(rows)])) {
            Ok(()) => rows += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full), "{refused}");
    assert_eq!(ballast(), options.ballast_bytes, "the reserve is not for this");
    let mut ends = 0;
    while store.commit_blocking(note("end").closing()).is_ok() {
        ends += 1;
        assert!(ends < 10_000);
        if ballast() == 0 {
            let refused = store.commit_blocking(note("of a turn"));
            assert!(matches!(refused, Err(StoreError::Full)), "nor is a segment made from it: {refused:?}");
        }
    }
    println!("full_disk rows {rows} ends {ends}");
    assert!(ends > 100, "only {ends} ends fit the reserve");
    assert_eq!(ballast(), 0);
    let again = store.commit_blocking(Batch::new().put([row(rows)]));
    assert!(matches!(again, Err(StoreError::Full)), "{again:?}");
    for n in 0..rows {
        assert!(store.get(Table::History, b"x", n).unwrap().is_some(), "row {n} is read");
    }
    disks.state.set_capacity(None);
    store.commit_blocking(Batch::new().put([row(rows)])).unwrap();
    store.checkpoint_blocking().unwrap();
    assert_eq!(ballast(), options.ballast_bytes, "given back");
    store.close_blocking().unwrap();
    let (store, _) = disks.killed().open().unwrap();
    assert!((0..=rows).all(|n| store.get(Table::History, b"x", n).unwrap().is_some()));
    let report = AuditLog::new(&disks.state, &key()).verify(None, None).unwrap();
    assert_eq!((report.entries, report.finding), (ends, None));
}

/// The reserve and room for a few segments.
fn options(disks: &Disks) -> Options {
    Options { ballast_bytes: 96 * 1024, segment_bytes: 24 * 1024, ..disks.options() }
}

/// Whatever is asked of it, restarts and kills among it: a disk that is full again
/// and again refuses with one error only, and nothing that was acknowledged is lost.
#[test]
fn on_disks_that_fill_up_at_random_nothing_is_lost_and_nothing_freezes() {
    let (mut refused, mut refused_ends, mut written) = (0_u64, 0_u64, 0_u64);
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut disks = Disks::default();
        disks.create().unwrap();
        let mut store = Store::open(options(&disks), &key()).unwrap().0;
        let mut room = Some(disks.state.used() + rng.below(64 * 1024));
        let (mut rows, mut entries, mut n) = (Vec::new(), 0, 0);
        for step in 0..200 {
            disks.state.set_capacity(room);
            let mut told = |result: Result<(), StoreError>, closing: bool| match result {
                Ok(()) => true,
                Err(StoreError::Full) => {
                    *if closing { &mut refused_ends } else { &mut refused } += 1;
                    false
                }
                Err(error) => panic!("seed {seed}, step {step}: {error}"),
            };
            match rng.below(16) {
                0 => _ = told(store.checkpoint_blocking(), false),
                1 => {
                    told(store.close_blocking(), false);
                    store = Store::open(options(&disks), &key()).unwrap().0;
                }
                2 => {
                    disks = disks.killed();
                    disks.state.set_capacity(room);
                    store = Store::open(options(&disks), &key()).unwrap().0;
                }
                3 => room = (rng.below(4) > 0).then(|| disks.state.used() + rng.below(16 * 1024)),
                k => {
                    let value = Some(vec![7; 100 + rng.below(2_000) as usize]);
                    let row = Write { table: Table::History, partition: b"x".to_vec(), ordinal: n, value };
                    let batch = Batch { closing: k < 8, ..note("n").put([row]) };
                    if told(store.commit_blocking(batch), k < 8) {
                        rows.push(n);
                        entries += 1;
                    }
                    n += 1;
                }
            }
            let some = rows.get(rng.below(rows.len() as u64) as usize);
            assert!(
                some.is_none_or(|n| store.get(Table::History, b"x", *n).unwrap().is_some()),
                "reads go on"
            );
        }
        disks.state.set_capacity(None);
        store.commit_blocking(note("there is room")).unwrap();
        store.checkpoint_blocking().unwrap();
        assert_eq!(
            disks.state.content("ballast").unwrap().len(),
            options(&disks).ballast_bytes,
            "given back"
        );
        store.close_blocking().unwrap();
        let (store, opened) = Store::open(options(&disks.killed()), &key()).unwrap();
        assert_eq!((opened.entries, opened.unclean), (entries + 1, false), "seed {seed}");
        let found: Vec<_> = store.scan(Table::History, b"x", 0..=u64::MAX, 10_000, false).unwrap();
        assert!(
            found.iter().map(|(n, _)| *n).eq(rows.iter().copied()),
            "seed {seed}: all rows, and no other"
        );
        assert_eq!(AuditLog::new(&disks.state, &key()).verify(None, None).unwrap().finding, None);
        written += rows.len() as u64;
    }
    println!("full_disk_steps written {written} refused {refused} of ends {refused_ends}");
    assert!(written > 1_000 && refused > 500, "{written} {refused}");
}

/// A refusal touches neither the journal nor the index: it is cheap, however often
/// it is asked for.
#[test]
fn a_refused_batch_costs_no_sync() {
    let disks = Disks::default();
    disks.create().unwrap();
    let (store, _) = disks.open().unwrap();
    disks.state.set_capacity(Some(disks.state.used()));
    while store.commit_blocking(note("filling")).is_ok() {}
    let (operations, figures) = (disks.state.operations(), store.figures());
    for _ in 0..100 {
        assert!(matches!(store.commit_blocking(note("refused")), Err(StoreError::Full)));
    }
    let each = (disks.state.operations() - operations) / 100;
    println!("refused_batch operations {each}");
    assert!(each <= 3, "make a file, write to it, remove it: {each}");
    assert_eq!(store.figures(), figures);
}
