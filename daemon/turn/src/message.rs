//! Messages and the history of a conversation.

use std::fmt;

use hearth_scope::Label;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ulid::Ulid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Ulid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A turn.
    TurnId
);
id!(
    /// A conversation.
    SessionId
);
id!(
    /// An inbound message; also the idempotency key of its answer.
    MessageId
);

/// What a person said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Identity of the message.
    pub id: MessageId,
    /// The conversation that it belongs to.
    pub session: SessionId,
    /// The text.
    pub text: String,
    /// Milliseconds since 1970 (UTC), or `None` while the clock is not synchronised.
    pub received_ms: Option<u64>,
}

/// A tool call as the history keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PastCall {
    /// The provider's identifier of the call, or one that the daemon made.
    pub id: String,
    /// Dotted name of the tool; each provider client translates it.
    pub name: String,
    /// Arguments, always an object.
    pub arguments: Map<String, Value>,
}

/// One message of a conversation as a model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum ChatMessage {
    /// The person.
    User {
        /// Text.
        text: String,
    },
    /// The model: text, calls, or both.
    Assistant {
        /// Text; may be empty beside calls.
        text: String,
        /// Calls that the model made.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<PastCall>,
    },
    /// The result of one call.
    Tool {
        /// The call that it answers.
        call_id: String,
        /// Dotted name of the tool.
        name: String,
        /// Text of the result.
        text: String,
        /// True when the call failed or was denied.
        is_error: bool,
    },
}

/// A person's message with everything up to the final answer: the unit in which
/// history is trimmed, so that a call is never separated from its result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Begins with a user message.
    pub messages: Vec<ChatMessage>,
    /// Everything that was read for it. Reading it again is reading that.
    #[serde(default)]
    pub label: Label,
}
