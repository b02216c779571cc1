//! A simulated disk. It keeps what a real one may lose: writes that were not
//! synced, names whose folder was not synced.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};

const SECTOR: usize = 512;

/// Is told the number of an operation and its disk.
pub type Watch = Arc<dyn Fn(u64, &SimDisk) + Send + Sync>;

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

#[derive(Debug, Clone)]
enum Naming {
    Link(String, usize),
    Rename(String, String),
    Unlink(String),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    durable: Vec<u8>,
    live: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone, Default)]
struct State {
    inodes: Vec<Inode>,
    durable_names: BTreeMap<String, usize>,
    names: BTreeMap<String, usize>,
    pending_names: Vec<Naming>,
    operations: u64,
    fail_at: Option<u64>,
    freeze_at: Option<u64>,
    ignore_syncs: bool,
    capacity: Option<u64>,
    locked: bool,
    watch: Option<Watch>,
}

impl State {
    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].live.len() as u64).sum()
    }
}

/// The disk. Clones share their content.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimDisk")
    }
}

/// A small generator of pseudo-random numbers (SplitMix64): the same seed gives
/// the same crash.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n.max(1)
    }
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::SetLen(len) => bytes.resize(*len as usize, 0),
        Change::Write(offset, data) => {
            let (from, to) = (*offset as usize, *offset as usize + data.len());
            if bytes.len() < to {
                bytes.resize(to, 0);
            }
            bytes[from..to].copy_from_slice(data);
        }
    }
}

fn rename(names: &mut BTreeMap<String, usize>, naming: &Naming) {
    match naming {
        Naming::Link(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        Naming::Unlink(name) => {
            names.remove(name);
        }
        Naming::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
    }
}

impl SimDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations that changed or synced something so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// The `n`-th operation from now fails once.
    pub fn fail_at(&self, n: u64) {
        let mut state = self.state();
        state.fail_at = Some(state.operations + n);
    }

    /// From the `n`-th operation from now on nothing happens any more.
    pub fn freeze_at(&self, n: u64) {
        let mut state = self.state();
        state.freeze_at = Some(state.operations + n);
    }

    /// The control: syncs report success and do nothing.
    pub fn ignore_syncs(&self) {
        self.state().ignore_syncs = true;
    }

    /// From now on files cannot grow beyond so many bytes in all.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Bytes of all files that have a name.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// Calls `watch` before each operation, outside of the lock.
    pub fn watch(&self, watch: Watch) {
        self.state().watch = Some(watch);
    }

    /// What a new start finds when the power goes now. Names survive up to some
    /// point in their order; of the writes that were not synced, each sector may
    /// be there or not: all, none, a prefix with a torn end, or any subset.
    pub fn power_cut(&self, rng: &mut Rng) -> SimDisk {
        let state = self.state();
        let mut names = state.durable_names.clone();
        let keep = rng.below(state.pending_names.len() as u64 + 1) as usize;
        for naming in &state.pending_names[..keep] {
            rename(&mut names, naming);
        }
        let inodes = state.inodes.iter().map(|inode| {
            let mut bytes = inode.durable.clone();
            lose(&mut bytes, &inode.pending, rng);
            Inode { live: bytes.clone(), durable: bytes, pending: Vec::new() }
        });
        let inodes = inodes.collect();
        SimDisk(Arc::new(Mutex::new(State {
            inodes,
            durable_names: names.clone(),
            names,
            ..State::default()
        })))
    }

    /// The same disk after the process was killed: everything written is there,
    /// and what was not synced can still be lost when the power goes later.
    pub fn process_killed(&self) -> SimDisk {
        let state = self.state();
        SimDisk(Arc::new(Mutex::new(State {
            inodes: state.inodes.clone(),
            durable_names: state.durable_names.clone(),
            names: state.names.clone(),
            pending_names: state.pending_names.clone(),
            ..State::default()
        })))
    }

    /// Content of a file, for tests that damage it.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        state.names.get(name).map(|i| state.inodes[*i].live.clone())
    }

    /// Replaces the content of a file, or removes it.
    pub fn set_content(&self, name: &str, content: Option<Vec<u8>>) {
        let mut state = self.state();
        match content {
            None => {
                state.names.remove(name);
                state.durable_names.remove(name);
            }
            Some(bytes) => {
                let inode = state.inodes.len();
                state.inodes.push(Inode { durable: bytes.clone(), live: bytes, pending: Vec::new() });
                state.names.insert(name.to_owned(), inode);
                state.durable_names.insert(name.to_owned(), inode);
            }
        }
    }

    /// Counts an operation and injects what was asked for.
    fn operation(&self) -> io::Result<MutexGuard<'_, State>> {
        let watch = {
            let s = self.state();
            s.watch.clone().map(|w| (w, s.operations))
        };
        if let Some((watch, n)) = watch {
            watch(n, self);
        }
        let mut state = self.state();
        state.operations += 1;
        let n = state.operations;
        if state.freeze_at.is_some_and(|at| n >= at) {
            return Err(io::Error::other("frozen"));
        }
        if state.fail_at == Some(n) {
            return Err(io::Error::other("injected failure"));
        }
        Ok(state)
    }
}

