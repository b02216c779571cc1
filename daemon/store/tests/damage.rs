//! Damaged stores: what was written, or a typed error. Never a panic, never a
//! store that silently has less.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use common::{Disks, Run, State, check_rows};
use hearth_audit::Remembered;
use hearth_store::sim::Rng;
use hearth_store::{AuditLog, Store, StoreError};
use hearth_vault::DataKey;

const STEP: usize = 4096;
const FLIPS: u64 = 1_000;

/// A store after some turns, closed, with what must be in it.
fn sound() -> (Disks, State, Remembered) {
    let disks = Disks::default();
    let run = Run::new(disks.clone());
    run.script(11, 10).unwrap();
    let disks = disks.killed();
    let report = AuditLog::new(&disks.state, &common::key()).verify(None, None).unwrap();
    assert_eq!(report.finding, None);
    (disks, run.newest(), report.end)
}

fn files(disks: &Disks) -> BTreeMap<String, Vec<u8>> {
    let names = hearth_store::Disk::list(&disks.state).unwrap();
    let content = |name: String| disks.state.content(&name).map(|bytes| (name, bytes));
    names.into_iter().filter_map(content).filter(|(_, bytes)| !bytes.is_empty()).collect()
}

/// What became of a damaged store.
#[derive(Debug, Default)]
struct Tally {
    /// Opened, with everything in it.
    whole: u64,
    /// Opened; a read or the verification of the log named the damage.
    named: u64,
    /// Refused.
    refused: u64,
}

/// Opens the store and looks at everything.
fn check(disks: &Disks, state: &State, end: &Remembered, what: &str, tally: &mut Tally) {
    let opened = match disks.killed().open() {
        Ok(opened) => opened,
        Err(StoreError::NotInitialized | StoreError::AlreadyInitialized) => {
            panic!("{what}: it counts as never created")
        }
        Err(error) => {
            assert!(!error.remedy().is_empty() && !error.to_string().is_empty());
            tally.refused += 1;
            return;
        }
    };
    let rows = check_rows(&opened.0, state);
    if let Err(found) = &rows {
        assert!(found.contains("is damaged"), "{what}: it opens and silently has other rows: {found}");
    }
    let log = AuditLog::new(&disks.state, &common::key()).verify(None, Some(*end));
    let complete = log.as_ref().is_ok_and(|r| r.finding.is_none() && r.end == *end);
    let found = log.is_err() || log.is_ok_and(|r| r.finding.is_some());
    assert!(complete || found, "{what}: the log silently ends elsewhere");
    if rows.is_ok() && complete { tally.whole += 1 } else { tally.named += 1 }
}

/// INV-10: damage stops the store, it is never replaced by an empty one.
#[test]
fn inv_10_every_truncation_of_every_file_is_data_or_a_typed_error() {
    common::hush_redb();
    let (disks, state, end) = sound();
    let (mut tally, mut count) = (Tally::default(), 0);
    for (name, bytes) in files(&disks) {
        for len in (0..bytes.len()).step_by(STEP) {
            let image = disks.killed();
            image.state.set_content(&name, Some(bytes[..len].to_vec()));
            check(&image, &state, &end, &format!("{name} cut to {len}"), &mut tally);
            count += 1;
        }
    }
    println!("damage_truncations {count} {tally:?}");
    assert!(count > 20 && tally.refused > 10, "{count} {tally:?}");
}

