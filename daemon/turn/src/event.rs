//! What a channel is told while a turn runs.

use serde::{Deserialize, Serialize};

use crate::tool::Verification;

/// An event of a running turn. A channel may ignore any of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StreamEvent {
    /// Answer text, to be appended.
    Text {
        /// The piece.
        text: String,
    },
    /// A sentence about what is going on.
    Status {
        /// The sentence.
        text: String,
    },
    /// A call is about to run.
    ToolCallStarted {
        /// Number in the turn.
        call: u32,
        /// Dotted name.
        tool: String,
        /// What it acts on, redacted.
        subject: String,
    },
    /// A call has ended.
    ToolCallFinished {
        /// Number in the turn.
        call: u32,
        /// Dotted name.
        tool: String,
        /// One line for a person.
        summary: String,
        /// Whether the effect was seen; absent when the call did not run.
        #[serde(skip_serializing_if = "Option::is_none")]
        verified: Option<Verification>,
    },
}
