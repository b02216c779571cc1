//! How a turn ends, and the error contract.

use std::time::Duration;

use hearth_scope::{CapabilitySet, Scope, ToolName};
use serde::{Deserialize, Serialize};

use crate::model::ModelFailure;
use crate::tool::ToolError;

/// The end of a turn: exactly one, always.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The model gave a final answer.
    Completed {
        /// The answer.
        text: String,
        /// Calls that ran.
        tool_calls: u32,
        /// Time taken, milliseconds.
        duration_ms: u64,
    },
    /// A call needs the owner's word.
    Escalated {
        /// Why.
        reason: String,
        /// The tool that waits.
        tool: ToolName,
        /// Calls that ran.
        tool_calls: u32,
    },
    /// The wall-clock budget was used up.
    TimedOut {
        /// Calls that ran.
        tool_calls: u32,
        /// Time taken, milliseconds.
        duration_ms: u64,
    },
    /// The person stopped it.
    Cancelled {
        /// Calls that ran.
        tool_calls: u32,
    },
    /// The breaker stopped a model that went in circles.
    Looping {
        /// What was tried, in one sentence.
        tried: String,
        /// Calls that ran.
        tool_calls: u32,
    },
    /// Something failed; the sentences say what, and what to do.
    Failed {
        /// What happened.
        error: String,
        /// What to do.
        remedy: String,
        /// Calls that ran.
        tool_calls: u32,
    },
}

impl TurnOutcome {
    /// The name recorded in the audit log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Escalated { .. } => "escalated",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled { .. } => "cancelled",
            Self::Looping { .. } => "looping",
            Self::Failed { .. } => "failed",
        }
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The error contract: 14 kinds, each telling the caller who has to act. A
/// fifteenth needs a decision record. Detail lives in the source.
#[derive(Debug, thiserror::Error)]
pub enum HearthError {
    /// A setting is wrong or missing.
    #[error("configuration error: {0}")]
    Config(String),
    /// The store failed.
    #[error("storage error")]
    Storage(#[source] Source),
    /// Sealing, unsealing or key derivation failed.
    #[error("crypto error")]
    Crypto(#[source] Source),
    /// The turn does not hold the scope.
    #[error("capability denied: scope {scope} is not held")]
    CapabilityDenied {
        /// The missing scope.
        scope: Scope,
        /// What is held.
        held: CapabilitySet,
    },
    /// A scope could not be parsed.
    #[error("invalid scope: {0}")]
    InvalidScope(String),
    /// The model did not answer.
    #[error("model error")]
    Llm(#[source] ModelFailure),
    /// A tool failed.
    #[error("tool {tool} failed")]
    Tool {
        /// The tool.
        tool: ToolName,
        /// Why.
        source: ToolError,
    },
    /// A tool waits for the owner.
    #[error("tool {tool} needs approval: {reason}")]
    ToolEscalation {
        /// The tool.
        tool: ToolName,
        /// Why.
        reason: String,
    },
    /// A channel failed.
    #[error("channel error")]
    Channel(#[source] Source),
    /// The audit log cannot be trusted or written.
    #[error("audit error: {0}")]
    Audit(String),
    /// A wait ended.
    #[error("timed out after {0:?}")]
    Timeout(Duration),
    /// The person stopped it.
    #[error("cancelled")]
    Cancelled,
    /// A named thing is not there.
    #[error("not found: {kind} {id}")]
    NotFound {
        /// What kind of thing.
        kind: &'static str,
        /// Its name.
        id: String,
    },
    /// A bug.
    #[error("internal error: {0}")]
    Internal(String),
}
