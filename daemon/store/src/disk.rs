//! The files of the store, behind a trait so that a simulated disk can fail,
//! freeze and lose power at any operation.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder of files.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file for reading and writing; `create` makes it when missing.
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn DiskFile>>;
    /// Puts `from` in the place of `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; a missing one is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
    /// Takes the only lock; `false` when another process holds it.
    fn lock(&self) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self);
}

/// An open file.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// True for an empty file.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|n| n == 0)
    }
    /// Grows with zeros, or cuts.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Fills `out` from `offset`.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written so far durable.
    fn sync(&self) -> io::Result<()>;
}

/// Reads a whole file of at most `max` bytes.
pub(crate) fn read_all(file: &dyn DiskFile, max: usize) -> io::Result<Vec<u8>> {
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(max);
    let mut out = vec![0; len];
    file.read_at(&mut out, 0)?;
    Ok(out)
}

/// A real folder: mode 0700, files 0600.
#[derive(Debug)]
pub struct RealDisk {
    dir: PathBuf,
    /// Set for readers that must not change anything.
    read_only: bool,
    lock: Mutex<Option<File>>,
}

impl RealDisk {
    /// Uses `dir`, which is created when `create` is set.
    pub fn new(dir: &Path, create: bool) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        if create {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(Self { dir: dir.to_owned(), read_only: false, lock: Mutex::default() })
    }

    /// Uses `dir` for reading only.
    pub fn read_only(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), read_only: true, lock: Mutex::default() }
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o600);
        if !self.read_only {
            options.write(true).create(create);
        }
        Ok(Arc::new(RealFile(options.open(self.dir.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.dir.join(name)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.dir)?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn sync_dir(&self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()
    }

    fn lock(&self) -> io::Result<bool> {
        use rustix::fs::{FlockOperation, flock};
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Ok(false);
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.dir.join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                *held = Some(file);
                Ok(true)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn unlock(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|m| m.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// Lets redb work on a [`DiskFile`].
#[derive(Debug)]
pub(crate) struct Backend(pub(crate) Arc<dyn DiskFile>);

impl redb::StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read_at(out, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write_at(data, offset)
    }
}

/// Lets redb read a [`DiskFile`] without changing it: what redb writes while it
/// opens stays in memory.
#[derive(Debug)]
pub(crate) struct Untouched {
    pub(crate) file: Arc<dyn DiskFile>,
    written: Mutex<Written>,
}

/// The length that was set, and what was written where, in order.
type Written = (Option<u64>, Vec<(u64, Vec<u8>)>);

impl Untouched {
    pub(crate) fn new(file: Arc<dyn DiskFile>) -> Self {
        Self { file, written: Mutex::default() }
    }
}

impl redb::StorageBackend for Untouched {
    fn len(&self) -> Result<u64, io::Error> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.0.map_or_else(|| self.file.len(), Ok)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        let on_disk =
            usize::try_from(self.file.len()?.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        out.fill(0);
        self.file.read_at(&mut out[..on_disk], offset)?;
        let end = offset + out.len() as u64;
        for (at, data) in &self.written.lock().unwrap_or_else(PoisonError::into_inner).1 {
            let (from, to) = ((*at).max(offset), (at + data.len() as u64).min(end));
            if from < to {
                let source = &data[(from - at) as usize..(to - at) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(len);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).1.push((offset, data.to_vec()));
        Ok(())
    }
}
