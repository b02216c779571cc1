//! A scripted run of tool turns on a simulated disk, a model of what must be on
//! the disk after each of its batches, and the check of a disk against it.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use hearth_audit::{Draft, Kind, Stamp};
use hearth_scope::{CallId, CapabilitySet, ToolName, TrustTier};
use hearth_store::sim::{Rng, SimDisk};
use hearth_store::{AuditLog, Batch, Disk, Options, Store, StoreError, Table, Write, create};
use hearth_vault::{Argon2Params, DataKey, Header, Secret, SlotRandom};
use ulid::Ulid;

/// Name of the marker on its own disk.
const MARKER: &str = "initialized";

/// The two disks of a box: one with the store, one with the marker.
#[derive(Clone, Default)]
pub(crate) struct Disks {
    pub(crate) state: SimDisk,
    pub(crate) marker: SimDisk,
}

impl Disks {
    /// What a new start finds after a power cut now.
    pub(crate) fn power_cut(&self, rng: &mut Rng) -> Self {
        Self { state: self.state.power_cut(rng), marker: self.marker.power_cut(rng) }
    }

    /// What a new start finds after the process alone died.
    pub(crate) fn killed(&self) -> Self {
        Self { state: self.state.process_killed(), marker: self.marker.process_killed() }
    }

    pub(crate) fn marked(&self) -> bool {
        self.marker.content(MARKER).is_some()
    }

    /// Options with segments so small that a run rotates.
    pub(crate) fn options(&self) -> Options {
        Options {
            disk: Arc::new(self.state.clone()),
            marker: (Arc::new(self.marker.clone()), MARKER.to_owned()),
            segment_bytes: 12 * 1024,
            checkpoint_bytes: 3 * 1024,
            ballast_bytes: 0,
            clock: Arc::new(|| Stamp { boot: Ulid(1), mono_ns: 2, wall_ms: None }),
        }
    }

    pub(crate) fn create(&self) -> Result<(), StoreError> {
        create(&self.options(), &key(), &header())
    }

    pub(crate) fn open(&self) -> Result<(Store, hearth_store::Opened), StoreError> {
        Store::open(self.options(), &key())
    }
}

pub(crate) fn key() -> DataKey {
    DataKey::from_bytes([7; 32])
}

pub(crate) fn header() -> Header {
    let mut header = Header::new([9; 16]);
    let random = SlotRandom { salt: [1; 16], nonce: [2; 24] };
    header.add_slot(&key(), &Secret::KeyFile(&[3; 32]), "", Argon2Params::default(), &random).unwrap();
    header
}

type Place = (u8, Vec<u8>, u64);
type Rows = Vec<(u64, Vec<u8>)>;

/// What is on the disk when exactly so many batches have happened.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) rows: BTreeMap<Place, Vec<u8>>,
    /// What each audit entry says.
    pub(crate) entries: Vec<Kind>,
    pub(crate) open: BTreeSet<(Ulid, u32)>,
}

impl State {
    fn apply(&mut self, batch: &Batch) {
        for write in &batch.writes {
            let place = (write.table as u8, write.partition.clone(), write.ordinal);
            match &write.value {
                Some(value) => self.rows.insert(place, value.clone()),
                None => self.rows.remove(&place),
            };
        }
        for draft in &batch.audit {
            self.entries.push(draft.kind.clone());
            match &draft.kind {
                Kind::ToolIntent { turn, call, .. } => drop(self.open.insert((*turn, call.0))),
                Kind::ToolOutcome { turn, call, .. } => drop(self.open.remove(&(*turn, call.0))),
                _ => {}
            }
        }
    }
}

/// What the run has done so far, as the outside knows it.
#[derive(Default)]
pub(crate) struct World {
    /// State after each batch that was handed to the store; the first is empty.
    states: Vec<State>,
    /// Batches that are durable for certain.
    acknowledged: usize,
    created: bool,
    /// Effects in the world outside: a durable intent must precede each of them.
    effects: BTreeSet<(Ulid, u32)>,
}

const TABLES: [Table; 6] =
    [Table::Inbox, Table::Seen, Table::Outbox, Table::Sessions, Table::History, Table::Memory];
/// Row that every batch writes: how many batches there were.
const PROGRESS: &[u8] = b"progress";

fn put(table: Table, partition: &[u8], ordinal: u64, value: Vec<u8>) -> Write {
    Write { table, partition: partition.to_vec(), ordinal, value: Some(value) }
}

fn remove(table: Table, partition: &[u8], ordinal: u64) -> Write {
    Write { table, partition: partition.to_vec(), ordinal, value: None }
}

/// A run: the world and the disks that it works on.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) disks: Disks,
    world: Arc<Mutex<World>>,
}

impl Run {
    pub(crate) fn new(disks: Disks) -> Self {
        let world = World { states: vec![State::default()], ..World::default() };
        Self { disks, world: Arc::new(Mutex::new(world)) }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Batches that are durable for certain, effects in the world.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let world = self.world();
        (world.acknowledged, world.effects.len())
    }

