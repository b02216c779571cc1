//! Fakes and the one way in which tests call a tool: through the gate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hearth_scope::{CallId, CapabilitySet, Decision, Integrity, Scope, ToolName, TrustTier};
use hearth_turn::{SessionId, ToolCall, ToolError, ToolOutcome, TurnId, Verification};
use jiff::tz::TimeZone;
use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use crate::{BoxFuture, Clock, MemoryEntry, MemoryPort, NewMemory, Reading, Registry, ToolContext};

/// A clock that stands still.
pub(crate) struct FixedClock(pub(crate) &'static str, pub(crate) bool);

impl Clock for FixedClock {
    fn now(&self) -> Reading {
        Reading { wall: self.0.parse().unwrap(), synchronised: self.1 }
    }
    fn zone(&self) -> TimeZone {
        TimeZone::get("Europe/Berlin").unwrap()
    }
}

pub(crate) fn clock() -> Arc<FixedClock> {
    Arc::new(FixedClock("2026-12-01T12:30:00Z", true))
}

/// A memory in memory, with switches for what can go wrong.
#[derive(Default)]
pub(crate) struct FakeMemory {
    pub(crate) entries: Mutex<Vec<MemoryEntry>>,
    pub(crate) loads: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Writes and removals say that they worked and do nothing.
    pub(crate) lies: bool,
}

impl FakeMemory {
    /// Adds an entry; `topic` may be empty.
    pub(crate) fn seed(&self, topic: &str, text: &str, label: Integrity) -> Ulid {
        let mut entries = self.entries.lock().unwrap();
        let id = Ulid(entries.len() as u128 + 1);
        entries.push(MemoryEntry {
            id,
            text: text.into(),
            topic: (!topic.is_empty()).then(|| topic.into()),
            label,
            source: "conversation".into(),
            created_ms: Some(1_796_040_000_000),
        });
        self.version.fetch_add(1, Ordering::Relaxed);
        id
    }
}

impl MemoryPort for FakeMemory {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
    fn all(&self) -> BoxFuture<'_, Result<Vec<MemoryEntry>, ToolError>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(self.entries.lock().unwrap().clone()) })
    }
    fn get(&self, id: Ulid) -> BoxFuture<'_, Result<Option<MemoryEntry>, ToolError>> {
        Box::pin(async move { Ok(self.entries.lock().unwrap().iter().find(|e| e.id == id).cloned()) })
    }
    fn put(&self, new: NewMemory) -> BoxFuture<'_, Result<Ulid, ToolError>> {
        Box::pin(async move {
            if self.lies {
                return Ok(Ulid(999));
            }
            let id = self.seed(new.topic.as_deref().unwrap_or(""), &new.text, new.label);
            Ok(id)
        })
    }
    fn forget(&self, ids: Vec<Ulid>) -> BoxFuture<'_, Result<(), ToolError>> {
        Box::pin(async move {
            if !self.lies {
                self.entries.lock().unwrap().retain(|e| !ids.contains(&e.id));
                self.version.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    }
}

pub(crate) fn context() -> ToolContext {
    ToolContext {
        turn: TurnId(Ulid(7)),
        session: SessionId(Ulid(8)),
        tier: TrustTier::Trusted,
        held: CapabilitySet::empty(),
        label: hearth_scope::Label::NEUTRAL,
        fence: "K7Q2".into(),
        cancel: CancellationToken::new(),
        deadline: Instant::now() + Duration::from_secs(600),
    }
}

pub(crate) fn object(json: &str) -> Map<String, Value> {
    serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"))
}

pub(crate) fn scopes(texts: &[&str]) -> CapabilitySet {
    CapabilitySet::from_scopes(texts.iter().map(|t| Scope::parse(t).unwrap()))
}

/// Calls a tool as a turn does: need, gate at the Trusted tier, run.
pub(crate) async fn call(registry: &Registry, ctx: &ToolContext, tool: &str, args: &str) -> ToolOutcome {
    let name = ToolName::parse(tool).unwrap();
    let arguments = object(args);
    let need = match registry.need(&name, &arguments) {
        Ok(need) => need,
        Err(error) => return ToolOutcome::Failed(error),
    };
    match ctx.held.under(ctx.tier).check(&name, CallId(1), &need) {
        Decision::Grant(grant) => registry.run(grant, ToolCall { id: CallId(1), name, arguments }, ctx).await,
        Decision::Denied { scope } => ToolOutcome::Denied { scope },
        Decision::NeedsApproval { reason } => ToolOutcome::RequiresEscalation { reason },
    }
}

/// The output of a call that has to work.
pub(crate) fn output(outcome: ToolOutcome) -> (Value, Verification) {
    match outcome {
        ToolOutcome::Completed { output, verified, .. } => (output, verified),
        other => panic!("{other:?}"),
    }
}

/// The text of a call that has to fail.
pub(crate) fn failure(outcome: ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Failed(error) => error.to_string(),
        ToolOutcome::Denied { scope } => format!("denied: {scope}"),
        other => panic!("{other:?}"),
    }
}
