//! The writer: one thread that owns the journal. Batches that wait together
//! share one write and one sync.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hearth_audit::{Chain, Draft, Head, Kind, Sealed};
use hearth_vault::DomainKeys;
use tokio::sync::oneshot;
use ulid::Ulid;

use crate::create::{BALLAST, TEMPORARY, write_ballast, write_segment};
use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::index::{Checkpoint, Index, nonce, random};
use crate::rows::{self, RowKey, Write};
use crate::segment::{self, END, RecordKind, SegmentKeys, push_record, record_size};
use crate::store::Options;

/// Entries after which a signed head is written with the next batch; the end of a
/// turn brings one in any case.
const HEAD_EVERY: u64 = 64;
/// Bytes of a segment that is made from the reserve, at most.
const RESERVE_SEGMENT: usize = 64 * 1024;
/// Largest batch, in bytes.
const BATCH_MAX: usize = 16 * 1024 * 1024;
/// Bytes of a head's plain form.
const HEAD_PLAIN: usize = 8 + 32 + 64 + 1;

/// Figures of the running store.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) syncs: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) segment: AtomicU64,
    /// Where the audit log ends.
    pub(crate) end: std::sync::Mutex<(u64, [u8; 32])>,
}

/// A batch: audit entries and mutations that count together or not at all.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Audit entries, in order.
    pub audit: Vec<Draft>,
    /// Mutations, in order.
    pub writes: Vec<Write>,
    /// It tells how something ended: on a full disk it may use the reserve.
    pub closing: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an audit entry.
    pub fn audit(mut self, kind: Kind) -> Self {
        self.audit.push(Draft::new(kind));
        self
    }

    /// Adds mutations.
    pub fn put(mut self, writes: impl IntoIterator<Item = Write>) -> Self {
        self.writes.extend(writes);
        self
    }

    /// Marks the batch as one that tells how something ended. The reserve on a full
    /// disk is for these alone; all others are refused with [`StoreError::Full`].
    pub fn closing(mut self) -> Self {
        self.closing = true;
        self
    }

    fn is_empty(&self) -> bool {
        self.audit.is_empty() && self.writes.is_empty()
    }
}

pub(crate) type Reply = oneshot::Sender<Result<(), StoreError>>;

pub(crate) enum Request {
    Batch { batch: Batch, durable: bool, reply: Reply },
    Checkpoint { reply: Reply },
    Close { reply: Reply },
}

/// What a batch does once its bytes are written.
struct Encoded {
    bytes: Vec<u8>,
    writes: Vec<(RowKey, Option<Vec<u8>>)>,
    entries: Vec<(u64, Kind)>,
}

pub(crate) type OpenIntents = BTreeMap<(Ulid, u32), Kind>;

/// Keeps the list of intents without an outcome, as the gaps that they would be.
pub(crate) fn note_intent(open: &mut OpenIntents, kind: &Kind) {
    match kind {
        Kind::ToolIntent { turn, call, tool, .. } => {
            open.insert((*turn, call.0), Kind::Gap { turn: *turn, call: *call, tool: tool.clone() });
        }
        Kind::ToolOutcome { turn, call, .. } | Kind::Gap { turn, call, .. } => {
            open.remove(&(*turn, call.0));
        }
        _ => {}
    }
}

pub(crate) struct Writer {
    pub(crate) options: Options,
    pub(crate) index: Arc<Index>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) journal: DomainKeys,
    pub(crate) audit: DomainKeys,
    pub(crate) store_id: [u8; 16],
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) segment: u32,
    pub(crate) segment_len: usize,
    pub(crate) keys: SegmentKeys,
    pub(crate) chain: Chain,
    pub(crate) ordinal: u64,
    pub(crate) offset: usize,
    pub(crate) last_record: usize,
    pub(crate) durable_to: usize,
    pub(crate) since_head: u64,
    pub(crate) open: OpenIntents,
    pub(crate) overlay_bytes: usize,
    /// Bytes of the overlay after which the index is committed.
    pub(crate) checkpoint_at: usize,
    /// Where the index stands: segment, offset, clean.
    pub(crate) indexed: (u32, usize, bool),
    pub(crate) frozen: Option<String>,
}

impl Writer {
    /// Serves requests until the store is closed or every handle is gone. Then
    /// the files are let go, in the end the lock.
    pub(crate) fn run(mut self, requests: &std::sync::mpsc::Receiver<Request>) {
        let closing = self.work(requests);
        let result = closing.map(|reply| (self.close(), reply));
        self.index.close();
        self.options.disk.unlock();
        if let Some((result, reply)) = result {
            let _ = reply.send(result);
        }
    }

