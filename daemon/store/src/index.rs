//! The index: redb, and in front of it the mutations that it does not have yet.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hearth_audit::{ChainState, Kind};
use hearth_vault::{Aad, DomainKeys};
use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::disk::{Backend, Disk, Untouched};
use crate::error::StoreError;
use crate::rows::{FORMAT, KEY, RowKey, RowKeys, Table, ordinal};

pub(crate) const INDEX: &str = "store.redb";
const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const CHECKPOINT: &str = "checkpoint";
/// Memory for pages of the index, in bytes.
const CACHE: usize = 4 * 1024 * 1024;
/// Above this size a commit also saves what makes the next open fast after a
/// crash; below, opening walks the whole file.
const QUICK_REPAIR_FROM: u64 = 8 * 1024 * 1024;

/// Up to this size the checksum of every page is verified at each opening: a
/// changed page could otherwise hide rows.
const CHECK_UP_TO: u64 = 8 * 1024 * 1024;

/// How far the index has come in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Checkpoint {
    pub(crate) store: [u8; 16],
    pub(crate) segment: u32,
    /// Where the first record lies that the index does not have.
    pub(crate) offset: u64,
    /// Where the last record lies that it has; 0 when there is none.
    pub(crate) last_record: u64,
    pub(crate) ordinal: u64,
    pub(crate) next_seq: u64,
    pub(crate) last_hash: [u8; 32],
    /// Intents without an outcome, as the gaps that they would be.
    pub(crate) open: Vec<Kind>,
    /// True when the store was closed here.
    pub(crate) clean: bool,
}

impl Checkpoint {
    pub(crate) fn chain(&self) -> ChainState {
        ChainState { next_seq: self.next_seq, last_hash: self.last_hash }
    }
}

type Overlay = BTreeMap<RowKey, Option<Arc<[u8]>>>;

/// `db` is gone once the store is closed.
struct Inner {
    overlay: Overlay,
    db: Option<Database>,
    /// After a failed commit, until the next one.
    only_read: bool,
}

impl Inner {
    fn db(&self) -> Result<&Database, StoreError> {
        self.db.as_ref().ok_or(StoreError::Closed)
    }
}

/// What readers and the writer share.
pub(crate) struct Index {
    inner: RwLock<Inner>,
    file: Arc<dyn crate::disk::DiskFile>,
    pub(crate) keys: RowKeys,
    journal: DomainKeys,
    versions: [AtomicU64; 8],
}

/// A row as redb hands it out.
type Stored<'a> =
    Result<(redb::AccessGuard<'a, &'static [u8]>, redb::AccessGuard<'a, &'static [u8]>), redb::StorageError>;

fn redb_error(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Io(e) => StoreError::io(INDEX, &e),
        redb::Error::DatabaseAlreadyOpen => StoreError::Locked,
        redb::Error::UpgradeRequired(_) => StoreError::damaged(INDEX, "it has the format of another version"),
        other => StoreError::damaged(INDEX, other.to_string()),
    }
}

/// redb may panic on a file that was tampered with; that is damage, not a crash.
fn guarded<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(StoreError::damaged(INDEX, "its structure makes no sense")))
}

fn open_with(backend: impl redb::StorageBackend, check: bool) -> Result<Database, StoreError> {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(check);
    builder.create_with_backend(backend).map_err(redb_error)
}

impl Index {
    /// Makes a new index file under `name` with its first checkpoint.
    pub(crate) fn create(
        disk: &dyn Disk,
        name: &str,
        journal: &DomainKeys,
        first: &Checkpoint,
    ) -> Result<(), StoreError> {
        let file = disk.open(name, true).map_err(|e| StoreError::io(name, &e))?;
        let db = redb::Builder::new()
            .set_cache_size(CACHE)
            .create_with_backend(Backend(file.clone()))
            .map_err(redb_error)?;
        let txn = db.begin_write().map_err(redb_error)?;
        {
            txn.open_table(ROWS).map_err(redb_error)?;
            let mut meta = txn.open_table(META).map_err(redb_error)?;
            let sealed = seal_checkpoint(journal, first)?;
            meta.insert(CHECKPOINT, &sealed[..]).map_err(redb_error)?;
        }
        txn.commit().map_err(redb_error)?;
        db.close().map_err(redb_error)?;
        file.sync().map_err(|e| StoreError::io(name, &e))
    }

