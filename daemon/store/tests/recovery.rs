//! What must still hold after something went wrong: a group whose end was lost,
//! a lost marker, a log without its beginning, a failed write of the index.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Disks, Run, note};
use hearth_store::{Batch, StoreError, Table, Write};

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