    /// Answers who asked to close the store.
    fn work(&mut self, requests: &std::sync::mpsc::Receiver<Request>) -> Option<Reply> {
        loop {
            let first = requests.recv().ok()?;
            let mut batches = Vec::new();
            for request in std::iter::once(first).chain(requests.try_iter().take(255)) {
                match request {
                    Request::Batch { batch, durable, reply } => batches.push((batch, durable, reply)),
                    Request::Checkpoint { reply } => {
                        self.serve(std::mem::take(&mut batches));
                        let _ = reply.send(self.checkpoint(false));
                    }
                    Request::Close { reply } => {
                        self.serve(batches);
                        return Some(reply);
                    }
                }
            }
            self.serve(batches);
        }
    }

    fn freeze(&mut self, error: StoreError) -> StoreError {
        ::log::error!("the store stops writing: {error}");
        self.frozen.get_or_insert_with(|| error.to_string());
        error
    }

    fn check_frozen(&self) -> Result<(), StoreError> {
        self.frozen.as_ref().map_or(Ok(()), |why| Err(StoreError::Frozen(why.clone())))
    }

    /// Writes a group of batches with one write and at most one sync.
    pub(crate) fn serve(&mut self, batches: Vec<(Batch, bool, Reply)>) {
        let mut buffer = Vec::new();
        let mut waiting: Vec<(Encoded, Reply)> = Vec::new();
        let mut sync = false;
        for (batch, durable, reply) in batches {
            if let Err(error) = self.check_frozen() {
                let _ = reply.send(Err(error));
                continue;
            }
            match self.encode(&batch, buffer.len(), &mut buffer, &mut waiting) {
                Ok(encoded) => {
                    buffer.extend(&encoded.bytes);
                    waiting.push((encoded, reply));
                    sync |= durable;
                }
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
            }
        }
        self.flush(&mut buffer, &mut waiting, sync);
        if self.overlay_bytes > self.checkpoint_at
            && self.frozen.is_none()
            && let Err(error) = self.checkpoint(false)
        {
            ::log::error!("the index could not be committed: {error}");
        }
    }

    /// Makes the bytes of a batch. Rotates first when they do not fit, which
    /// flushes what was encoded before.
    fn encode(
        &mut self,
        batch: &Batch,
        ahead: usize,
        buffer: &mut Vec<u8>,
        waiting: &mut Vec<(Encoded, Reply)>,
    ) -> Result<Encoded, StoreError> {
        let before = (self.chain.state(), self.ordinal, self.since_head);
        let encoded = self.encode_at(batch);
        if encoded.bytes.len() > BATCH_MAX {
            self.rewind(before);
            return Err(StoreError::TooLarge(encoded.bytes.len()));
        }
        let end = self.offset + ahead + encoded.bytes.len() + record_size(HEAD_PLAIN);
        if end <= self.segment_len && (batch.closing || !self.in_reserve()) {
            return Ok(encoded);
        }
        self.rewind(before);
        self.flush(buffer, waiting, true);
        self.check_frozen()?;
        self.rotate(encoded.bytes.len(), batch.closing)?;
        Ok(self.encode_at(batch))
    }

    fn rewind(&mut self, (chain, ordinal, since_head): (hearth_audit::ChainState, u64, u64)) {
        self.chain.rewind(chain);
        self.ordinal = ordinal;
        self.since_head = since_head;
    }

    fn encode_at(&mut self, batch: &Batch) -> Encoded {
        let mut records = Vec::new();
        let mut entries = Vec::new();
        if !batch.writes.is_empty() {
            records.push((RecordKind::Writes, rows::encode(&self.index.keys, &batch.writes)));
        }
        for draft in &batch.audit {
            let sealed = self.chain.append(draft, (self.options.clock)());
            entries.push((sealed.seq, draft.kind.clone()));
            records.push((RecordKind::Audit, entry_plain(&sealed)));
        }
        self.since_head += batch.audit.len() as u64;
        let turn_ends = batch.audit.iter().any(|draft| matches!(draft.kind, Kind::TurnEnded { .. }));
        if turn_ends || self.since_head >= HEAD_EVERY {
            self.since_head = 0;
            records.push((RecordKind::Head, head_plain(&self.chain.head(false))));
        }
        let writes = rows::decode(&rows::encode(&self.index.keys, &batch.writes)).unwrap_or_default();
        Encoded { bytes: self.frame(records), writes, entries }
    }

