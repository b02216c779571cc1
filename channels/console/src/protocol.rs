//! The messages in the frames, and the agreement on a version.

use hearth_contract::{ControlRequest, Refusal, RefusalKind};
use hearth_turn::{MessageId, StreamEvent, TurnOutcome};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The newest version of the protocol that this program speaks.
pub const NEWEST: u32 = 1;
/// The oldest one.
pub const OLDEST: u32 = 1;

/// From a client to the daemon. Unknown fields are refused: what a field means
/// must not be guessed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromClient {
    /// The first frame.
    Hello {
        /// The newest version that the client speaks.
        protocol: u32,
        /// The oldest one; the newest where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        oldest: Option<u32>,
        /// Name and version of the client, for the log.
        client: String,
    },
    /// A message that starts a turn.
    Ask {
        /// Number that the answers carry. Counted up on each connection; one that
        /// is still in use ends the connection.
        id: u64,
        /// The conversation.
        conversation: String,
        /// The text.
        text: String,
        /// The same identifier again is the same message, also on another connection.
        external_id: String,
    },
    /// Cancels the turn of an `ask` on this connection. It is no error when
    /// that has ended already.
    Cancel {
        /// The number of the `ask`.
        id: u64,
    },
    /// A request without a turn.
    Control {
        /// Number that the answer carries.
        id: u64,
        /// The request.
        request: ControlRequest,
    },
}

/// From the daemon to a client. A client skips fields that it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromServer {
    /// The answer to `hello`.
    Hello {
        /// The version that is spoken from now on.
        protocol: u32,
        /// Name and version of the daemon.
        server: String,
    },
    /// The message of an `ask` is durable.
    Accepted {
        /// The number of the `ask`.
        id: u64,
        /// The daemon's identifier of the message.
        message: MessageId,
        /// True when the message was known already.
        duplicate: bool,
    },
    /// Something happened in the turn.
    Event {
        /// The number of the `ask`.
        id: u64,
        /// What happened.
        event: StreamEvent,
    },
    /// The end of an `ask`: exactly one, and nothing after it.
    Finished {
        /// The number of the `ask`.
        id: u64,
        /// How the turn ended.
        outcome: TurnOutcome,
    },
    /// The answer to a `control`.
    Result {
        /// The number of the `control`.
        id: u64,
        /// The answer.
        value: Value,
    },
    /// The request was turned down; without a number, the connection was, and
    /// it is closed.
    Refused {
        /// The number of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        /// Why, and what to do.
        refusal: Refusal,
    },
}

impl FromServer {
    /// The number of the request that it belongs to.
    pub fn id(&self) -> Option<u64> {
        match self {
            Self::Hello { .. } => None,
            Self::Accepted { id, .. }
            | Self::Event { id, .. }
            | Self::Finished { id, .. }
            | Self::Result { id, .. } => Some(*id),
            Self::Refused { id, .. } => *id,
        }
    }
}