    /// True when no row is in the file. Needs no key and changes nothing.
    pub(crate) fn is_unused(disk: &dyn Disk) -> Result<bool, StoreError> {
        let file = disk.open(INDEX, false).map_err(|e| StoreError::io(INDEX, &e))?;
        // redb would take an empty file for a new one.
        if file.is_empty().map_err(|e| StoreError::io(INDEX, &e))? {
            return Ok(false);
        }
        guarded(|| {
            let db = open_with(Untouched::new(file), false)?;
            let txn = db.begin_read().map_err(redb_error)?;
            txn.open_table(ROWS).map_err(redb_error)?.is_empty().map_err(redb_error)
        })
    }

    pub(crate) fn open(
        disk: &dyn Disk,
        keys: RowKeys,
        journal: DomainKeys,
    ) -> Result<(Self, Checkpoint), StoreError> {
        let io = |e| StoreError::io(INDEX, &e);
        let file = disk.open(INDEX, false).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => StoreError::Missing(INDEX.to_owned()),
            _ => io(e),
        })?;
        // An empty file would silently become a new, empty index.
        if file.is_empty().map_err(io)? {
            return Err(StoreError::damaged(INDEX, "the file is empty"));
        }
        guarded(|| {
            let db = open_with(Backend(file.clone()), file.len().map_err(io)? <= CHECK_UP_TO)?;
            let checkpoint = stored_checkpoint(&db, &journal)?;
            let versions = Default::default();
            Ok((
                Self {
                    inner: RwLock::new(Inner { overlay: Overlay::new(), db: Some(db), only_read: false }),
                    file: file.clone(),
                    keys,
                    journal,
                    versions,
                },
                checkpoint,
            ))
        })
    }

    /// Puts mutations in front of the index; answers how many bytes they hold.
    pub(crate) fn apply(&self, writes: Vec<(RowKey, Option<Vec<u8>>)>) -> usize {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        for (key, value) in writes {
            bytes += KEY + value.as_ref().map_or(0, Vec::len);
            if let Some(version) = self.versions.get(usize::from(key[0])) {
                version.fetch_add(1, Ordering::Release);
            }
            inner.overlay.insert(key, value.map(Arc::from));
        }
        bytes
    }

    /// Moves everything into redb, with the position in the same commit. When that
    /// fails, the file is only read until the next try, and the overlay stays.
    pub(crate) fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if inner.only_read {
            drop(inner.db.take());
            let opened = guarded(|| open_with(Backend(self.file.clone()), false));
            inner.only_read = opened.is_err();
            inner.db = match opened {
                Ok(db) => Some(db),
                Err(error) => {
                    inner.db = self.open_to_read().ok();
                    return Err(error);
                }
            };
        }
        let committed = guarded(|| self.commit(&inner, checkpoint));
        match &committed {
            Ok(()) => inner.overlay.clear(),
            Err(_) => {
                // redb refuses even reads after a failed write: a handle that
                // writes nothing takes its place.
                drop(inner.db.take());
                inner.db = self.open_to_read().ok();
                inner.only_read = true;
            }
        }
        committed
    }

    fn open_to_read(&self) -> Result<Database, StoreError> {
        guarded(|| open_with(Untouched::new(self.file.clone()), false))
    }

    fn commit(&self, inner: &Inner, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let mut txn = inner.db()?.begin_write().map_err(redb_error)?;
        txn.set_two_phase_commit(true);
        let large = self.file.len().map_err(|e| StoreError::io(INDEX, &e))? >= QUICK_REPAIR_FROM;
        txn.set_quick_repair(large);
        {
            let mut rows = txn.open_table(ROWS).map_err(redb_error)?;
            for (key, value) in &inner.overlay {
                match value {
                    Some(value) => {
                        let sealed = self.keys.seal(key, nonce(), value);
                        rows.insert(&key[..], &sealed[..]).map_err(redb_error)?;
                    }
                    None => {
                        rows.remove(&key[..]).map_err(redb_error)?;
                    }
                }
            }
            let mut meta = txn.open_table(META).map_err(redb_error)?;
            let sealed = seal_checkpoint(&self.journal, checkpoint)?;
            meta.insert(CHECKPOINT, &sealed[..]).map_err(redb_error)?;
        }
        txn.commit().map_err(redb_error)
    }

    /// Lets go of the file. What is not in redb yet is in the journal.
    pub(crate) fn close(&self) {
        let db = self.inner.write().unwrap_or_else(PoisonError::into_inner).db.take();
        // After a failure redb reports it again here; nothing more can be done.
        if let Some(Err(error)) = db.map(Database::close) {
            log::debug!("closing the index: {error}");
        }
    }

    /// A number that changes with every mutation of the table in this process.
    pub(crate) fn version(&self, table: Table) -> u64 {
        self.versions[table as usize].load(Ordering::Acquire)
    }

    pub(crate) fn get(
        &self,
        table: Table,
        partition: &[u8],
        ordinal: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.keys.key(table, partition, ordinal);
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = inner.overlay.get(&key) {
            return Ok(value.as_ref().map(|v| v.to_vec()));
        }
        guarded(|| {
            let txn = inner.db()?.begin_read().map_err(redb_error)?;
            let rows = txn.open_table(ROWS).map_err(redb_error)?;
            let found = rows.get(&key[..]).map_err(redb_error)?;
            found.map(|sealed| self.unseal(&key, sealed.value())).transpose()
        })
    }

    fn unseal(&self, key: &RowKey, sealed: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.keys
            .open(key, sealed)
            .ok_or_else(|| StoreError::damaged(INDEX, "a row does not open with the key of its place"))
    }

    /// Rows of a partition with ordinals in `range`, oldest or newest first.
    pub(crate) fn scan(
        &self,
        table: Table,
        partition: &[u8],
        range: RangeInclusive<u64>,
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let from = self.keys.key(table, partition, *range.start());
        let to = self.keys.key(table, partition, *range.end());
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let pending: Vec<_> = inner.overlay.range(from..=to).map(|(k, v)| (*k, v.clone())).collect();
        guarded(|| {
            let txn = inner.db()?.begin_read().map_err(redb_error)?;
            let rows = txn.open_table(ROWS).map_err(redb_error)?;
            let stored = rows.range(&from[..]..=&to[..]).map_err(redb_error)?;
            let mut merged: BTreeMap<RowKey, Option<Vec<u8>>> = BTreeMap::new();
            // Of what is stored, at most the limit and what the overlay may hide is needed.
            let want = limit.saturating_add(pending.len());
            let mut take = |row: Stored<'_>| {
                let (key, sealed) = row.map_err(redb_error)?;
                let key = RowKey::try_from(key.value())
                    .map_err(|_| StoreError::damaged(INDEX, "a key has a wrong length"))?;
                merged.insert(key, Some(self.unseal(&key, sealed.value())?));
                Ok::<_, StoreError>(())
            };
            if newest_first {
                stored.rev().take(want).try_for_each(&mut take)?;
            } else {
                stored.take(want).try_for_each(&mut take)?;
            }
            for (key, value) in &pending {
                merged.insert(*key, value.as_ref().map(|v| v.to_vec()));
            }
            let live = merged.into_iter().filter_map(|(k, v)| v.map(|v| (ordinal(&k), v)));
            let mut out: Vec<_> = live.collect();
            if newest_first {
                out.reverse();
            }
            out.truncate(limit);
            Ok(out)
        })
    }
}