    /// Frames records as one batch.
    fn frame(&mut self, records: Vec<(RecordKind, Vec<u8>)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let last = records.len().saturating_sub(1);
        for (i, (kind, plain)) in records.into_iter().enumerate() {
            let keys = match kind {
                RecordKind::Writes => &self.keys.writes,
                RecordKind::Audit | RecordKind::Head => &self.audit,
            };
            let flags = if i == last { END } else { 0 };
            let head = (kind, flags, self.ordinal, self.durable_to as u32);
            push_record(&mut bytes, (self.segment, keys), head, nonce(), &plain);
            self.ordinal += 1;
        }
        bytes
    }

    /// Writes what was encoded, then tells everyone.
    fn flush(&mut self, buffer: &mut Vec<u8>, waiting: &mut Vec<(Encoded, Reply)>, sync: bool) {
        let result = self.write_out(buffer, sync);
        if result.is_ok() {
            // Whoever is told that a batch is written finds the log with it.
            let state = self.chain.state();
            *self.counters.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                (state.next_seq, state.last_hash);
        }
        let count = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
        for (encoded, reply) in waiting.drain(..) {
            if result.is_ok() {
                count(&self.counters.batches, 1);
                count(&self.counters.entries, encoded.entries.len());
                for (_, kind) in &encoded.entries {
                    note_intent(&mut self.open, kind);
                }
                self.overlay_bytes += self.index.apply(encoded.writes);
            }
            let _ = reply.send(result.clone());
        }
        buffer.clear();
    }

    fn write_out(&mut self, buffer: &[u8], sync: bool) -> Result<(), StoreError> {
        let file = segment::name(self.segment);
        if !buffer.is_empty() {
            let written = self.file.write_at(buffer, self.offset as u64);
            written.map_err(|e| self.freeze(StoreError::io(&file, &e)))?;
            self.counters.journal_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            // The last batch begins somewhere in here; its first record is found by its place.
            self.last_record = self.offset;
            self.offset += buffer.len();
        }
        if sync && self.durable_to < self.offset {
            // After a failed sync nobody knows what is on the disk: never tried again.
            let synced = self.file.sync();
            synced.map_err(|e| self.freeze(StoreError::io(&file, &e)))?;
            self.counters.syncs.fetch_add(1, Ordering::Relaxed);
            self.durable_to = self.offset;
        }
        Ok(())
    }

    /// Commits the index when it is behind the journal.
    pub(crate) fn checkpoint(&mut self, clean: bool) -> Result<(), StoreError> {
        self.check_frozen()?;
        if self.indexed == (self.segment, self.offset, clean) {
            return Ok(());
        }
        // The index must never be ahead of the journal.
        self.write_out(&[], true)?;
        let state = self.chain.state();
        let checkpoint = Checkpoint {
            store: self.store_id,
            segment: self.segment,
            offset: self.offset as u64,
            last_record: self.last_record as u64,
            ordinal: self.ordinal,
            next_seq: state.next_seq,
            last_hash: state.last_hash,
            open: self.open.values().cloned().collect(),
            clean,
        };
        match self.index.checkpoint(&checkpoint) {
            // Nothing is lost: the journal has it all. On a full disk it is tried
            // again, but not with every batch.
            Err(StoreError::Full) => {
                self.checkpoint_at = self.overlay_bytes + self.options.checkpoint_bytes;
                Err(StoreError::Full)
            }
            Err(error) => Err(self.freeze(error)),
            Ok(()) => {
                self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
                self.overlay_bytes = 0;
                self.checkpoint_at = self.options.checkpoint_bytes;
                // Given back once there is space again.
                let _ = write_ballast(&*self.options.disk, self.options.ballast_bytes);
                self.indexed = (self.segment, self.offset, clean);
                Ok(())
            }
        }
    }

    /// True in a segment that was made from the reserve: it is for closing batches.
    fn in_reserve(&self) -> bool {
        self.segment_len < self.options.segment_bytes
    }

