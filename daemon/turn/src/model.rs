//! What a model is asked and what it answers, independent of any provider.

use serde::{Deserialize, Serialize};

use crate::message::ChatMessage;
use crate::tool::ToolSpec;

/// One request to a model. The order is what makes the prefix byte-stable:
/// system text, tools, history, and last what changes with every turn.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// System text; the same bytes on every turn.
    pub system: String,
    /// Tools on offer, in a fixed order.
    pub tools: Vec<ToolSpec>,
    /// History and the current exchange, oldest first, already trimmed.
    pub messages: Vec<ChatMessage>,
    /// Upper bound of generated tokens.
    pub max_tokens: u32,
}

/// Token counts; zero where the server did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that the server took from its cache, where it says so.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub completion_tokens: u64,
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It had said everything, or asked for tools.
    Done,
    /// The token limit or the context was reached.
    Length,
    /// The provider withheld the answer.
    Filtered,
}

/// One event of a model's stream, in order; the last is `Finished` or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// The model is being loaded or the prompt is being read.
    Waiting,
    /// Answer text.
    Text(String),
    /// Thinking: never shown as the answer, never kept.
    Thinking(String),
    /// A whole call, arguments as the provider sent them (JSON text or object).
    Call {
        /// The provider's identifier, empty where it has none.
        provider_id: String,
        /// Dotted name where it is one of the offered tools, else as the model wrote it.
        name: String,
        /// Parsed arguments, or the text that could not be parsed as an object.
        arguments: Result<serde_json::Map<String, serde_json::Value>, String>,
    },
    /// The stream ended as the protocol demands.
    Finished {
        /// Why the model stopped.
        reason: StopReason,
        /// Token counts.
        usage: Usage,
        /// The model that answered, as the server names it.
        model: String,
    },
    /// The stream ended in any other way.
    Failed(ModelFailure),
}

/// Why a model did not answer. Texts are for people and hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelFailure {
    /// No connection.
    #[error("the model server cannot be reached: {0}")]
    Unreachable(String),
    /// A phase of the request took too long.
    #[error("the model server did not answer in time ({0})")]
    TimedOut(String),
    /// Busy, loading, rate limited, or failing for now.
    #[error("the model server is busy: {message}")]
    Busy {
        /// The server's words, shortened.
        message: String,
        /// Least time to wait, where the server said so.
        retry_after_s: Option<u64>,
    },
    /// The prompt does not fit.
    #[error("the conversation is too long for the model ({prompt_tokens} of {context_tokens} tokens)")]
    ContextOverflow {
        /// Tokens of the prompt; 0 where unknown.
        prompt_tokens: u64,
        /// Size of the context; 0 where unknown.
        context_tokens: u64,
    },
    /// The model is not there.
    #[error("model \"{0}\" is not installed on the server")]
    ModelNotFound(String),
    /// The model cannot call tools.
    #[error("model \"{0}\" cannot call tools")]
    ToolsUnsupported(String),
    /// Key missing, wrong or without credit.
    #[error("the model server refused the credentials: {0}")]
    Unauthorised(String),
    /// The server refused the request.
    #[error("the model server refused the request: {0}")]
    Rejected(String),
    /// The stream broke off.
    #[error("the answer broke off: {0}")]
    Incomplete(String),
    /// The server sent what its protocol does not allow.
    #[error("the model server sent something unexpected: {0}")]
    Malformed(String),
}
