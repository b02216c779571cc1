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
/// the next creation starts over. What it cannot have left behind is refused by
/// name, and the folder stays as it is: a foreign file ([`StoreError::NotEmpty`]),
/// or a part of a store that was used ([`StoreError::Unmarked`]).
pub fn create(options: &Options, data_key: &DataKey, header: &Header) -> Result<(), StoreError> {
    let disk = &*options.disk;
    let io = |name: &'static str| move |e: std::io::Error| StoreError::io(name, &e);
    // Not even a lock file is left in a folder that is somebody else's.
    if !options.marked()? {
        check_unfinished(disk, &disk.list().map_err(io("store"))?)?;
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
        let parts = [KEYS.to_owned(), INDEX.to_owned(), segment::name(0)];
        let missing = parts.into_iter().find(|part| !names.contains(part));
        return Err(missing.map_or(StoreError::AlreadyInitialized, StoreError::Missing));
    }
    check_unfinished(disk, &names)?;
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
    write_ballast(disk, options.ballast_bytes)?;
    for name in [&segment_name[..], INDEX, KEYS] {
        disk.rename(&temporary(name), name).map_err(|e| StoreError::io(name, &e))?;
        // In this order on the disk too, see `check_unfinished`.
        disk.sync_dir().map_err(io("store"))?;
    }
    options.mark()
}

/// Removes what a creation that was cut short left behind, and nothing else.
fn clear_unfinished(disk: &dyn Disk, names: &[String]) -> Result<(), StoreError> {
    let io = |e: std::io::Error| StoreError::io("store", &e);
    let first = segment::name(0);
    // The first segment loses its name last: a cut in between leaves what is understood.
    for name in names.iter().filter(|n| **n != "lock" && **n != first) {
        disk.remove(name).map_err(io)?;
    }
    disk.sync_dir().map_err(io)?;
    if names.contains(&first) { disk.remove(&first).map_err(io) } else { Ok(()) }
}

/// Refuses what no creation leaves behind. Changes nothing.
fn check_unfinished(disk: &dyn Disk, names: &[String]) -> Result<(), StoreError> {
    let first = segment::name(0);
    let here = |name: &str| names.iter().any(|n| n == name);
    for name in names.iter().filter(|n| *n != "lock" && *n != BALLAST) {
        match own(name) {
            None => return Err(StoreError::NotEmpty(name.clone())),
            Some(plain) if ![&first, INDEX, KEYS].contains(&plain) => {
                return Err(StoreError::Unmarked(name.clone()));
            }
            Some(_) => {}
        }
    }
    // The first segment gets its name before the others do, and every batch lies in
    // it first: where it is whole and empty, nothing was ever acknowledged.
    let used = if !here(&first) {
        [INDEX, KEYS].into_iter().find(|part| here(part))
    } else if !segment::is_unused(disk)? {
        Some(&first[..])
    } else if here(INDEX) && !Index::is_unused(disk)? {
        Some(INDEX)
    } else {
        None
    };
    used.map_or(Ok(()), |part| Err(StoreError::Unmarked(part.to_owned())))
}

/// The name of a part of a store, without the ending of an unfinished one; `None`
/// for what is not ours.
pub(crate) fn own(name: &str) -> Option<&str> {
    let plain = name.strip_suffix(TEMPORARY).unwrap_or(name);
    (segment::number(plain).is_some() || [INDEX, KEYS].contains(&plain)).then_some(plain)
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

/// Makes the reserve when it is not there; [`StoreError::Full`] when it has no room.
pub(crate) fn write_ballast(disk: &dyn Disk, bytes: usize) -> Result<(), StoreError> {
    if bytes == 0 {
        return Ok(());
    }
    let written = disk.open(BALLAST, true).and_then(|file| {
        if file.len()? < bytes as u64 {
            file.write_at(&vec![0xBA; bytes], 0)?;
        }
        Ok(())
    });
    written.map_err(|e| {
        let _ = disk.remove(BALLAST);
        StoreError::io(BALLAST, &e)
    })
}