    /// The state after everything that was handed in.
    pub(crate) fn newest(&self) -> State {
        self.world().states.last().unwrap().clone()
    }

    fn hand_in(&self, store: &Store, mut batch: Batch, durable: bool) -> Result<(), StoreError> {
        let number = {
            let mut world = self.world();
            let number = world.states.len();
            let text = number.to_string().into_bytes();
            batch.writes.push(put(Table::Memory, PROGRESS, 0, text));
            let mut next = world.states.last().unwrap().clone();
            next.apply(&batch);
            world.states.push(next);
            number
        };
        if durable {
            store.commit_blocking(batch)?;
            self.world().acknowledged = number;
            Ok(())
        } else {
            store.append_blocking(batch)
        }
    }

    /// One turn with `calls` tool calls, as the driver writes it.
    fn turn(&self, store: &Store, n: u64, calls: u32, size: usize) -> Result<(), StoreError> {
        let turn = Ulid::from_parts(n, 1);
        let tool = ToolName::parse("fs.write").unwrap();
        let intent = |call| Kind::ToolIntent {
            turn,
            call: CallId(call),
            tool: tool.clone(),
            version: 1,
            scopes: Vec::new(),
            subject: "subject".to_owned(),
            repaired: false,
            label: hearth_scope::Label::NEUTRAL,
        };
        let outcome = |call| Kind::ToolOutcome {
            turn,
            call: CallId(call),
            tool: tool.clone(),
            outcome: "verified".to_owned(),
            duration_ms: 3,
        };
        let text = vec![b'a' + (n % 26) as u8; size];
        let accept = Batch::new().put([
            put(Table::Inbox, b"pending", n, text.clone()),
            put(Table::Seen, format!("console/{n}").as_bytes(), 0, vec![1]),
        ]);
        self.hand_in(store, accept, true)?;
        let started = Kind::TurnStarted {
            turn,
            session: Ulid(1),
            channel: "console".to_owned(),
            tier: TrustTier::Trusted,
            effective: CapabilitySet::default(),
        };
        self.hand_in(store, Batch::new().audit(started), false)?;
        let mut before = Batch::new().put([put(Table::Inbox, b"pending", n, vec![2; 8])]);
        for call in 1..=calls {
            self.hand_in(store, before.audit(intent(call)), true)?;
            assert!(self.world().effects.insert((turn, call)), "an effect happens once");
            before = Batch::new().audit(outcome(call));
        }
        let ended = Kind::TurnEnded {
            turn,
            outcome: "completed".to_owned(),
            reason: None,
            tool_calls: calls,
            duration_ms: 9,
        };
        let ended = before.audit(ended).put([
            put(Table::History, b"exchanges", n, text.clone()),
            put(Table::Outbox, b"waiting", n, text),
            remove(Table::Inbox, b"pending", n),
        ]);
        self.hand_in(store, ended, true)?;
        self.hand_in(store, Batch::new().put([remove(Table::Outbox, b"waiting", n)]), false)
    }

    /// Creation, turns with growth and rotation, a checkpoint, a clean stop and
    /// start in the middle, a clean end. Stops at the first error.
    pub(crate) fn script(&self, seed: u64, turns: u64) -> Result<(), StoreError> {
        let mut rng = Rng(seed);
        self.disks.create()?;
        self.world().created = true;
        let (mut store, _) = self.disks.open_again()?;
        for n in 1..=turns {
            let (calls, size) = (rng.below(4) as u32, 100 + rng.below(1500) as usize);
            self.turn(&store, n, calls, size)?;
            match rng.below(5) {
                0 => store.checkpoint_blocking()?,
                1 => {
                    store.close_blocking()?;
                    self.closed();
                    store = self.disks.open_again()?.0;
                }
                _ => {}
            }
        }
        store.close_blocking()?;
        self.closed();
        Ok(())
    }

    /// Closing makes everything durable.
    fn closed(&self) {
        let mut world = self.world();
        world.acknowledged = world.states.len() - 1;
    }

    /// Checks what a new start finds on `disks`.
    pub(crate) fn check(&self, disks: &Disks) -> Result<(), String> {
        let world = self.world();
        check(&world, disks)
    }
}

impl Disks {
    /// Opens in the same process: the lock of the previous handle is given up.
    fn open_again(&self) -> Result<(Store, hearth_store::Opened), StoreError> {
        self.state.unlock();
        self.open()
    }
}

