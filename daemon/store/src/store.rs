//! The handle.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use hearth_audit::{Kind, Stamp};
use hearth_vault::DataKey;
use tokio::sync::oneshot;

use crate::disk::{Disk, RealDisk};
use crate::error::StoreError;
use crate::index::Index;
use crate::rows::Table;
use crate::writer::{Batch, Counters, Reply, Request};

/// Requests that wait for the writer.
const QUEUE: usize = 1024;

/// Gives the time for audit entries.
pub type StampClock = Arc<dyn Fn() -> Stamp + Send + Sync>;

/// Where the store lies and how it behaves.
#[derive(Clone)]
pub struct Options {
    /// The folder of the store.
    pub disk: Arc<dyn Disk>,
    /// The folder of the marker; another one than the store's, and the name of
    /// the file that says that a store was created.
    pub marker: (Arc<dyn Disk>, String),
    /// Bytes of a journal segment.
    pub segment_bytes: usize,
    /// Bytes of mutations after which the index is committed.
    pub checkpoint_bytes: usize,
    /// Space for closing batches on a full disk, in bytes; 0 for none.
    pub ballast_bytes: usize,
    /// The clock.
    pub clock: StampClock,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Options({:?}, ..)", self.disk)
    }
}

impl Options {
    /// A store in the folder `state` with its marker at `marker`. `create` makes
    /// missing folders.
    pub fn at(state: &Path, marker: &Path, create: bool, clock: StampClock) -> Result<Self, StoreError> {
        let open = |path: &Path| {
            let disk = RealDisk::new(path, create);
            disk.map(|d| Arc::new(d) as Arc<dyn Disk>)
                .map_err(|e| StoreError::io(&path.display().to_string(), &e))
        };
        let name = marker.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let folder = marker.parent().unwrap_or(Path::new("/"));
        Ok(Self {
            disk: open(state)?,
            marker: (open(folder)?, name),
            segment_bytes: 1024 * 1024,
            checkpoint_bytes: 256 * 1024,
            ballast_bytes: 1024 * 1024,
            clock,
        })
    }

    pub(crate) fn marked(&self) -> Result<bool, StoreError> {
        match self.marker.0.list() {
            Ok(names) => Ok(names.contains(&self.marker.1)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(StoreError::io(&self.marker.1, &e)),
        }
    }

    pub(crate) fn mark(&self) -> Result<(), StoreError> {
        let (disk, name) = &self.marker;
        let written = disk.open(name, true).and_then(|file| {
            file.write_at(b"A Hearth store was created. Without this file it counts as never created.\n", 0)?;
            file.sync()?;
            disk.sync_dir()
        });
        written.map_err(|e| StoreError::io(name, &e))
    }
}

/// Figures since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Syncs of the journal.
    pub syncs: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Batches written.
    pub batches: u64,
    /// Audit entries written.
    pub entries: u64,
    /// Commits of the index.
    pub checkpoints: u64,
    /// Newest segment.
    pub segment: u64,
}

/// A batch on its way to the journal.
#[derive(Debug)]
#[must_use = "a batch may be refused"]
pub struct Appended(oneshot::Receiver<Result<(), StoreError>>);

impl Appended {
    /// Waits until the batch was written or refused.
    pub async fn written(self) -> Result<(), StoreError> {
        self.0.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// What opening found.
#[derive(Debug)]
pub struct Opened {
    /// Identity of the store.
    pub store_id: [u8; 16],
    /// True when the previous run did not close the store.
    pub unclean: bool,
    /// Intents without an outcome; a `Gap` entry was written for each.
    pub gaps: Vec<Kind>,
    /// Entries in the log.
    pub entries: u64,
    /// Hash of the last entry.
    pub last_hash: [u8; 32],
}

/// A handle on the open store. Clones share it.
#[derive(Clone)]
pub struct Store {
    pub(crate) index: Arc<Index>,
    pub(crate) counters: Arc<Counters>,
    requests: SyncSender<Request>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store(..)")
    }
}

impl Store {
    pub(crate) fn new(index: Arc<Index>, counters: Arc<Counters>) -> (Self, Receiver<Request>) {
        let (requests, receiver) = sync_channel(QUEUE);
        (Self { index, counters, requests }, receiver)
    }

