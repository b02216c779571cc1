//! Failures, freezes and power cuts at every operation of tool turns, through the
//! real desk, driver and turn machine on a simulated disk.
//!
//! A box lives several lives. In the first one an operation of the disk fails, or
//! from it on nothing reaches the disk any more. The next life starts on what the
//! crash left, recovers, and is told every message again.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use hearth::clock::SystemClock;
use hearth::runtime::drive::{ModelPort, Shared};
use hearth::runtime::gateway::{Agent, Desk, DeskGateway};
use hearth_audit::{Kind, Stamp};
use hearth_contract::{BoxFuture, ChannelEvent, ChannelName, Gateway, Inbound};
use hearth_models::ChatOptions;
use hearth_scope::{CallId, CapabilitySet, EffectClass, Grant, Need, Origin, Scope, ToolName, TrustTier};
use hearth_store::sim::{Rng, SimDisk};
use hearth_store::{AuditLog, Batch, Options, Store, StoreError, create};
use hearth_tools::{Registry, Tool, ToolContext};
use hearth_turn::{
    ChatMessage, Limits, ModelEvent, ModelRequest, StopReason, ToolError, ToolOutcome, ToolSpec, TurnOutcome,
    Usage, Verification,
};
use hearth_vault::{Argon2Params, DataKey, Header, Secret, SlotRandom};
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

/// Name of the marker on its own disk.
const MARKER: &str = "initialized";
/// Messages of a life; together they fill more than one journal segment.
const MESSAGES: [&str; 3] = ["first", "second", "third"];
/// Calls of each turn, by step.
const STEPS: [&[u64]; 2] = [&[1, 2], &[3]];
const CALLS: usize = 3;

/// The two disks of a box: one with the store, one with the marker.
#[derive(Clone, Default)]
struct Disks {
    state: SimDisk,
    marker: SimDisk,
}

impl Disks {
    fn power_cut(&self, rng: &mut Rng) -> Self {
        Self { state: self.state.power_cut(rng), marker: self.marker.power_cut(rng) }
    }

    fn killed(&self) -> Self {
        Self { state: self.state.process_killed(), marker: self.marker.process_killed() }
    }

    /// Segments so small that a life rotates.
    fn options(&self) -> Options {
        Options {
            disk: Arc::new(self.state.clone()),
            marker: (Arc::new(self.marker.clone()), MARKER.to_owned()),
            segment_bytes: 12 * 1024,
            checkpoint_bytes: 3 * 1024,
            ballast_bytes: 0,
            clock: Arc::new(|| Stamp { boot: Ulid(1), mono_ns: 2, wall_ms: None }),
        }
    }

    fn create(&self) -> Result<(), StoreError> {
        let mut header = Header::new([9; 16]);
        let random = SlotRandom { salt: [1; 16], nonce: [2; 24] };
        header.add_slot(&key(), &Secret::KeyFile(&[3; 32]), "", Argon2Params::default(), &random).unwrap();
        create(&self.options(), &key(), &header)
    }
}

fn key() -> DataKey {
    DataKey::from_bytes([7; 32])
}

/// What the outside knows: it survives every crash.
#[derive(Default)]
struct World {
    /// How often each effect happened: message and number of the call.
    effects: BTreeMap<(String, u64), u32>,
    /// The calls that had an effect, as the audit log names them.
    calls: BTreeSet<(Ulid, u32)>,
    /// Messages that were acknowledged.
    accepted: BTreeSet<String>,
    /// Outcomes that were told.
    outcomes: BTreeMap<String, Vec<TurnOutcome>>,
    /// Acknowledged messages that were not recognised when they came again.
    forgotten: Vec<String>,
}

#[derive(Clone, Default)]
struct Outside(Arc<Mutex<World>>);

impl Outside {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

/// A tool whose only effect is that the outside counts it.
struct Count {
    spec: ToolSpec,
    outside: Outside,
}

impl Count {
    fn new(outside: Outside) -> Self {
        let spec = ToolSpec {
            name: ToolName::parse("count.up").unwrap(),
            version: 1,
            description: "Count.".to_owned(),
            schema: json!({"type": "object"}),
            effect: EffectClass::Persist,
            timeout: std::time::Duration::from_secs(60),
        };
        Self { spec, outside }
    }
}

impl Tool for Count {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn reachable(&self, _: &CapabilitySet) -> bool {
        true
    }