fn check(world: &World, disks: &Disks) -> Result<(), String> {
    if !disks.marked() {
        if world.created {
            return Err("the marker is gone".to_owned());
        }
        // Never created: creation must start over, whatever lies there.
        if !matches!(disks.open(), Err(StoreError::NotInitialized)) {
            return Err("a store without a marker is not refused".to_owned());
        }
        disks.state.unlock();
        disks.create().map_err(|e| format!("creation does not start over: {e}"))?;
        disks.state.unlock();
    }
    // Read before anything is repaired: what does not count is not there.
    let before = AuditLog::new(&disks.state, &key()).verify(None, None);
    let before = before.map_err(|e| format!("the log cannot be read: {e}"))?;
    let (store, opened) = disks.open().map_err(|e| format!("it does not open: {e}"))?;
    if (before.end.size, before.end.hash, before.finding) != (opened.entries, opened.last_hash, None) {
        return Err(format!("{} entries were read, {} counted", before.end.size, opened.entries));
    }
    let progress = store.get(Table::Memory, PROGRESS, 0).map_err(|e| format!("progress: {e}"))?;
    let done: usize = progress.map_or(0, |p| String::from_utf8_lossy(&p).parse().unwrap_or(usize::MAX));
    if done < world.acknowledged {
        return Err(format!("{} batches were acknowledged, {done} are there", world.acknowledged));
    }
    let state = world.states.get(done).ok_or("a batch is there that was never handed in")?;
    check_rows(&store, state)?;
    check_log(disks, state, &opened.gaps)?;
    let known: BTreeSet<_> = state.entries.iter().filter_map(intent).collect();
    if let Some((turn, call)) = world.effects.iter().find(|e| !known.contains(*e)) {
        return Err(format!("effect {turn}/{call} has no intent"));
    }
    Ok(())
}

fn intent(kind: &Kind) -> Option<(Ulid, u32)> {
    match kind {
        Kind::ToolIntent { turn, call, .. } => Some((*turn, call.0)),
        _ => None,
    }
}

/// All rows are those of the state: none lost, none stale, none made up.
pub(crate) fn check_rows(store: &Store, state: &State) -> Result<(), String> {
    let mut wanted: BTreeMap<(u8, &[u8]), Rows> = BTreeMap::new();
    for table in TABLES {
        for partition in [&b"pending"[..], b"waiting", b"exchanges", PROGRESS] {
            wanted.insert((table as u8, partition), Vec::new());
        }
    }
    for ((table, partition, ordinal), value) in &state.rows {
        wanted.entry((*table, partition)).or_default().push((*ordinal, value.clone()));
    }
    for ((table, partition), rows) in wanted {
        let table = TABLES.into_iter().find(|t| *t as u8 == table).unwrap();
        let found = store.scan(table, partition, 0..=u64::MAX, 10_000, false).map_err(|e| e.to_string())?;
        if found != rows {
            let name = String::from_utf8_lossy(partition);
            return Err(format!("{table:?}/{name}: {} rows instead of {}", found.len(), rows.len()));
        }
    }
    Ok(())
}

/// The chain holds, and has exactly the entries of the state and one gap for
/// each intent that has no outcome.
fn check_log(disks: &Disks, state: &State, gaps: &[Kind]) -> Result<(), String> {
    let key = key();
    let log = AuditLog::new(&disks.state as &dyn Disk, &key);
    let report = log.verify(None, None).map_err(|e| format!("the log cannot be read: {e}"))?;
    if let Some(finding) = report.finding {
        return Err(format!("the chain does not hold: {finding}"));
    }
    let lines = log.newest(usize::MAX, &|_| true).map_err(|e| e.to_string())?;
    let kinds: Option<Vec<Kind>> =
        lines.iter().rev().map(|l| Kind::deserialize_line(l).map(|(kind, _)| kind)).collect();
    let kinds = kinds.ok_or("an entry cannot be read")?;
    if kinds.len() as u64 != report.entries {
        return Err("the log has another length when it is verified".to_owned());
    }
    let (written, added) = kinds.split_at_checked(state.entries.len()).ok_or("entries are missing")?;
    if written != state.entries {
        return Err("an entry is not what was written".to_owned());
    }
    let found: Vec<_> = added
        .iter()
        .map(|kind| match kind {
            Kind::Gap { turn, call, .. } => Ok((*turn, call.0)),
            _ => Err("an entry was made up".to_owned()),
        })
        .collect::<Result<_, _>>()?;
    if found != state.open.iter().copied().collect::<Vec<_>>() {
        return Err(format!("{} gaps for {} open intents", found.len(), state.open.len()));
    }
    // Those of an earlier, interrupted start are not reported again.
    if !gaps.is_empty() && gaps != added {
        return Err("the reported gaps are not the recorded ones".to_owned());
    }
    Ok(())
}

/// A start and its first durable record, as far as the disk lets it come.
pub(crate) fn start(disks: &Disks) {
    if let Ok((store, _)) = disks.open() {
        let _ = store.commit_blocking(Batch::new().put([put(Table::Memory, b"started", 0, vec![1; 40])]));
    }
}

/// redb panics on some images of the control and of damaged files. The store
/// turns that into an error, so that its words are noise here.
pub(crate) fn hush_redb() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.location().is_some_and(|at| at.file().contains("redb-")) {
                usual(panic);
            }
        }));
    });
}

/// A batch with one entry, for tests that only need something to write.
pub(crate) fn note(text: &str) -> Batch {
    let kind = Kind::Shutdown { reason: text.to_owned() };
    Batch { audit: vec![Draft::new(kind)], ..Batch::default() }
}
