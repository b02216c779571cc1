//! What happens to a message that was taken: it waits for its conversation, its
//! turn runs once, and its end is stored.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use hearth_audit::Kind;
use hearth_contract::ChannelEvent;
use hearth_scope::{Label, Origin, TrustTier};
use hearth_store::{Batch, Store, StoreError, inbox, outbox, sessions};
use hearth_turn::{ChatMessage, Exchange, SessionId, Start, TurnId, TurnOutcome};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use crate::runtime::drive::{Rows, Sink, drive, status};
use crate::runtime::gateway::{Desk, Running, lock};
use crate::runtime::ports::blocking;

/// The history begins at a multiple of up to this many exchanges, so that it does
/// not begin elsewhere with every turn: that would cost the model server its cache.
const HISTORY_STEP: u64 = 32;

/// How a message left the queue.
enum End {
    /// Its turn ran and its end is stored.
    Ran(TurnOutcome),
    /// Its turn ran, or not, and its end is not stored.
    Broke(TurnOutcome),
    /// Its turn was not begun: it waits in the inbox for the next start.
    Postponed,
}

impl Desk {
    /// Goes on with messages that an earlier run did not finish. One that may
    /// have acted is closed as interrupted and never run again (INV-6).
    pub async fn recover(self: &Arc<Self>) -> Result<(), StoreError> {
        let store = self.store().clone();
        for row in blocking(move || inbox::pending(&store)).await? {
            let origin = serde_json::from_value::<Origin>(row.origin.clone());
            match (row.stage, origin) {
                (inbox::Stage::Received, Ok(origin)) => {
                    log::info!("a message from before the restart is answered now");
                    let (events, _) = mpsc::channel(1);
                    self.start(row, origin, Sink::new(events), self.stop.child_token());
                }
                _ => self.interrupted(row).await?,
            }
        }
        Ok(())
    }

    async fn interrupted(&self, row: inbox::Row) -> Result<(), StoreError> {
        log::warn!("a turn was interrupted after it had begun to act; it is not repeated");
        let outcome = TurnOutcome::Failed {
            error: "The box restarted while this was being carried out.".to_owned(),
            remedy: "Check what was done (see `hearth audit tail`), then ask again if needed.".to_owned(),
            tool_calls: 0,
        };
        let answer = "[interrupted by a restart]".to_owned();
        let exchange = Exchange {
            messages: vec![
                ChatMessage::User { text: row.text.clone() },
                ChatMessage::Assistant { text: answer, calls: Vec::new() },
            ],
            // What it had read is not known, but nothing of that is in here.
            label: Label::said_by(origin_tier(&row)),
        };
        let mut rows = MessageRows { ordinal: next_exchange(self.store(), row.session).await?, row };
        self.store().commit(rows.ended(Batch::new(), &outcome, exchange).closing()).await
    }

    /// Queues the turn of a stored message.
    pub(super) fn start(
        self: &Arc<Self>,
        row: inbox::Row,
        origin: Origin,
        mut sink: Sink,
        cancel: CancellationToken,
    ) {
        let (done_tx, done) = watch::channel(None);
        let conversation = row.conversation.clone();
        lock(&self.running).insert(row.id, Running { conversation, cancel: cancel.clone(), done });
        let left = CancellationToken::new();
        let newest = (row.id, left.clone());
        let before = lock(&self.conversations).insert(row.session, newest).map(|(_, left)| left);
        let desk = self.clone();
        self.tasks.spawn(async move {
            let turn = TurnId(desk.clock.new_id());
            let running = desk.turn(turn, &row, origin, before, &mut sink, cancel);
            // A bug in one turn ends that turn and no other.
            let end = match AssertUnwindSafe(running).catch_unwind().await {
                Ok(Ok(end)) => end,
                Ok(Err(error)) => End::Broke(unread(&error)),
                Err(_) => End::Broke(crashed()),
            };
            let outcome = match end {
                End::Ran(outcome) => Some(outcome),
                End::Broke(outcome) => Some(desk.give_up(turn, &row, outcome).await),
                End::Postponed => None,
            };
            desk.leave(&row, &left);
            let Some(outcome) = outcome else {
                // Dropping the sender says the same to whoever asked again.
                sink.send(ChannelEvent::Postponed).await;
                return;
            };
            let _ = done_tx.send(Some(outcome.clone()));
            // Who stopped it knows that it was stopped.
            let stopped = matches!(outcome, TurnOutcome::Cancelled { .. });
            if sink.send(ChannelEvent::Finished(outcome)).await || stopped {
                // Losing this mark costs a second look at the answer, nothing more.
                let _ =
                    desk.store().append(Batch::new().put([outbox::delivered(&row.channel, row.id)])).await;
            }
            desk.activity.notify_one();
        });
    }