    fn need(&self, _: &Map<String, Value>) -> Result<Need, ToolError> {
        let scopes = vec![Scope::parse("memory.write").unwrap()];
        Ok(Need { scopes, subject: "the outside".to_owned(), effect: EffectClass::Persist })
    }

    fn run<'a>(
        &'a self,
        grant: Grant,
        args: Map<String, Value>,
        ctx: &'a ToolContext,
    ) -> BoxFuture<'a, ToolOutcome> {
        let what = (args["message"].as_str().unwrap().to_owned(), args["n"].as_u64().unwrap());
        let CallId(call) = grant.call();
        let mut world = self.outside.world();
        *world.effects.entry(what).or_default() += 1;
        world.calls.insert((ctx.turn.0, call));
        let outcome = ToolOutcome::Completed {
            output: json!({"ok": true}),
            verified: Verification::Verified,
            label: hearth_scope::Label::NEUTRAL,
        };
        Box::pin(std::future::ready(outcome))
    }
}

/// Calls the tool three times in two steps, then answers.
struct Script;

impl ModelPort for Script {
    fn chat(
        &self,
        request: ModelRequest,
        _: ChatOptions,
        _: CancellationToken,
    ) -> mpsc::Receiver<ModelEvent> {
        let (sender, events) = mpsc::channel(8);
        let spoken = |m: &ChatMessage| match m {
            ChatMessage::User { text } => Some(text.clone()),
            _ => None,
        };
        let asked = request.messages.iter().rposition(|m| spoken(m).is_some()).unwrap();
        let message = spoken(&request.messages[asked]).unwrap();
        let steps = request.messages[asked..].iter().filter(|m| matches!(m, ChatMessage::Assistant { .. }));
        match STEPS.get(steps.count()) {
            Some(calls) => calls.iter().for_each(|n| {
                let arguments = json!({"message": message, "n": n}).as_object().cloned().unwrap();
                let (provider_id, name) = (n.to_string(), "count.up".to_owned());
                sender.try_send(ModelEvent::Call { provider_id, name, arguments: Ok(arguments) }).unwrap();
            }),
            None => sender.try_send(ModelEvent::Text("Counted.".to_owned())).unwrap(),
        }
        let (usage, model) = (Usage::default(), "scripted".to_owned());
        sender.try_send(ModelEvent::Finished { reason: StopReason::Done, usage, model }).unwrap();
        events
    }
}

fn desk(store: Store, outside: &Outside) -> Arc<Desk> {
    let tools = Registry::builder().tool(Arc::new(Count::new(outside.clone()))).build();
    let shared = Shared { store, models: Arc::new(Script), tools: Arc::new(tools) };
    let agent = Agent {
        capabilities: CapabilitySet::from_scopes([Scope::parse("memory.write").unwrap()]),
        system: "Count.".to_owned(),
        limits: Limits::default(),
        remote_conversations: Vec::new(),
        remote_limits: Limits::default(),
        message_bytes: 4096,
        waiting: 8,
        history_bytes: 64 * 1024,
        history_exchanges: 64,
        ceiling: TrustTier::Trusted,
    };
    Desk::new(shared, agent, SystemClock::new(TimeZone::UTC, [5; 16]), 1)
}

/// One life: create where nothing is, open, recover, take every message, close.
/// Ends at the first thing that does not work.
async fn live(disks: &Disks, outside: &Outside) -> Result<(), String> {
    if disks.marker.content(MARKER).is_none() {
        disks.create().map_err(|e| format!("creation: {e}"))?;
    }
    let options = disks.options();
    let opening = tokio::task::spawn_blocking(move || Store::open(options, &key()));
    let (store, opened) = opening.await.unwrap().map_err(|e| format!("opening: {e}"))?;
    let entry = Kind::Startup { version: "0".to_owned(), unclean: opened.unclean };
    store.commit(Batch::new().audit(entry)).await.map_err(|e| format!("start: {e}"))?;
    let desk = desk(store.clone(), outside);
    let recovered = desk.recover().await.map_err(|e| format!("recovery: {e}"));
    let mut taken = Ok(());
    for name in MESSAGES.iter().filter(|_| recovered.is_ok()) {
        taken = tell(&desk, outside, name).await;
        if taken.is_err() {
            break;
        }
    }
    desk.tasks.close();
    desk.tasks.wait().await;
    let closed = store.close().await.map_err(|e| format!("closing: {e}"));
    recovered.and(taken).and(closed)
}

