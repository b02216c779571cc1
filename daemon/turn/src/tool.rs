//! Tools as the turn sees them: data, not code.

use std::time::Duration;

use hearth_scope::{CallId, EffectClass, Label, Scope, ToolName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What the model is told about a tool, and what the daemon knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Dotted name.
    pub name: ToolName,
    /// Version of behaviour and schema; recorded with each intent.
    pub version: u32,
    /// One short sentence for the model.
    pub description: String,
    /// JSON Schema of the arguments (an object).
    pub schema: Value,
    /// The strongest effect that any call of it can have.
    pub effect: EffectClass,
    /// The tool is killed after this time.
    pub timeout: Duration,
}

/// A call that the model asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Number in the turn.
    pub id: CallId,
    /// The tool.
    pub name: ToolName,
    /// Arguments, always an object.
    pub arguments: Map<String, Value>,
}

/// Whether the effect of a call was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// The tool looked and saw the effect.
    Verified,
    /// The tool acted and did not look, or could not see the effect.
    Unverified,
    /// There is no effect to see (a read, a fetch). Never counts as an action.
    NotApplicable,
}

/// Why a tool failed. The text is for the model and the person: no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// The arguments do not fit the tool.
    #[error("invalid arguments: {0}")]
    InvalidArguments(String),
    /// The thing asked for is not there.
    #[error("not found: {0}")]
    NotFound(String),
    /// Refused by a guard inside of the tool (path outside of the roots, private address, ...).
    #[error("refused: {0}")]
    Refused(String),
    /// A limit was reached.
    #[error("limit reached: {0}")]
    Limit(String),
    /// Killed at its deadline.
    #[error("stopped after {0:?}")]
    TimedOut(Duration),
    /// It had an effect to make, was still at it after its deadline and could not
    /// be stopped. Nobody knows whether the effect happens: never recorded as failed.
    #[error("not finished after {0:?}; it may still happen")]
    Unfinished(Duration),
    /// The turn was cancelled while it ran.
    #[error("cancelled")]
    Cancelled,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolOutcome {
    /// It ran.
    Completed {
        /// Result for the model (already capped by the tool).
        output: Value,
        /// Whether the effect was seen.
        verified: Verification,
        /// Who could have written what is in the output.
        label: Label,
    },
    /// The gate refused it.
    Denied {
        /// The missing scope.
        scope: Scope,
    },
    /// The owner has to agree first.
    RequiresEscalation {
        /// Why.
        reason: String,
    },
    /// It failed.
    Failed(ToolError),
}