#[test]
fn inv_10_every_byte_flip_is_data_or_a_typed_error() {
    common::hush_redb();
    let (disks, state, end) = sound();
    let files: Vec<_> = files(&disks).into_iter().collect();
    let (mut tally, mut rng) = (Tally::default(), Rng(42));
    for n in 0..FLIPS {
        let (name, bytes) = &files[(n % files.len() as u64) as usize];
        let mut bytes = bytes.clone();
        // Half of them where something is written.
        let used = bytes.iter().rposition(|b| *b != 0).map_or(bytes.len(), |at| at + 1);
        let at = rng.below(if n % 2 == 0 { used } else { bytes.len() } as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        let image = disks.killed();
        image.state.set_content(name, Some(bytes));
        check(&image, &state, &end, &format!("{name}, byte {at}"), &mut tally);
    }
    println!("damage_flips {FLIPS} {tally:?}");
    assert!(tally.refused > 5 && tally.named > 100 && tally.whole > 100, "{tally:?}");
}

#[test]
fn inv_10_a_missing_file_is_named_and_nothing_is_created_in_its_place() {
    let (disks, ..) = sound();
    for (name, _) in files(&disks) {
        let image = disks.killed();
        image.state.set_content(&name, None);
        // Segments before the checkpoint hold audit entries only: the log names those.
        let opened = image.killed().open();
        let log = AuditLog::new(&image.state, &common::key()).verify(None, None);
        let named = matches!(opened, Err(StoreError::Missing(_)));
        let found = log.is_err() || log.is_ok_and(|r| r.finding.is_some());
        assert!(named || found, "{name} is missed by nobody");
        assert!(image.create().is_err(), "{name}: created over a store");
        assert!(image.state.content(&name).is_none());
    }
}

#[test]
fn another_key_is_told_apart_from_damage() {
    let (disks, ..) = sound();
    let other = Store::open(disks.options(), &DataKey::from_bytes([8; 32]));
    assert!(matches!(other, Err(StoreError::WrongKey)), "{other:?}");
}

/// The end of the journal that the index knows of is gone: never accepted.
#[test]
fn a_journal_shorter_than_the_index_remembers_is_refused() {
    let (disks, ..) = sound();
    let name = files(&disks).into_keys().rfind(|n| n.ends_with(".seg")).unwrap();
    let bytes = disks.state.content(&name).unwrap();
    let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    let mut refused = 0;
    for from in (STEP..used).step_by(16) {
        let image = disks.killed();
        let mut short = bytes.clone();
        short[from..].fill(0);
        image.state.set_content(&name, Some(short));
        assert!(image.open().is_err(), "{name}: the end from {from} on is gone, of {used}");
        refused += 1;
    }
    println!("journal_ends_lost {refused} accepted 0");
}

/// The lines of an export of what is on the disks.
fn export(disks: &Disks, remembered: Option<Remembered>) -> Result<Vec<String>, StoreError> {
    let mut lines = Vec::new();
    let result = AuditLog::new(&disks.state, &common::key()).export(remembered, &mut |line| {
        lines.push(line.to_owned());
        Ok(())
    });
    result.map(|()| lines)
}

/// Segments that are whole in themselves and do not belong together: nothing
/// vouches for them.
#[test]
fn segments_of_different_times_are_not_exported() {
    let disks = Disks::default();
    disks.create().unwrap();
    let (store, _) = disks.open().unwrap();
    let mut older = BTreeMap::new();
    while store.figures().segment < 4 {
        for n in 0..5 {
            store.commit_blocking(common::note(&format!("note {n}"))).unwrap();
        }
        let name = format!("journal-{:08}.seg", store.figures().segment);
        let content = disks.state.content(&name).unwrap();
        older.entry(name).or_insert(content);
    }
    store.commit_blocking(common::note("the last one")).unwrap();
    store.close_blocking().unwrap();
    assert_eq!(older.len(), 5);
    let (size, hash) = store.audit_end();
    let end = Remembered { size, hash };
    export(&disks.killed(), Some(end)).unwrap();
    for (name, content) in older {
        let image = disks.killed();
        image.state.set_content(&name, Some(content));
        for remembered in [Some(end), None] {
            // A newest segment of an earlier time is sound in itself: who remembers, knows.
            let sound = remembered.is_none() && name.ends_with("4.seg");
            let refused = match export(&image, remembered) {
                Ok(_) => false,
                Err(StoreError::Damaged { file, .. }) => file.ends_with(".seg"),
                Err(error) => panic!("{name}: {error}"),
            };
            assert_eq!(refused, !sound, "{name}, remembered {remembered:?}");
            let report = AuditLog::new(&image.state, &common::key()).verify(None, remembered).unwrap();
            assert_eq!(report.finding.is_none(), sound, "{name}, remembered {remembered:?}");
        }
    }
}

/// What cannot be read to its end gets no signature that says it could.
#[test]
fn a_damaged_log_is_not_exported_as_a_whole_one() {
    let (disks, _, end) = sound();
    let name = files(&disks).into_keys().rfind(|n| n.ends_with(".seg")).unwrap();
    let bytes = disks.state.content(&name).unwrap();
    let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    let export = |image: &Disks| {
        let mut lines = export(image, Some(end))?;
        // An ordinary head less is no entry less.
        lines.retain(|line| !line.contains("\"closing\":false"));
        Ok::<_, StoreError>(lines)
    };
    let whole = export(&disks).unwrap();
    let (mut refused, mut harmless) = (0, 0);
    let mut check = |changed: Vec<u8>, what: String| {
        let image = disks.killed();
        image.state.set_content(&name, Some(changed));
        match export(&image) {
            // Bytes that mean nothing were changed, such as those between records.
            Ok(lines) => {
                harmless += 1;
                assert!(lines == whole, "{what}: {} lines of {}", lines.len(), whole.len());
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, StoreError::Damaged { .. }), "{what}: {error}");
            }
        }
    };
    for at in (STEP..used).step_by(61) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        check(flipped, format!("byte {at} of {used} changed"));
        let mut cut = bytes.clone();
        cut[at..].fill(0);
        check(cut, format!("cut off at {at} of {used}"));
    }
    println!("exports_refused {refused} harmless {harmless}");
    assert!(refused > 10 * harmless, "{refused} {harmless}");
}