async fn tell(desk: &Arc<Desk>, outside: &Outside, name: &str) -> Result<(), String> {
    let inbound = Inbound {
        origin: Origin::Console { uid: 1000 },
        channel: ChannelName::console(),
        external_id: name.to_owned(),
        conversation: "default".to_owned(),
        text: name.to_owned(),
    };
    let mut ticket = DeskGateway(desk.clone()).submit(inbound).await.map_err(|refusal| refusal.what)?;
    while let Some(event) = ticket.events.recv().await {
        let mut world = outside.world();
        match event {
            ChannelEvent::Accepted { duplicate, .. } => {
                if !world.accepted.insert(name.to_owned()) && !duplicate {
                    world.forgotten.push(name.to_owned());
                }
            }
            ChannelEvent::Stream(_) | ChannelEvent::Postponed => {}
            ChannelEvent::Finished(outcome) => {
                world.outcomes.entry(name.to_owned()).or_default().push(outcome);
            }
        }
    }
    Ok(())
}

/// Checks the box after a life without faults, and what the outside saw.
fn check(disks: &Disks, outside: &Outside) -> Result<usize, String> {
    let world = outside.world();
    if let Some(name) = world.forgotten.first() {
        return Err(format!("{name} was acknowledged and is not known any more"));
    }
    if let Some((what, n)) = world.effects.iter().find(|(_, n)| **n > 1) {
        return Err(format!("effect {what:?} happened {n} times"));
    }
    for name in MESSAGES {
        let effects = world.effects.keys().filter(|(message, _)| message == name).count();
        let outcomes = world.outcomes.get(name).map(Vec::as_slice).unwrap_or_default();
        let completed = |o: &TurnOutcome| matches!(o, TurnOutcome::Completed { .. });
        let open = |remedy: &str| remedy.contains("may be done after the next start");
        let settled = |o: &TurnOutcome| !matches!(o, TurnOutcome::Failed { remedy, .. } if open(remedy));
        match outcomes.last() {
            Some(last) if completed(last) && effects != CALLS => {
                return Err(format!("{name} was completed with {effects} effects"));
            }
            Some(TurnOutcome::Failed { error, .. })
                if !error.contains("restarted") && !error.contains("could not be written") =>
            {
                return Err(format!("{name} failed without a fault: {error}"));
            }
            // What was told once stays, unless it said that it might not.
            Some(last) if outcomes.iter().find(|o| settled(o)).is_some_and(|first| first != last) => {
                return Err(format!("{name} had {} outcomes: {outcomes:?}", outcomes.len()));
            }
            Some(_) => {}
            None => return Err(format!("{name} has no outcome")),
        }
    }
    let key = key();
    let log = AuditLog::new(&disks.state, &key);
    let report = log.verify(None, None).map_err(|e| format!("the log cannot be read: {e}"))?;
    if let Some(finding) = report.finding {
        return Err(format!("the chain does not hold: {finding}"));
    }
    let lines = log.newest(usize::MAX, &|_| true).map_err(|e| e.to_string())?;
    let (mut intents, mut done, mut gaps) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for line in &lines {
        match Kind::deserialize_line(line).ok_or("an entry cannot be read")?.0 {
            Kind::ToolIntent { turn, call, .. } => drop(intents.insert((turn, call.0))),
            Kind::ToolOutcome { turn, call, .. } => drop(done.insert((turn, call.0))),
            Kind::Gap { turn, call, .. } if !gaps.insert((turn, call.0)) => {
                return Err("a gap was reported twice".to_owned());
            }
            _ => {}
        }
    }
    if let Some(call) = world.calls.iter().find(|call| !intents.contains(*call)) {
        return Err(format!("the effect of call {call:?} has no intent"));
    }
    if intents.difference(&done).copied().collect::<BTreeSet<_>>() != gaps {
        return Err(format!("{} gaps for {} intents and {} outcomes", gaps.len(), intents.len(), done.len()));
    }
    Ok(gaps.len())
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Fail,
    Freeze,
}

#[derive(Debug, Clone, Copy)]
enum Crash {
    /// The process dies; what was written is there.
    Killed,
    /// The power goes; what was not synced may be lost, reordered or torn. The
    /// number picks one way.
    PowerCut(u64),
    /// The power goes, and goes again while the next life recovers.
    Twice(u64),
    /// The process dies, and the power goes while the next life recovers.
    KilledThenCut(u64),
}

