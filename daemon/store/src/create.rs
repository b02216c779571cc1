//! Creation: once, and complete or not at all.

use hearth_audit::{Chain, EpochKeys};
use hearth_vault::{DataKey, Domain, Header};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::index::{Checkpoint, INDEX, Index, nonce, random};
use crate::keys_file::{KEYS, write_to};
use crate::segment::{self, HEADER, SegmentKeys};
use crate::store::Options;

pub(crate) const TEMPORARY: &str = ".tmp";
pub(crate) const BALLAST: &str = "ballast";

/// Creates a store that `data_key` opens. Everything is written under temporary
/// names, synced and renamed; the marker comes last. After a cut in the middle
/// the next creation starts over. A folder that holds anything else is refused
/// and left as it is.
pub fn create(options: &Options, data_key: &DataKey, header: &Header) -> Result<(), StoreError> {
    let disk = &*options.disk;
    let io = |name: &'static str| move |e: std::io::Error| StoreError::io(name, &e);
    // Not even a lock file is left in a folder that is somebody else's.
    if !options.marked()? {
        refuse_foreign(&disk.list().map_err(io("store"))?)?;
    }
    if !disk.lock().map_err(io("lock"))? {
        return Err(StoreError::Locked);
    }
    let created = create_locked(options, data_key, header);
    disk.unlock();
    created
}

fn create_locked(options: &Options, data_key: &DataKey, header: &Header) -> Result<(), StoreError> {
    let disk = &*options.disk;
    let io = |name: &'static str| move |e: std::io::Error| StoreError::io(name, &e);
    let names = disk.list().map_err(io("store"))?;
    if options.marked()? {
        let complete = [KEYS, INDEX].iter().all(|n| names.iter().any(|m| m == n));
        return Err(if complete {
            StoreError::AlreadyInitialized
        } else {
            StoreError::Missing(INDEX.to_owned())
        });
    }
    clear_unfinished(disk, &names)?;
    let journal = data_key.domain(Domain::Journal);
    let audit = data_key.domain(Domain::Audit);
    let keys = EpochKeys::first(random(), random());
    let (chain, certificate) = Chain::create(header.store_id, keys.clone(), audit.subkey("arguments"));
    let first = segment::Header {
        number: 0,
        first_ordinal: 0,
        certificate,
        keys: Some(SegmentKeys::new(keys, random())),
    };
    let temporary = |name: &str| format!("{name}{TEMPORARY}");
    let segment_name = segment::name(0);
    write_segment(disk, &temporary(&segment_name), &first.encode(&journal, nonce()), options.segment_bytes)?;
    let state = chain.state();
    let checkpoint = Checkpoint {
        store: header.store_id,
        segment: 0,
        offset: HEADER as u64,
        last_record: 0,
        ordinal: 0,
        next_seq: state.next_seq,
        last_hash: state.last_hash,
        open: Vec::new(),
        clean: true,
    };
    Index::create(disk, &temporary(INDEX), &journal, &checkpoint)?;
    write_to(disk, &temporary(KEYS), header)?;
    write_ballast(disk, options.ballast_bytes);
    for name in [&segment_name[..], INDEX, KEYS] {
        disk.rename(&temporary(name), name).map_err(|e| StoreError::io(name, &e))?;
        // In this order on the disk too, see `clear_unfinished`.
        disk.sync_dir().map_err(io("store"))?;
    }
    options.mark()
}

/// Removes what a creation that was cut short left behind. Nothing was ever
/// acknowledged of that, and nothing else is touched: files that are not ours, and
/// a store whose marker was lost, are refused.
fn clear_unfinished(disk: &dyn Disk, names: &[String]) -> Result<(), StoreError> {
    let io = |e: std::io::Error| StoreError::io("store", &e);
    refuse_foreign(names)?;
    let first = segment::name(0);
    let here = |name: &str| names.iter().any(|n| n == name);
    if !here(&first) {
        // The first segment gets its name before the others do.
        if here(INDEX) || here(KEYS) {
            return Err(StoreError::Missing(first));
        }
    } else if has_record(disk, &first)? {
        return Err(StoreError::AlreadyInitialized);
    }
    // And loses it after them, so that a cut in between leaves what is understood.
    for name in names.iter().filter(|n| **n != "lock" && **n != first) {
        disk.remove(name).map_err(io)?;
    }
    disk.sync_dir().map_err(io)?;
    if here(&first) { disk.remove(&first).map_err(io) } else { Ok(()) }
}

/// Refuses names that no creation leaves behind.
fn refuse_foreign(names: &[String]) -> Result<(), StoreError> {
    let first = segment::name(0);
    for name in names.iter().map(String::as_str).filter(|n| *n != "lock" && *n != BALLAST) {
        let plain = name.strip_suffix(TEMPORARY).unwrap_or(name);
        if segment::number(plain).is_some_and(|n| n > 0) {
            return Err(StoreError::AlreadyInitialized);
        }
        if ![&first[..], INDEX, KEYS].contains(&plain) {
            return Err(StoreError::NotEmpty(name.to_owned()));
        }
    }
    Ok(())
}

fn has_record(disk: &dyn Disk, segment: &str) -> Result<bool, StoreError> {
    let io = |e| StoreError::io(segment, &e);
    let mut record = [0; segment::RECORD];
    let file = disk.open(segment, false).map_err(io)?;
    if file.len().map_err(io)? < (HEADER + record.len()) as u64 {
        return Ok(false);
    }
    file.read_at(&mut record, HEADER as u64).map_err(io)?;
    Ok(record.iter().any(|b| *b != 0))
}

/// Writes a segment file: the header block and zeros, synced.
pub(crate) fn write_segment(
    disk: &dyn Disk,
    name: &str,
    header: &[u8],
    length: usize,
) -> Result<(), StoreError> {
    let io = |e| StoreError::io(name, &e);
    let file = disk.open(name, true).map_err(io)?;
    let mut bytes = header.to_vec();
    bytes.resize(length.max(HEADER), 0);
    file.write_at(&bytes, 0).map_err(io)?;
    file.sync().map_err(io)
}

/// A full disk is no reason to fail here: the ballast is written again later.
pub(crate) fn write_ballast(disk: &dyn Disk, bytes: usize) {
    if bytes == 0 {
        return;
    }
    let written = disk.open(BALLAST, true).and_then(|file| {
        if file.len()? < bytes as u64 {
            file.write_at(&vec![0xBA; bytes], 0)?;
        }
        Ok(())
    });
    if written.is_err() {
        let _ = disk.remove(BALLAST);
    }
}
