//! The way from a channel to the turn loop and back.

use hearth_turn::{MessageId, StreamEvent, TurnOutcome};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::inbound::Inbound;
use crate::refusal::Refusal;

/// What a channel is told about one message. `Accepted` comes first,
/// `Finished` exactly once and last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChannelEvent {
    /// The message is in the durable inbox: the transport may be told so.
    Accepted {
        /// The daemon's identifier of the message.
        message: MessageId,
        /// True when the message was known already: no second turn runs, and
        /// the outcome of the first one follows.
        duplicate: bool,
    },
    /// Something happened in the turn.
    Stream(StreamEvent),
    /// The turn has ended, and its outcome is in the durable outbox. The last event.
    Finished(TurnOutcome),
    /// The daemon stops before the turn began. The message is kept, and it is
    /// answered after the restart: it must not be sent again as a new one. The
    /// last event.
    Postponed,
}

/// An accepted message.
#[derive(Debug)]
pub struct Ticket {
    /// The daemon's identifier of the message.
    pub message: MessageId,
    /// Events in order. A receiver that is slow delays the stream, never the
    /// durability of what happened; one that is dropped misses the rest.
    pub events: mpsc::Receiver<ChannelEvent>,
    /// Ends the turn as cancelled. Dropping the ticket does not.
    pub cancel: CancellationToken,
}

/// Takes messages in.
pub trait Gateway: Send + Sync {
    /// Returns once the message is durable. The same `channel` and
    /// `external_id` again never start a second turn.
    fn submit(&self, inbound: Inbound) -> BoxFuture<'_, Result<Ticket, Refusal>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_have_one_flat_form_on_the_wire() {
        let id = MessageId(ulid::Ulid::from(7_u128));
        let table = [
            (
                ChannelEvent::Accepted { message: id, duplicate: false },
                json!({"type": "accepted", "message": id.to_string(), "duplicate": false}),
            ),
            (
                ChannelEvent::Stream(StreamEvent::Text { text: "hi".to_owned() }),
                json!({"type": "stream", "event": "text", "text": "hi"}),
            ),
            (
                ChannelEvent::Finished(TurnOutcome::Cancelled { tool_calls: 2 }),
                json!({"type": "finished", "outcome": "cancelled", "tool_calls": 2}),
            ),
        ];
        for (event, wire) in table {
            assert_eq!(serde_json::to_value(&event).unwrap(), wire);
            assert_eq!(serde_json::from_value::<ChannelEvent>(wire).unwrap(), event);
        }
    }
}