/// The newest version that both sides speak: `ours` and `theirs` are the oldest
/// and newest of each side.
pub fn negotiate(ours: (u32, u32), theirs: (u32, u32)) -> Result<u32, Refusal> {
    let common = ours.1.min(theirs.1);
    if common >= ours.0 && common >= theirs.0 {
        return Ok(common);
    }
    let remedy = if theirs.1 < ours.0 {
        "Use the `hearth` program that was installed together with the daemon."
    } else {
        "Restart the daemon so that the installed version runs: systemctl restart hearth."
    };
    let what = format!(
        "the daemon speaks console protocol {} to {}, the client {} to {}",
        ours.0, ours.1, theirs.0, theirs.1
    );
    Err(Refusal::new(RefusalKind::Unsupported, what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_common_version_is_spoken() {
        let table = [
            ((1, 1), (1, 1), Some(1)),
            ((1, 3), (2, 5), Some(3)),
            ((1, 5), (1, 2), Some(2)),
            ((2, 3), (1, 1), None),
            ((1, 1), (2, 2), None),
            ((1, 1), (0, 0), None),
            ((1, 1), (5, 1), None),
        ];
        for (ours, theirs, expected) in table {
            assert_eq!(negotiate(ours, theirs).ok(), expected, "{ours:?} {theirs:?}");
        }
        assert!(negotiate((2, 2), (1, 1)).unwrap_err().remedy.contains("hearth"));
        assert!(negotiate((1, 1), (2, 2)).unwrap_err().remedy.contains("Restart"));
    }

    /// The wire forms that `docs/formats/ipc-frame.md` shows.
    #[test]
    fn wire_forms() {
        let from_client = [
            json!({"type": "hello", "protocol": 1, "client": "hearth 0.1.0"}),
            json!({"type": "hello", "protocol": 2, "oldest": 1, "client": "hearth 0.2.0"}),
            json!({"type": "ask", "id": 1, "conversation": "default", "text": "hi", "external_id": "01J"}),
            json!({"type": "cancel", "id": 1}),
            json!({"type": "control", "id": 2, "request": {"verb": "memory_list", "limit": 20}}),
        ];
        for wire in from_client {
            let message: FromClient = serde_json::from_value(wire.clone()).unwrap();
            assert_eq!(serde_json::to_value(message).unwrap(), wire);
        }
        let message = ulid_text();
        let from_server = [
            json!({"type": "hello", "protocol": 1, "server": "hearth 0.1.0"}),
            json!({"type": "accepted", "id": 1, "message": message, "duplicate": false}),
            json!({"type": "event", "id": 1, "event": {"event": "text", "text": "Hello"}}),
            json!({"type": "finished", "id": 1, "outcome": {"outcome": "completed", "text": "Hello", "tool_calls": 0, "duration_ms": 812}}),
            json!({"type": "result", "id": 2, "value": []}),
            json!({"type": "refused", "id": 3, "refusal": {"kind": "busy", "what": "a", "remedy": "b"}}),
            json!({"type": "refused", "refusal": {"kind": "not_permitted", "what": "a", "remedy": "b"}}),
        ];
        for wire in from_server {
            let message: FromServer = serde_json::from_value(wire.clone()).unwrap();
            assert_eq!(message.id(), wire.get("id").and_then(Value::as_u64));
            assert_eq!(serde_json::to_value(message).unwrap(), wire);
        }
        for bad in [
            json!({"type": "ask", "id": 1, "conversation": "d", "text": "hi", "external_id": "e", "tier": "kernel"}),
            json!({"type": "ask", "id": 1, "text": "hi", "external_id": "e"}),
            json!({"type": "ask", "id": -1, "conversation": "d", "text": "hi", "external_id": "e"}),
            json!({"type": "cancel", "id": 1, "all": true}),
            json!({"type": "shell", "id": 1}),
            json!({"id": 1}),
            json!([]),
        ] {
            assert!(serde_json::from_value::<FromClient>(bad.clone()).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<FromClient>(r#"{"type":"cancel","id":1,"id":2}"#).is_err());
        assert!(serde_json::from_str::<FromClient>(r#"{"type":"cancel","type":"ask","id":1}"#).is_err());
    }

    /// Every line that the page shows is what this program reads and writes.
    #[test]
    fn the_page_shows_real_frames() {
        let page = include_str!("../../../docs/formats/ipc-frame.md");
        let (client, server) = page.split_once("## From the daemon").unwrap();
        let lines = |part: &str| -> Vec<Value> {
            part.lines().filter(|l| l.starts_with('{')).map(|l| serde_json::from_str(l).unwrap()).collect()
        };
        let (client, server) = (lines(client), lines(server));
        assert_eq!((client.len(), server.len()), (14, 10));
        for shown in client {
            let message: FromClient = serde_json::from_value(shown.clone()).unwrap();
            assert_eq!(serde_json::to_value(message).unwrap(), shown);
        }
        for shown in server {
            let message: FromServer = serde_json::from_value(shown.clone()).unwrap();
            assert_eq!(serde_json::to_value(message).unwrap(), shown);
        }
        assert!(page.contains(&format!("Protocol version **{NEWEST}**")));
    }

    fn ulid_text() -> String {
        "0".repeat(25) + "7"
    }
}
