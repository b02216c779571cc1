//! Opening: the index tells how far it has come, the journal tells the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use hearth_audit::{Chain, Draft, Kind, Sealed};
use hearth_vault::{DataKey, Domain, DomainKeys};
use serde::Deserialize;

use crate::create::{TEMPORARY, own, write_ballast};
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::index::{Checkpoint, INDEX, Index};
use crate::keys_file::{KEYS, read_header};
use crate::rows::{self, RowKeys};
use crate::segment::{self, END, HEADER, NoRecord, RecordKind, Segment};
use crate::store::{Opened, Options, Store};
use crate::writer::{Batch, Counters, OpenIntents, Writer, note_intent};

/// Numbers of the segments, in order; an error when one is missing in between.
pub(crate) fn segments(disk: &dyn Disk) -> Result<Vec<u32>, StoreError> {
    let names = disk.list().map_err(|e| StoreError::io("journal", &e))?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|n| segment::number(n)).collect();
    numbers.sort_unstable();
    if numbers.first() != Some(&0) {
        return Err(StoreError::Missing(segment::name(0)));
    }
    if let Some(gap) = numbers.windows(2).find(|w| w[1] != w[0] + 1) {
        return Err(StoreError::Missing(segment::name(gap[0] + 1)));
    }
    Ok(numbers)
}

pub(crate) fn open_segment(disk: &dyn Disk, number: u32) -> Result<Arc<dyn DiskFile>, StoreError> {
    let name = segment::name(number);
    disk.open(&name, false).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => StoreError::Missing(name.clone()),
        _ => StoreError::io(&name, &e),
    })
}

/// An audit entry out of its record.
pub(crate) fn parse_entry(plain: &[u8]) -> Option<Sealed> {
    #[derive(Deserialize)]
    struct Seq {
        seq: u64,
    }
    let (mac, line) = plain.split_first_chunk::<32>()?;
    let Seq { seq } = serde_json::from_slice(line).ok()?;
    Some(Sealed { seq, line: line.to_vec(), mac: *mac })
}

/// The state of the journal while it is replayed.
struct Replay {
    chain: Chain,
    ordinal: u64,
    open: OpenIntents,
    last_record: usize,
    since_head: u64,
    replayed: u64,
}

pub(crate) fn open(options: Options, data_key: &DataKey) -> Result<(Store, Opened), StoreError> {
    let disk = options.disk.clone();
    if !options.marked()? {
        return Err(StoreError::NotInitialized);
    }
    if !disk.lock().map_err(|e| StoreError::io("lock", &e))? {
        return Err(StoreError::Locked);
    }
    open_locked(options, data_key).inspect_err(|_| disk.unlock())
}