const CRASHES: [Crash; 9] = [
    Crash::Killed,
    Crash::PowerCut(0),
    Crash::PowerCut(1),
    Crash::PowerCut(2),
    Crash::Twice(3),
    Crash::Twice(4),
    Crash::Twice(5),
    Crash::KilledThenCut(6),
    Crash::KilledThenCut(7),
];

/// A box that crashed at an operation, and what its next life made of it.
fn crash(
    runtime: &Runtime,
    (fault, n): (Fault, u64),
    on_marker: bool,
    how: Crash,
    syncs: bool,
) -> Result<usize, String> {
    let (disks, outside) = (Disks::default(), Outside::default());
    if !syncs {
        disks.state.ignore_syncs();
    }
    let disk = if on_marker { &disks.marker } else { &disks.state };
    match fault {
        Fault::Fail => disk.fail_at(n),
        Fault::Freeze => disk.freeze_at(n),
    }
    let _ = runtime.block_on(live(&disks, &outside));
    let (mut image, mut rng) = match how {
        Crash::Killed => (disks.killed(), Rng(0)),
        Crash::PowerCut(seed) | Crash::Twice(seed) => {
            let mut rng = Rng((n << 8) | seed);
            (disks.power_cut(&mut rng), rng)
        }
        Crash::KilledThenCut(seed) => (disks.killed(), Rng((n << 8) | seed)),
    };
    if matches!(how, Crash::Twice(_) | Crash::KilledThenCut(_)) {
        image.state.freeze_at(1 + rng.below(60));
        let _ = runtime.block_on(live(&image, &outside));
        image = image.power_cut(&mut rng);
    }
    runtime.block_on(live(&image, &outside)).map_err(|what| format!("the next life: {what}"))?;
    check(&image, &outside)
}

/// redb panics on some images of the control; the store makes errors of it.
fn hush_redb() {
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

fn runtime() -> Runtime {
    hush_redb();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Operations of a whole life on both disks.
fn operations(runtime: &Runtime) -> (u64, u64) {
    let (disks, outside) = (Disks::default(), Outside::default());
    runtime.block_on(live(&disks, &outside)).unwrap();
    assert_eq!(check(&disks, &outside), Ok(0));
    assert_eq!(outside.world().effects.len(), MESSAGES.len() * CALLS);
    let segments = hearth_store::Disk::list(&disks.state).unwrap();
    assert!(segments.iter().filter(|name| name.contains("seg")).count() > 1, "a life rotates: {segments:?}");
    (disks.state.operations(), disks.marker.operations())
}

/// INV-3, INV-4, INV-6
#[test]
fn inv_3_inv_4_inv_6_every_operation_of_tool_turns_may_fail() {
    let runtime = runtime();
    let (on_state, on_marker) = operations(&runtime);
    let points = (1..=on_state).map(|n| (n, false)).chain((1..=on_marker).map(|n| (n, true)));
    let (mut crashes, mut gaps, mut findings) = (0, 0, Vec::new());
    for (n, marker) in points {
        for fault in [Fault::Fail, Fault::Freeze] {
            for how in CRASHES {
                crashes += 1;
                match crash(&runtime, (fault, n), marker, how, true) {
                    Ok(found) => gaps += found,
                    Err(what) => {
                        findings.push(format!("{fault:?} at {n} (marker: {marker}), {how:?}: {what}"))
                    }
                }
            }
        }
    }
    println!("operations {on_state}+{on_marker} crashes {crashes} gaps {gaps} findings {}", findings.len());
    assert!(findings.is_empty(), "{}", findings[..findings.len().min(20)].join("\n"));
    assert!(gaps > 0, "some crashes lie between intent and outcome");
}

/// INV-4: the control
#[test]
fn inv_4_the_matrix_finds_a_disk_that_lies_about_syncs() {
    let runtime = runtime();
    let (on_state, _) = operations(&runtime);
    let points: Vec<_> = (1..=on_state).step_by(7).collect();
    let caught = points
        .iter()
        .filter(|n| crash(&runtime, (Fault::Freeze, **n), false, Crash::PowerCut(0), false).is_err());
    let caught = caught.count();
    println!("control without syncs: {caught} of {} power cuts are found out", points.len());
    assert!(caught * 4 > points.len());
}
