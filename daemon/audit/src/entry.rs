//! What is recorded.
//!
//! An entry never holds message text, tool arguments or tool results: arguments
//! are recorded as a keyed hash, subjects are redacted by the tool.

use hearth_scope::{CallId, CapabilitySet, Label, Scope, ToolName, TrustTier};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// When something happened, as far as the box knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Identity of this boot of the daemon's machine.
    pub boot: Ulid,
    /// Nanoseconds of the monotonic clock since that boot.
    pub mono_ns: u64,
    /// Milliseconds since 1970 (UTC), or `None` while the clock is not synchronised.
    pub wall_ms: Option<u64>,
}

/// An entry as its author hands it in; the writer adds sequence, stamp and chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// What happened.
    pub kind: Kind,
    /// Canonical argument bytes, recorded only as a keyed hash.
    pub arguments: Option<Vec<u8>>,
}

impl Draft {
    /// An entry without arguments.
    pub fn new(kind: Kind) -> Self {
        Self { kind, arguments: None }
    }
}

/// What happened. Field order is irrelevant: entries are canonical JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    /// A turn began.
    TurnStarted {
        /// The turn.
        turn: Ulid,
        /// The conversation.
        session: Ulid,
        /// The channel, for example `console`.
        channel: String,
        /// The tier of the origin.
        tier: TrustTier,
        /// What the turn may do.
        effective: CapabilitySet,
    },
    /// A model answered (or failed to).
    ModelCall {
        /// The turn.
        turn: Ulid,
        /// Step in the turn, from 1.
        step: u32,
        /// The model that answered.
        model: String,
        /// Prompt tokens, where the server said so.
        prompt_tokens: u64,
        /// Generated tokens, where the server said so.
        completion_tokens: u64,
        /// `ok`, or the class of the failure.
        outcome: String,
    },
    /// A tool is about to run. Durable before the effect.
    ToolIntent {
        /// The turn.
        turn: Ulid,
        /// The call in the turn.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// The tool's version.
        version: u32,
        /// The scopes that allowed it.
        scopes: Vec<Scope>,
        /// What it acts on, redacted.
        subject: String,
        /// True when the tool name was repaired by the daemon.
        repaired: bool,
        /// What the turn had read when this was decided.
        label: Label,
    },
    /// A tool has run.
    ToolOutcome {
        /// The turn.
        turn: Ulid,
        /// The call in the turn.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// `verified`, `unverified`, `not_applicable`, `failed`, `escalated` or `cancelled`.
        /// `unverified` is also what had not ended at its limit and could not be stopped.
        outcome: String,
        /// How long it ran.
        duration_ms: u64,
    },
    /// A call was refused by the gate.
    ScopeDenied {
        /// The turn.
        turn: Ulid,
        /// The call in the turn.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// The scope that was missing.
        scope: Scope,
        /// The tier of the turn.
        tier: TrustTier,
        /// What the turn held at that moment.
        held: CapabilitySet,
    },
    /// A call needs the owner's word.
    ApprovalRequested {
        /// The turn.
        turn: Ulid,
        /// The call in the turn.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// Why.
        reason: String,
    },
    /// The owner gave it, or not.
    ApprovalResolved {
        /// The turn.
        turn: Ulid,
        /// The call in the turn.
        call: CallId,
        /// `approved`, `denied` or `expired`.
        resolution: String,
    },
    /// Memory was read, written or forgotten.
    MemoryAccess {
        /// The turn.
        turn: Ulid,
        /// `read`, `write` or `forget`.
        operation: String,
        /// The scope used.
        scope: Scope,
        /// How many entries were touched.
        entries: u64,
    },
    /// A turn ended, in exactly one way.
    TurnEnded {
        /// The turn.
        turn: Ulid,
        /// `completed`, `escalated`, `timed_out`, `cancelled`, `failed` or `looping`.
        outcome: String,
        /// The limit or error that ended it, where one did.
        reason: Option<String>,
        /// Tool calls that ran.
        tool_calls: u32,
        /// How long it took.
        duration_ms: u64,
    },
    /// A step of long-running work.
    MissionEvent {
        /// The mission.
        mission: Ulid,
        /// Digest of the event in the mission's journal, hexadecimal.
        digest: String,
    },
    /// A setting changed.
    ConfigChanged {
        /// The key; never the value.
        key: String,
    },
    /// A person opened a session.
    SessionOpened {
        /// The channel.
        channel: String,
        /// Tier of the origin.
        tier: TrustTier,
    },
    /// The daemon started.
    Startup {
        /// Version of the daemon.
        version: String,
        /// True when the previous run did not shut down.
        unclean: bool,
    },
    /// The daemon stopped on purpose.
    Shutdown {
        /// Why.
        reason: String,
    },
    /// The wall clock moved against the monotonic clock.
    ClockStep {
        /// By how much.
        delta_ms: i64,
    },
    /// An intent without an outcome was found at start-up: unknown whether it
    /// took effect, never repeated.
    Gap {
        /// The turn.
        turn: Ulid,
        /// The call in the turn.
        call: CallId,
        /// The tool.
        tool: ToolName,
    },
}

impl Kind {
    /// Reads back what happened, and the hash of the entry before, from the
    /// canonical line of an entry.
    pub fn deserialize_line(line: &[u8]) -> Option<(Self, crate::Hash)> {
        let mut value: serde_json::Value = serde_json::from_slice(line).ok()?;
        let prev = crate::unhex(value.get("prev")?.as_str()?)?;
        let map = value.as_object_mut()?;
        for field in ["seq", "boot", "mono_ns", "wall_ms", "prev", "args"] {
            map.remove(field);
        }
        Some((serde_json::from_value(value).ok()?, prev))
    }
}