fn open_locked(options: Options, data_key: &DataKey) -> Result<(Store, Opened), StoreError> {
    let disk = options.disk.clone();
    let header = read_header(&*disk)?;
    let journal = data_key.domain(Domain::Journal);
    let audit = data_key.domain(Domain::Audit);
    let (index, checkpoint) = Index::open(&*disk, RowKeys::new(data_key), journal.clone())?;
    if checkpoint.store != header.store_id {
        return Err(StoreError::damaged(KEYS, "it belongs to another store"));
    }
    if checkpoint.segment == 0 && checkpoint.offset == HEADER as u64 {
        // Creation may have been killed before the marker was on the disk.
        options.mark()?;
    }
    if !checkpoint.clean {
        // After a kill, names may still be in the cache of the system only.
        disk.sync_dir().map_err(|e| StoreError::io("store", &e))?;
    }
    let numbers = segments(&*disk)?;
    let last = match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) if (*first..=*last).contains(&checkpoint.segment) => *last,
        _ => return Err(StoreError::Missing(segment::name(checkpoint.segment))),
    };
    let names = disk.list().map_err(|e| StoreError::io("store", &e))?;
    for name in names.iter().filter(|n| n.ends_with(TEMPORARY) && own(n).is_some()) {
        disk.remove(name).map_err(|e| StoreError::io(name, &e))?;
    }
    let index = Arc::new(index);
    let mut overlay_bytes = 0;
    let mut replay: Option<Replay> = None;
    let mut end = None;
    for number in checkpoint.segment..=last {
        let file = open_segment(&*disk, number)?;
        let read = Segment::read(&*file, number, &journal)?;
        if number < last && read.header.keys.is_some() {
            // A rotation was cut short before the old keys were destroyed.
            segment::Header::erase_keys(&*file).map_err(|e| StoreError::io(&segment::name(number), &e))?;
        }
        let from = if number == checkpoint.segment { checkpoint.offset as usize } else { HEADER };
        let mut state = enter(replay.take(), &read, &checkpoint, &audit)?;
        let to = replay_segment(&read, from, number == last, &mut state, &audit, &index, &mut overlay_bytes)?;
        replay = Some(state);
        end = Some((file, read, to));
    }
    let (Some((file, read, offset)), Some(replay)) = (end, replay) else {
        return Err(StoreError::Missing(segment::name(checkpoint.segment)));
    };
    let keys = read.header.keys.clone().ok_or_else(|| StoreError::Missing(segment::name(last + 1)))?;
    clear_tail(&*file, &read, offset)?;
    if replay.replayed > 0 {
        // After a kill they may still be in the cache of the system only.
        file.sync().map_err(|e| StoreError::io(&segment::name(last), &e))?;
    }
    let state = replay.chain.state();
    let gaps: Vec<Kind> = replay.open.values().cloned().collect();
    let opened = Opened {
        store_id: header.store_id,
        unclean: replay.replayed > 0 || !checkpoint.clean,
        gaps: gaps.clone(),
        entries: state.next_seq,
        last_hash: state.last_hash,
    };
    let counters = Arc::new(Counters::default());
    counters.segment.store(u64::from(last), std::sync::atomic::Ordering::Relaxed);
    *counters.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
        (state.next_seq, state.last_hash);
    // A full disk is no reason to fail here: it is made when there is room.
    let _ = write_ballast(&*disk, options.ballast_bytes);
    let mut writer = Writer {
        index: index.clone(),
        counters: counters.clone(),
        journal,
        audit,
        store_id: header.store_id,
        file,
        segment: last,
        segment_len: read.len(),
        keys,
        chain: replay.chain,
        ordinal: replay.ordinal,
        offset,
        last_record: replay.last_record,
        durable_to: offset,
        since_head: replay.since_head,
        open: replay.open,
        overlay_bytes,
        checkpoint_at: options.checkpoint_bytes,
        indexed: (checkpoint.segment, checkpoint.offset as usize, checkpoint.clean),
        frozen: None,
        options,
    };
    writer.write_now(Batch {
        audit: gaps.into_iter().map(Draft::new).collect(),
        writes: Vec::new(),
        closing: true,
    })?;
    let (store, requests) = Store::new(index, counters);
    std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || writer.run(&requests))
        .map_err(|e| StoreError::io("store-writer", &e))?;
    Ok((store, opened))
}

/// Steps into a segment: from the checkpoint, or from the segment before.
fn enter(
    before: Option<Replay>,
    read: &Segment,
    checkpoint: &Checkpoint,
    audit: &DomainKeys,
) -> Result<Replay, StoreError> {
    let number = read.header.number;
    let file = segment::name(number);
    let certificate = &read.header.certificate;
    if certificate.store != checkpoint.store {
        return Err(StoreError::damaged(&file, "it belongs to another store"));
    }
    // A sealed segment has no keys any more; nothing is appended to it, so that
    // keys which sign nothing can stand in for them.
    let epoch = read
        .header
        .keys
        .as_ref()
        .map_or_else(|| hearth_audit::EpochKeys::first([0; 32], [0; 32]), |k| k.epoch.clone());
    let resume = |state| Chain::resume(checkpoint.store, number, epoch, audit.subkey("arguments"), state);
    match before {
        Some(replay) => {
            let state = replay.chain.state();
            if certificate.first_seq != state.next_seq
                || certificate.prev != state.last_hash
                || read.header.first_ordinal != replay.ordinal
            {
                return Err(StoreError::damaged(&file, "it does not follow the segment before it"));
            }
            Ok(Replay { chain: resume(state), last_record: 0, since_head: 0, ..replay })
        }
        None => {
            let last_record = checkpoint.last_record as usize;
            if last_record != 0 && !read.reaches(last_record, checkpoint.offset as usize, audit) {
                return Err(StoreError::damaged(
                    &file,
                    "the end of the audit log is missing: it was cut off or replaced by an older copy",
                ));
            }
            let mut open = BTreeMap::new();
            for gap in &checkpoint.open {
                if let Kind::Gap { turn, call, .. } = gap {
                    open.insert((*turn, call.0), gap.clone());
                }
            }
            Ok(Replay {
                chain: resume(checkpoint.chain()),
                ordinal: checkpoint.ordinal,
                open,
                last_record,
                since_head: 1,
                replayed: 0,
            })
        }
    }
}