fn lose(bytes: &mut Vec<u8>, pending: &[Change], rng: &mut Rng) {
    let mode = rng.below(4);
    let prefix = rng.below(pending.len() as u64 + 1) as usize;
    for (i, change) in pending.iter().enumerate() {
        let whole = match mode {
            0 => false,
            1 => true,
            2 => i < prefix,
            _ => rng.below(2) == 0,
        };
        match change {
            _ if whole => apply(bytes, change),
            Change::Write(offset, data) if mode >= 2 => {
                // Torn: each sector on its own. A sector beyond the end is lost.
                let mut at = *offset as usize;
                let end = at + data.len();
                while at < end {
                    let next = ((at / SECTOR + 1) * SECTOR).min(end);
                    if rng.below(2) == 0 && next <= bytes.len() {
                        bytes[at..next]
                            .copy_from_slice(&data[at - *offset as usize..next - *offset as usize]);
                    }
                    at = next;
                }
            }
            _ => {}
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str, create: bool) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(inode) = self.state().names.get(name) {
            return Ok(Arc::new(SimFile { disk: self.clone(), inode: *inode }));
        }
        if !create {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut state = self.operation()?;
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.names.insert(name.to_owned(), inode);
        state.pending_names.push(Naming::Link(name.to_owned(), inode));
        Ok(Arc::new(SimFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.operation()?;
        let naming = Naming::Rename(from.to_owned(), to.to_owned());
        rename(&mut state.names, &naming);
        state.pending_names.push(naming);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if !self.state().names.contains_key(name) {
            return Ok(());
        }
        let mut state = self.operation()?;
        let naming = Naming::Unlink(name.to_owned());
        rename(&mut state.names, &naming);
        state.pending_names.push(naming);
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.operation()?;
        if !state.ignore_syncs {
            state.durable_names = state.names.clone();
            state.pending_names.clear();
        }
        Ok(())
    }

    fn lock(&self) -> io::Result<bool> {
        Ok(!std::mem::replace(&mut self.state().locked, true))
    }

    fn unlock(&self) {
        self.state().locked = false;
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl SimFile {
    fn change(&self, change: Change) -> io::Result<()> {
        let mut state = self.disk.operation()?;
        let length = state.inodes[self.inode].live.len() as u64;
        let end = match &change {
            Change::Write(offset, data) => offset + data.len() as u64,
            Change::SetLen(len) => *len,
        };
        let room = state.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used()));
        let full = end.saturating_sub(length) > room;
        let change = match change {
            // A write that does not fit is cut short, as a real one is.
            Change::Write(offset, mut data) if full => {
                data.truncate((length + room).saturating_sub(offset) as usize);
                Change::Write(offset, data)
            }
            Change::SetLen(_) if full => return Err(io::ErrorKind::StorageFull.into()),
            fits => fits,
        };
        let inode = &mut state.inodes[self.inode];
        apply(&mut inode.live, &change);
        inode.pending.push(change);
        if full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].live.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::SetLen(len))
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.state();
        let live = &state.inodes[self.inode].live;
        let from = offset as usize;
        let found = live.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.change(Change::Write(offset, data.to_vec()))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.operation()?;
        if !state.ignore_syncs {
            let inode = &mut state.inodes[self.inode];
            inode.durable = inode.live.clone();
            inode.pending.clear();
        }
        Ok(())
    }
}