/// The checkpoint of an index that nobody has open, without changing the file.
pub(crate) fn peek_checkpoint(disk: &dyn Disk, journal: &DomainKeys) -> Result<Checkpoint, StoreError> {
    let file = disk.open(INDEX, false).map_err(|e| StoreError::io(INDEX, &e))?;
    guarded(|| {
        let backend = Untouched::new(file);
        let db =
            redb::Builder::new().set_cache_size(CACHE).create_with_backend(backend).map_err(redb_error)?;
        stored_checkpoint(&db, journal)
    })
}

fn stored_checkpoint(db: &Database, journal: &DomainKeys) -> Result<Checkpoint, StoreError> {
    let txn = db.begin_read().map_err(redb_error)?;
    let meta = txn.open_table(META).map_err(redb_error)?;
    let row = meta.get(CHECKPOINT).map_err(redb_error)?;
    let row = row.ok_or_else(|| StoreError::damaged(INDEX, "it has no checkpoint"))?;
    let plain = journal.open(&checkpoint_place(), row.value()).map_err(|_| StoreError::WrongKey)?;
    serde_json::from_slice(&plain).map_err(|_| StoreError::damaged(INDEX, "its checkpoint is malformed"))
}

fn checkpoint_place() -> Aad<'static> {
    Aad { table: "meta", key: CHECKPOINT.as_bytes(), format: FORMAT }
}

fn seal_checkpoint(journal: &DomainKeys, checkpoint: &Checkpoint) -> Result<Vec<u8>, StoreError> {
    let plain = serde_json::to_vec(checkpoint).map_err(|e| StoreError::damaged(INDEX, e.to_string()))?;
    Ok(journal.seal(nonce(), &checkpoint_place(), &plain))
}

/// 24 random bytes, never used twice.
pub(crate) fn nonce() -> [u8; 24] {
    random()
}

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    // Without randomness no nonce is safe: nothing may be written.
    getrandom::fill(&mut out).expect("the operating system gives randomness");
    out
}