/// Applies the whole batches of a segment from `from` on; answers where they end.
fn replay_segment(
    read: &Segment,
    from: usize,
    is_last: bool,
    state: &mut Replay,
    audit: &DomainKeys,
    index: &Index,
    overlay_bytes: &mut usize,
) -> Result<usize, StoreError> {
    let file = segment::name(read.header.number);
    let damaged = |what: &str| StoreError::damaged(&file, what);
    let (mut at, mut done, mut ordinal) = (from, from, state.ordinal);
    let mut batch: Vec<(RecordKind, zeroize::Zeroizing<Vec<u8>>)> = Vec::new();
    let problem = loop {
        match read.record_at(at, audit) {
            Err(NoRecord::End) => break read.used() > at,
            Err(NoRecord::Bad) => break true,
            Ok((head, _, _)) if head.ordinal != ordinal => break true,
            Ok((head, plain, next)) => {
                batch.push((head.kind, plain));
                ordinal += 1;
                at = next;
                if head.flags & END != 0 {
                    for (kind, plain) in batch.drain(..) {
                        apply(kind, &plain, read, state, index, overlay_bytes)
                            .map_err(|what| damaged(&what))?;
                    }
                    state.last_record = done;
                    state.ordinal = ordinal;
                    state.replayed += 1;
                    done = at;
                }
            }
        }
    };
    // A torn end can only be in the newest segment, and nothing that was written
    // later can lie behind it.
    if problem && (!is_last || read.later_witness(at, audit)) {
        return Err(damaged("a record in the middle is not as it was written"));
    }
    if !is_last && done != at {
        return Err(damaged("its last record is not whole"));
    }
    Ok(done)
}

fn apply(
    kind: RecordKind,
    plain: &[u8],
    read: &Segment,
    state: &mut Replay,
    index: &Index,
    overlay_bytes: &mut usize,
) -> Result<(), String> {
    match kind {
        RecordKind::Head => state.since_head = 0,
        RecordKind::Writes => {
            // Their key is destroyed only after the index has them.
            if read.header.keys.is_none() {
                return Err(format!("it has rows that \"{INDEX}\" lacks: that is an older copy"));
            }
            let writes = rows::decode(plain).ok_or("its rows are malformed")?;
            *overlay_bytes += index.apply(writes);
        }
        RecordKind::Audit => {
            let entry = parse_entry(plain).ok_or("an audit entry is malformed")?;
            let before = state.chain.state();
            let linked = hearth_audit::Kind::deserialize_line(&entry.line);
            let (kind, prev) = linked.ok_or("an audit entry is malformed")?;
            if entry.seq != before.next_seq || prev != before.last_hash {
                return Err(format!("audit entry {} does not follow the one before it", entry.seq));
            }
            if let Some(keys) = &read.header.keys
                && keys.epoch.mac(&entry.line) != entry.mac
            {
                return Err(format!("the MAC of audit entry {} is wrong", entry.seq));
            }
            state.chain.rewind(hearth_audit::ChainState { next_seq: entry.seq + 1, last_hash: entry.hash() });
            state.since_head += 1;
            note_intent(&mut state.open, &kind);
        }
    }
    Ok(())
}

/// Zeros what a torn write left behind, so that it is never read again.
fn clear_tail(file: &dyn DiskFile, read: &Segment, from: usize) -> Result<(), StoreError> {
    let used = read.used();
    if used <= from {
        return Ok(());
    }
    let io = |e| StoreError::io(&segment::name(read.header.number), &e);
    file.write_at(&vec![0; used - from], from as u64).map_err(io)?;
    file.sync().map_err(io)
}