    /// Opens the store. Blocks: call it from a thread that may.
    pub fn open(options: Options, data_key: &DataKey) -> Result<(Self, Opened), StoreError> {
        crate::open::open(options, data_key)
    }

    fn send(&self, request: impl FnOnce(Reply) -> Request) -> Result<Appended, StoreError> {
        let (reply, result) = oneshot::channel();
        match self.requests.try_send(request(reply)) {
            Ok(()) => Ok(Appended(result)),
            Err(TrySendError::Disconnected(_)) => Err(StoreError::Closed),
            // The queue is longer than everything that may wait for it: the disk hangs.
            Err(TrySendError::Full(_)) => Err(StoreError::Busy),
        }
    }

    async fn ask(&self, request: impl FnOnce(Reply) -> Request) -> Result<(), StoreError> {
        self.send(request)?.written().await
    }

    /// Writes a batch; durable when this returns.
    pub async fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        self.ask(|reply| Request::Batch { batch, durable: true, reply }).await
    }

    /// Writes a batch in order; it is visible when this returns, and durable
    /// together with the next committed batch at the latest.
    pub async fn append(&self, batch: Batch) -> Result<(), StoreError> {
        self.ask(|reply| Request::Batch { batch, durable: false, reply }).await
    }

    /// Hands a batch over without waiting for it: it is written in order, before
    /// everything that is handed over later. Whoever builds on it asks
    /// [`Appended::written`] first.
    pub fn append_later(&self, batch: Batch) -> Result<Appended, StoreError> {
        self.send(|reply| Request::Batch { batch, durable: false, reply })
    }

    /// Commits the index, when it is behind.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.ask(|reply| Request::Checkpoint { reply }).await
    }

    /// Commits the index and ends the writer. Later writes are refused.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.ask(|reply| Request::Close { reply }).await
    }

    /// The same for a thread without a runtime.
    pub fn commit_blocking(&self, batch: Batch) -> Result<(), StoreError> {
        self.ask_blocking(|reply| Request::Batch { batch, durable: true, reply })
    }

    /// The same for a thread without a runtime.
    pub fn append_blocking(&self, batch: Batch) -> Result<(), StoreError> {
        self.ask_blocking(|reply| Request::Batch { batch, durable: false, reply })
    }

    /// The same for a thread without a runtime.
    pub fn checkpoint_blocking(&self) -> Result<(), StoreError> {
        self.ask_blocking(|reply| Request::Checkpoint { reply })
    }

    /// The same for a thread without a runtime.
    pub fn close_blocking(&self) -> Result<(), StoreError> {
        self.ask_blocking(|reply| Request::Close { reply })
    }

    fn ask_blocking(&self, request: impl FnOnce(Reply) -> Request) -> Result<(), StoreError> {
        let (reply, result) = oneshot::channel();
        self.requests.send(request(reply)).map_err(|_| StoreError::Closed)?;
        result.blocking_recv().unwrap_or(Err(StoreError::Closed))
    }

    /// One row. Reads the disk: call it from a thread that may block.
    pub fn get(&self, table: Table, partition: &[u8], ordinal: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.index.get(table, partition, ordinal)
    }

    /// Rows of a partition with ordinals in `range`, at most `limit`. Reads the
    /// disk: call it from a thread that may block.
    pub fn scan(
        &self,
        table: Table,
        partition: &[u8],
        range: RangeInclusive<u64>,
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        self.index.scan(table, partition, range, limit, newest_first)
    }

    /// A number that changes with every mutation of the table in this process.
    pub fn version(&self, table: Table) -> u64 {
        self.index.version(table)
    }

    /// How many entries the audit log has, and the hash of the last one.
    pub fn audit_end(&self) -> (u64, [u8; 32]) {
        *self.counters.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Figures since the store was opened.
    pub fn figures(&self) -> Figures {
        let c = &self.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            syncs: read(&c.syncs),
            journal_bytes: read(&c.journal_bytes),
            batches: read(&c.batches),
            entries: read(&c.entries),
            checkpoints: read(&c.checkpoints),
            segment: read(&c.segment),
        }
    }
}