    /// The message waits and runs no more: the next of its conversation may begin.
    fn leave(&self, row: &inbox::Row, left: &CancellationToken) {
        lock(&self.running).remove(&row.id);
        let mut conversations = lock(&self.conversations);
        if conversations.get(&row.session).is_some_and(|(newest, _)| *newest == row.id) {
            conversations.remove(&row.session);
        }
        left.cancel();
    }

    /// Closes a message whose turn could not be recorded to its end: with the
    /// least that says so, else it would be run again after a restart.
    async fn give_up(&self, turn: TurnId, row: &inbox::Row, outcome: TurnOutcome) -> TurnOutcome {
        let reason = match &outcome {
            TurnOutcome::Failed { error, .. } => Some(error.clone()),
            _ => None,
        };
        let ended = Kind::TurnEnded {
            turn: turn.0,
            outcome: outcome.name().to_owned(),
            reason,
            tool_calls: 0,
            duration_ms: 0,
        };
        let batch = closed(Batch::new().audit(ended), row, &outcome).closing();
        let Err(error) = self.store().commit(batch).await else { return outcome };
        log::error!("the end of a turn could not be recorded: {error}");
        let outcome = match outcome {
            TurnOutcome::Failed { error, remedy, tool_calls } => TurnOutcome::Failed {
                error,
                remedy: format!("{remedy} If nothing was done yet, it may be done after the next start."),
                tool_calls,
            },
            other => other,
        };
        self.remember(row.id, outcome.clone());
        outcome
    }

    async fn turn(
        &self,
        turn: TurnId,
        row: &inbox::Row,
        origin: Origin,
        before: Option<CancellationToken>,
        sink: &mut Sink,
        cancel: CancellationToken,
    ) -> Result<End, StoreError> {
        let behind = before.filter(|left| !left.is_cancelled());
        if behind.is_some() || self.turns.available_permits() == 0 {
            sink.send(status("Waiting for another answer to be finished.")).await;
        }
        if let Some(left) = behind {
            left.cancelled().await;
        }
        let _permit = self.turns.acquire().await;
        if self.stopping.is_cancelled() {
            return Ok(End::Postponed);
        }
        // The tier is resolved once, before any model call (INV-1).
        let tier = origin.tier().min(self.agent.ceiling);
        let effective = self.agent.capabilities.under(tier);
        let (ordinal, history) = self.history(row.session).await?;
        let (options, limits) = self.agent.terms(&row.conversation);
        log::info!("turn {turn} begins: channel {}, trust {tier}", row.channel);
        let start = Start {
            turn,
            session: SessionId(row.session),
            channel: row.channel.clone(),
            text: row.text.clone(),
            offered: self.shared.tools.offered(&effective),
            catalog: self.shared.tools.specs().cloned().collect(),
            effective,
            system: self.agent.system.clone(),
            history,
            limits,
        };
        let mut rows = MessageRows { row: row.clone(), ordinal };
        let end = match drive(&self.shared, start, options, &mut rows, sink, cancel).await {
            Ok(outcome) => End::Ran(outcome),
            Err(error) => End::Broke(unwritten(&error)),
        };
        if let End::Ran(outcome) | End::Broke(outcome) = &end {
            log::info!("turn {turn} ends: {}", outcome.name());
        }
        Ok(end)
    }