    /// Seals the segment and goes on in a new one, which is a new epoch. On a full
    /// disk only with the reserve, and that only when `closing`; otherwise nothing
    /// has changed, and neither the journal nor the index was touched.
    fn rotate(&mut self, needed: usize, closing: bool) -> Result<(), StoreError> {
        let disk = self.options.disk.clone();
        // The room of a reserve that was given up is for what closes.
        let reserve = write_ballast(&*disk, self.options.ballast_bytes);
        if !closing {
            reserve.clone()?;
        }
        let (certificate, epoch) = self.chain.prepare_next(random());
        let keys = SegmentKeys::new(epoch.clone(), random());
        let header = segment::Header {
            number: self.segment + 1,
            first_ordinal: self.ordinal + u64::from(self.wants_head()),
            certificate,
            keys: Some(keys.clone()),
        };
        let name = segment::name(header.number);
        let temporary = format!("{name}{TEMPORARY}");
        let least = segment::HEADER + needed + 4 * record_size(HEAD_PLAIN);
        // Small: the reserve may be needed for more than one.
        let small = RESERVE_SEGMENT.min(self.options.segment_bytes / 2).max(least);
        let mut length = if reserve.is_ok() { self.options.segment_bytes.max(least) } else { small };
        let block = header.encode(&self.journal, nonce());
        // What needs most space comes first: it says soonest that there is none.
        let mut written = write_segment(&*disk, &temporary, &block, length);
        if closing && reserve.is_ok() && matches!(written, Err(StoreError::Full)) {
            self.give_up_ballast()?;
            length = small;
            let removed = disk.remove(&temporary).map_err(|e| StoreError::io(&temporary, &e));
            written = removed.and_then(|()| write_segment(&*disk, &temporary, &block, length));
        }
        let ready = written.and_then(|()| self.seal()).and_then(|()| match self.checkpoint(false) {
            Err(StoreError::Full) if closing => {
                self.give_up_ballast()?;
                self.checkpoint(false)
            }
            done => done,
        });
        if let Err(error) = ready {
            let _ = disk.remove(&temporary);
            return Err(error);
        }
        let switched = disk
            .rename(&temporary, &name)
            .and_then(|()| disk.sync_dir())
            .and_then(|()| segment::Header::erase_keys(&*self.file))
            .and_then(|()| disk.open(&name, false));
        let file = switched.map_err(|e| self.freeze(StoreError::io(&name, &e)))?;
        self.chain.enter(epoch);
        self.segment = header.number;
        self.counters.segment.store(u64::from(self.segment), Ordering::Relaxed);
        self.segment_len = length;
        self.keys = keys;
        self.file = file;
        self.offset = segment::HEADER;
        self.durable_to = segment::HEADER;
        self.last_record = 0;
        Ok(())
    }

    fn give_up_ballast(&self) -> Result<(), StoreError> {
        self.options.disk.remove(BALLAST).map_err(|e| StoreError::io(BALLAST, &e))
    }

    /// True when something is not signed yet. Each batch leaves room for a head;
    /// after a rotation that failed it may be used up.
    fn wants_head(&self) -> bool {
        self.since_head > 0 && self.offset + record_size(HEAD_PLAIN) <= self.segment_len
    }

    /// Signs what is not signed yet, and makes all of it durable.
    fn seal(&mut self) -> Result<(), StoreError> {
        if self.wants_head() {
            let head = self.frame(vec![(RecordKind::Head, head_plain(&self.chain.head(false)))]);
            self.write_out(&head, true)?;
            self.since_head = 0;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), StoreError> {
        self.check_frozen()?;
        self.seal()?;
        self.checkpoint(true)
    }

    /// Writes one batch from the thread that opens the store.
    pub(crate) fn write_now(&mut self, batch: Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let (reply, result) = oneshot::channel();
        self.serve(vec![(batch, true, reply)]);
        result.blocking_recv().unwrap_or(Err(StoreError::Closed))
    }
}

/// An entry's record: MAC, then the line.
pub(crate) fn entry_plain(sealed: &Sealed) -> Vec<u8> {
    [&sealed.mac[..], &sealed.line].concat()
}

/// A head's record; store and epoch follow from the segment.
pub(crate) fn head_plain(head: &Head) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_PLAIN);
    out.extend(head.size.to_be_bytes());
    out.extend(head.hash);
    out.extend(head.signature);
    out.push(u8::from(head.closing));
    out
}

/// What [`head_plain`] wrote.
pub(crate) fn parse_head(plain: &[u8], store: [u8; 16], epoch: u32) -> Option<Head> {
    if plain.len() != HEAD_PLAIN {
        return None;
    }
    Some(Head {
        store,
        epoch,
        size: u64::from_be_bytes(plain[..8].try_into().ok()?),
        hash: plain[8..40].try_into().ok()?,
        signature: plain[40..104].try_into().ok()?,
        closing: plain[104] != 0,
    })
}
