//! Requests that are answered at once, without a turn.

use std::fmt;

use hearth_scope::Origin;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::BoxFuture;
use crate::inbound::{CONVERSATION_MAX, check_word};
use crate::refusal::{Refusal, RefusalKind};

/// Most rows that one request may ask for.
pub const ROWS_MAX: u32 = 1_000;
/// Longest search text, in bytes.
pub const QUERY_MAX: usize = 512;
/// Longest identifier of a row, in bytes.
pub const ID_MAX: usize = 64;
/// Longest passphrase, in bytes.
pub const PASSPHRASE_MAX: usize = 1_024;

/// A passphrase on its way to the vault: wiped when dropped, never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Takes the text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text; the caller must not copy it into anything that is logged.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(..)")
    }
}

impl Serialize for Passphrase {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Passphrase {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// What a channel can ask the daemon for besides a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// State of the daemon in a few figures.
    Status {},
    /// The daemon's own checks, each with what to do.
    Doctor {},
    /// Memories, best match first, or newest first without a query.
    MemoryList {
        /// Words to search for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        query: Option<String>,
        /// Most rows to return, 1 to 1,000.
        limit: u32,
    },
    /// One memory with its source.
    MemoryShow {
        /// Its identifier.
        id: String,
    },
    /// Deletes one memory.
    MemoryForget {
        /// Its identifier.
        id: String,
    },
    /// Every setting with its origin; secrets are named, never shown.
    ConfigShow {},
    /// The newest entries of the audit log, oldest first.
    AuditTail {
        /// Most entries to return, 1 to 1,000.
        count: u32,
    },
    /// Cancels the turn that runs in a conversation, whoever started it.
    StopTurn {
        /// The conversation.
        conversation: String,
    },
    /// Answers of this channel to messages of a conversation that nobody waited
    /// for, oldest first: `[{"message", "outcome"}]`.
    Answers {
        /// The conversation.
        conversation: String,
        /// Most answers to return, 1 to 1,000.
        limit: u32,
    },
    /// An answer was shown: it is not offered again.
    AnswerShown {
        /// The message that it answers.
        message: String,
    },
    /// Unlocks a store whose slot is a passphrase.
    Unlock {
        /// The passphrase.
        passphrase: Passphrase,
    },
}

impl ControlRequest {
    /// The verb, as the audit log and error messages name it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Status {} => "status",
            Self::Doctor {} => "doctor",
            Self::MemoryList { .. } => "memory list",
            Self::MemoryShow { .. } => "memory show",
            Self::MemoryForget { .. } => "memory forget",
            Self::ConfigShow {} => "config show",
            Self::AuditTail { .. } => "audit tail",
            Self::StopTurn { .. } => "stop",
            Self::Answers { .. } => "answers",
            Self::AnswerShown { .. } => "answer shown",
            Self::Unlock { .. } => "unlock",
        }
    }

    /// Refuses counts and texts outside of their limits. Adapters call this
    /// before they pass a request on.
    pub fn check(&self) -> Result<(), Refusal> {
        let rows = |n: u32| {
            if (1..=ROWS_MAX).contains(&n) {
                return Ok(());
            }
            let what = format!("{n} rows were asked for");
            Err(Refusal::new(RefusalKind::TooLarge, what, format!("Ask for 1 to {ROWS_MAX}.")))
        };
        match self {
            Self::Status {} | Self::Doctor {} | Self::ConfigShow {} => Ok(()),
            Self::MemoryList { query, limit } => {
                rows(*limit)?;
                query.as_deref().map_or(Ok(()), |q| check_word("search text", q, QUERY_MAX))
            }
            Self::MemoryShow { id } | Self::MemoryForget { id } => check_word("identifier", id, ID_MAX),
            Self::AuditTail { count } => rows(*count),
            Self::StopTurn { conversation } => check_word("conversation", conversation, CONVERSATION_MAX),
            Self::Answers { conversation, limit } => {
                rows(*limit)?;
                check_word("conversation", conversation, CONVERSATION_MAX)
            }
            Self::AnswerShown { message } => check_word("identifier", message, ID_MAX),
            Self::Unlock { passphrase } => check_word("passphrase", passphrase.expose(), PASSPHRASE_MAX),
        }
    }
}

/// Answers requests that need no turn.
pub trait Control: Send + Sync {
    /// Answers one request. The implementation decides what `origin` may ask for.
    fn request(&self, origin: &Origin, request: ControlRequest) -> BoxFuture<'_, Result<Value, Refusal>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_have_limits_and_one_wire_form() {
        let long = "x".repeat(65);
        let table = [
            (json!({"verb": "status"}), true),
            (json!({"verb": "doctor"}), true),
            (json!({"verb": "config_show"}), true),
            (json!({"verb": "memory_list", "limit": 10}), true),
            (json!({"verb": "memory_list", "limit": 1000, "query": "boiler"}), true),
            (json!({"verb": "memory_list", "limit": 0}), false),
            (json!({"verb": "memory_list", "limit": 1001}), false),
            (json!({"verb": "memory_list", "limit": 5, "query": "x".repeat(513)}), false),
            (json!({"verb": "memory_show", "id": "01J"}), true),
            (json!({"verb": "memory_forget", "id": long}), false),
            (json!({"verb": "audit_tail", "count": 20}), true),
            (json!({"verb": "audit_tail", "count": 100000}), false),
            (json!({"verb": "stop_turn", "conversation": "default"}), true),
            (json!({"verb": "stop_turn", "conversation": ""}), false),
            (json!({"verb": "answers", "conversation": "default", "limit": 100}), true),
            (json!({"verb": "answers", "conversation": "", "limit": 100}), false),
            (json!({"verb": "answers", "conversation": "default", "limit": 0}), false),
            (json!({"verb": "answer_shown", "message": "01J"}), true),
            (json!({"verb": "answer_shown", "message": "x".repeat(65)}), false),
            (json!({"verb": "unlock", "passphrase": "correct horse"}), true),
            (json!({"verb": "unlock", "passphrase": ""}), false),
        ];
        for (wire, sound) in table {
            let request: ControlRequest = serde_json::from_value(wire.clone()).unwrap();
            assert_eq!(request.check().is_ok(), sound, "{wire}");
            assert_eq!(serde_json::to_value(&request).unwrap(), wire);
            assert!(!request.verb().is_empty());
        }
        for bad in [
            json!({"verb": "reboot"}),
            json!({"verb": "status", "surplus": 1}),
            json!({"verb": "audit_tail", "count": -1}),
            json!({"verb": "audit_tail", "count": 1.5}),
            json!({"verb": "memory_show"}),
            json!([]),
        ] {
            assert!(serde_json::from_value::<ControlRequest>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_passphrase_is_not_shown() {
        let request = ControlRequest::Unlock { passphrase: Passphrase::new("canary".to_owned()) };
        assert!(!format!("{request:?}").contains("canary"));
        let refused = ControlRequest::Unlock { passphrase: Passphrase::new("canary\n".to_owned()) };
        assert!(!format!("{:?}", refused.check()).contains("canary"));
    }
}