    /// The number of exchanges of a conversation so far, and the newest of them.
    async fn history(&self, session: Ulid) -> Result<(u64, Vec<Exchange>), StoreError> {
        let (store, most, bytes) =
            (self.store().clone(), self.agent.history_exchanges, self.agent.history_bytes);
        blocking(move || {
            let count = sessions::count(&store, session)?;
            let mut from = stable_start(count.saturating_sub(most), count);
            let mut rows: Vec<(u64, Exchange)> = sessions::history(&store, session, from, bytes)?;
            // The limit of bytes may have cut more off.
            match rows.first() {
                Some((first, _)) if *first > from => from = stable_start(*first, count),
                _ => {}
            }
            rows.retain(|(ordinal, _)| *ordinal >= from);
            Ok((count, rows.into_iter().map(|(_, exchange)| exchange).collect()))
        })
        .await
    }
}

/// Where a history begins that may not begin before exchange `first`: at a
/// multiple of the largest step that keeps at least half, so that it begins
/// there for the next turns too. `count` is the number of exchanges so far.
fn stable_start(first: u64, count: u64) -> u64 {
    if first == 0 {
        return 0;
    }
    let mut step = HISTORY_STEP;
    loop {
        let start = first.next_multiple_of(step);
        if step == 1 || start + (count - first) / 2 <= count {
            return start.min(count);
        }
        step /= 2;
    }
}

/// The tier of who sent a message; the lowest where that cannot be read any more.
fn origin_tier(row: &inbox::Row) -> TrustTier {
    let origin = serde_json::from_value::<Origin>(row.origin.clone());
    origin.map_or(TrustTier::Untrusted, |origin| origin.tier())
}

/// The store cannot be read: the turn was not begun.
fn unread(error: &StoreError) -> TurnOutcome {
    TurnOutcome::Failed {
        error: format!("The store failed: {error}."),
        remedy: error.remedy().to_owned(),
        tool_calls: 0,
    }
}

/// A turn that cannot be recorded ends at once, without further effects.
fn unwritten(error: &StoreError) -> TurnOutcome {
    log::error!("a turn ended because the store refused a record: {error}");
    TurnOutcome::Failed {
        error: format!("The record of this turn could not be written ({error}). Nothing more was done."),
        remedy: error.remedy().to_owned(),
        tool_calls: 0,
    }
}

fn crashed() -> TurnOutcome {
    TurnOutcome::Failed {
        error: "A bug ended this turn.".to_owned(),
        remedy: "See what was done with `hearth audit tail`; the log says where it happened.".to_owned(),
        tool_calls: 0,
    }
}

async fn next_exchange(store: &Store, session: Ulid) -> Result<u64, StoreError> {
    let store = store.clone();
    blocking(move || sessions::count(&store, session)).await
}

/// Adds the rows with which a message is answered and leaves the inbox.
fn closed(batch: Batch, row: &inbox::Row, outcome: &TurnOutcome) -> Batch {
    let answer = outbox::Row {
        message: row.id,
        channel: row.channel.clone(),
        external_id: row.external_id.clone(),
        session: row.session,
        outcome: serde_json::to_value(outcome).unwrap_or_default(),
    };
    batch.put(outbox::add(&answer)).put([inbox::done(row.id)])
}

/// The rows of one message.
struct MessageRows {
    row: inbox::Row,
    ordinal: u64,
}

impl Rows for MessageRows {
    fn acting(&mut self, batch: Batch) -> Batch {
        batch.put([inbox::acting(&self.row)])
    }

    fn ended(&mut self, batch: Batch, outcome: &TurnOutcome, exchange: Exchange) -> Batch {
        closed(batch, &self.row, outcome).put([sessions::append(self.row.session, self.ordinal, &exchange)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_begins_where_it_began() {
        #[track_caller]
        fn check(first: u64, count: u64, start: u64) {
            assert_eq!(stable_start(first, count), start);
        }
        check(0, 0, 0);
        check(0, 500, 0);
        check(1, 500, 32);
        check(32, 500, 32);
        check(33, 500, 64);
        check(37, 65, 48);
        check(63, 65, 64);
        check(64, 65, 64);
        check(65, 65, 65);
        // One exchange a turn is cut off, and the beginning moves seldom.
        let starts: std::collections::BTreeSet<_> = (0..1000).map(|n| stable_start(n, n + 40)).collect();
        assert!(starts.len() <= 1000 / 16 + 2, "{starts:?}");
    }
}
