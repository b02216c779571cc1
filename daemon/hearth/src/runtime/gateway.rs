//! Takes messages in: durable first, then one after the other, each answered
//! exactly once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hearth_contract::{BoxFuture, ChannelEvent, Gateway, Inbound, Refusal, RefusalKind, Ticket};
use hearth_models::{ChatOptions, Models};
use hearth_scope::{CapabilitySet, Origin, TrustTier};
use hearth_store::{Batch, Store, StoreError, inbox, outbox, sessions};
use hearth_turn::{
    ChatMessage, Exchange, Limits, MessageId, ModelEvent, ModelRequest, SessionId, Start, TurnId, TurnOutcome,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use ulid::Ulid;

use crate::clock::SystemClock;
use crate::runtime::drive::{ModelPort, Rows, Shared, Sink, drive, status};
use crate::runtime::ports::blocking;

/// Events that wait for a slow channel.
const EVENTS: usize = 256;
/// The history begins at a multiple of this many exchanges, so that it does not
/// begin elsewhere with every turn: that would cost the model server its cache.
const HISTORY_STEP: u64 = 32;

/// The model servers, with requests made to fit.
pub struct FittedModels {
    /// The clients.
    pub models: Models,
    /// Context of the first server, in tokens.
    pub context_tokens: u32,
}

impl ModelPort for FittedModels {
    fn chat(&self, request: ModelRequest, cancel: CancellationToken) -> mpsc::Receiver<ModelEvent> {
        let fitted = hearth_models::fit(request, self.context_tokens);
        if fitted.dropped > 0 {
            log::info!("the oldest {} exchanges do not fit the model's context", fitted.dropped);
        }
        self.models.chat(fitted.request, ChatOptions::default(), cancel)
    }
}

/// What is the same for every turn.
pub struct Agent {
    /// What the agent holds.
    pub capabilities: CapabilitySet,
    /// System text.
    pub system: String,
    /// Limits.
    pub limits: Limits,
    /// Longest message, in bytes.
    pub message_bytes: usize,
    /// Most messages that wait.
    pub waiting: usize,
    /// Most of the history that is read, in bytes.
    pub history_bytes: usize,
    /// Most exchanges of the history that are read.
    pub history_exchanges: u64,
    /// Ceilings that the settings put on channels.
    pub ceiling: TrustTier,
}

/// A message that waits or runs.
struct Running {
    conversation: String,
    cancel: CancellationToken,
    done: watch::Receiver<Option<TurnOutcome>>,
}

/// Takes messages in and runs their turns.
pub struct Desk {
    shared: Shared,
    agent: Agent,
    clock: SystemClock,
    turns: Semaphore,
    /// One turn at a time in a conversation, in the order of arrival.
    conversations: Mutex<HashMap<Ulid, Arc<tokio::sync::Mutex<()>>>>,
    running: Mutex<HashMap<Ulid, Running>>,
    /// One message at a time is looked up and stored: the same message twice at
    /// once must not become two.
    accepting: tokio::sync::Mutex<()>,
    /// From now on no turn begins; what waits is answered after the restart.
    pub stopping: CancellationToken,
    /// Ends every turn.
    pub stop: CancellationToken,
    /// The turns that run.
    pub tasks: TaskTracker,
    /// Wakes the task that commits the index when the daemon is idle.
    pub activity: tokio::sync::Notify,
}

fn refuse(error: StoreError) -> Refusal {
    let kind = match error {
        StoreError::Full | StoreError::Busy => RefusalKind::Busy,
        _ => RefusalKind::Internal,
    };
    Refusal::new(kind, format!("the message could not be stored: {error}"), error.remedy())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// A desk with at most `turns` turns at the same time.
    pub fn new(shared: Shared, agent: Agent, clock: SystemClock, turns: usize) -> Arc<Self> {
        Arc::new(Self {
            shared,
            agent,
            clock,
            turns: Semaphore::new(turns),
            conversations: Mutex::default(),
            running: Mutex::default(),
            accepting: tokio::sync::Mutex::default(),
            stopping: CancellationToken::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            activity: tokio::sync::Notify::new(),
        })
    }

    /// Turns that wait or run.
    pub fn busy(&self) -> usize {
        lock(&self.running).len()
    }

    fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Cancels the turns of a conversation; answers how many there were.
    pub fn cancel(&self, conversation: &str) -> usize {
        let running = lock(&self.running);
        let mine = running.values().filter(|r| r.conversation == conversation);
        mine.inspect(|r| r.cancel.cancel()).count()
    }

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
                    self.start(row, String::new(), origin, Sink::new(events), self.stop.child_token());
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
        };
        let mut rows = MessageRows { ordinal: next_exchange(self.store(), row.session).await?, row };
        self.store().commit(rows.ended(Batch::new(), &outcome, exchange)).await
    }

    /// Queues the turn of a stored message.
    fn start(
        self: &Arc<Self>,
        row: inbox::Row,
        conversation: String,
        origin: Origin,
        mut sink: Sink,
        cancel: CancellationToken,
    ) {
        let (done_tx, done) = watch::channel(None);
        let id = row.id;
        lock(&self.running).insert(id, Running { conversation, cancel: cancel.clone(), done });
        let order = lock(&self.conversations).entry(row.session).or_default().clone();
        let desk = self.clone();
        self.tasks.spawn(async move {
            let channel = row.channel.clone();
            let result = desk.turn(row, origin, order, &mut sink, cancel).await;
            lock(&desk.running).remove(&id);
            let outcome = match result {
                // It was not begun: it waits in the inbox for the next start.
                Ok(None) => return,
                Ok(Some(outcome)) => outcome,
                Err(error) => TurnOutcome::Failed {
                    error: format!("The store failed: {error}."),
                    remedy: error.remedy().to_owned(),
                    tool_calls: 0,
                },
            };
            let _ = done_tx.send(Some(outcome.clone()));
            if sink.send(ChannelEvent::Finished(outcome)).await {
                // Losing this mark costs a second look at the answer, nothing more.
                let _ = desk.store().append(Batch::new().put([outbox::delivered(&channel, id)])).await;
            }
            desk.activity.notify_one();
        });
    }

    async fn turn(
        &self,
        row: inbox::Row,
        origin: Origin,
        order: Arc<tokio::sync::Mutex<()>>,
        sink: &mut Sink,
        cancel: CancellationToken,
    ) -> Result<Option<TurnOutcome>, StoreError> {
        if order.try_lock().is_err() || self.turns.available_permits() == 0 {
            sink.send(status("Waiting for another answer to be finished.")).await;
        }
        let _one_at_a_time = order.lock().await;
        let _permit = self.turns.acquire().await;
        if self.stopping.is_cancelled() {
            return Ok(None);
        }
        // The tier is resolved once, before any model call (INV-1).
        let tier = origin.tier().min(self.agent.ceiling);
        let effective = self.agent.capabilities.under(tier);
        let ordinal = next_exchange(self.store(), row.session).await?;
        let history = self.history(row.session, ordinal).await?;
        let turn = TurnId(self.clock.new_id());
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
            limits: self.agent.limits.clone(),
        };
        let mut rows = MessageRows { row, ordinal };
        let outcome = drive(&self.shared, start, &mut rows, sink, cancel).await;
        log::info!("turn {turn} ends: {}", outcome.name());
        Ok(Some(outcome))
    }

    async fn history(&self, session: Ulid, count: u64) -> Result<Vec<Exchange>, StoreError> {
        let keep = self.agent.history_exchanges;
        let from = count.saturating_sub(keep).next_multiple_of(HISTORY_STEP).min(count);
        let from = if count <= keep { 0 } else { from };
        let (store, bytes) = (self.store().clone(), self.agent.history_bytes);
        blocking(move || sessions::history(&store, session, from, bytes)).await
    }

    /// The conversation of that name; a new one is stored together with its
    /// first message.
    async fn session(&self, name: &str) -> Result<(Ulid, Option<sessions::Row>), StoreError> {
        let (store, wanted) = (self.store().clone(), name.to_owned());
        if let Some(row) = blocking(move || sessions::find(&store, &wanted)).await? {
            return Ok((row.id, None));
        }
        let row = sessions::Row {
            id: self.clock.new_id(),
            name: name.to_owned(),
            created_ms: self.clock.wall_ms(),
        };
        Ok((row.id, Some(row)))
    }

    async fn accept(self: &Arc<Self>, inbound: Inbound) -> Result<Ticket, Refusal> {
        inbound.check(self.agent.message_bytes)?;
        if self.stopping.is_cancelled() {
            return Err(Refusal::new(
                RefusalKind::ShuttingDown,
                "the daemon is stopping",
                "Try again in a moment.",
            ));
        }
        let _one_at_a_time = self.accepting.lock().await;
        let (channel, external) = (inbound.channel.as_str().to_owned(), inbound.external_id.clone());
        let (store, key) = (self.store().clone(), (channel.clone(), external.clone()));
        let known = blocking(move || inbox::find(&store, &key.0, &key.1)).await.map_err(refuse)?;
        if let Some(message) = known {
            return Ok(self.again(message).await);
        }
        if self.busy() >= self.agent.waiting {
            return Err(Refusal::new(
                RefusalKind::Busy,
                format!("{} messages wait already", self.agent.waiting),
                "Wait for an answer, or stop one.",
            ));
        }
        let (session, new_session) = self.session(&inbound.conversation).await.map_err(refuse)?;
        let row = inbox::Row {
            id: self.clock.new_id(),
            channel,
            external_id: external,
            session,
            origin: serde_json::to_value(&inbound.origin).unwrap_or_default(),
            text: inbound.text,
            received_ms: self.clock.wall_ms(),
            stage: inbox::Stage::Received,
        };
        let batch = Batch::new().put(new_session.iter().map(sessions::create)).put(inbox::accept(&row));
        // Durable before anyone is told that it was accepted (INV-4).
        self.store().commit(batch).await.map_err(refuse)?;
        let (sender, events) = mpsc::channel(EVENTS);
        let message = MessageId(row.id);
        let _ = sender.send(ChannelEvent::Accepted { message, duplicate: false }).await;
        let cancel = self.stop.child_token();
        self.start(row, inbound.conversation, inbound.origin, Sink::new(sender), cancel.clone());
        Ok(Ticket { message, events, cancel })
    }

    /// The same message again: no second turn, the outcome of the first.
    async fn again(self: &Arc<Self>, message: Ulid) -> Ticket {
        let (sender, events) = mpsc::channel(EVENTS);
        let mut sink = Sink::new(sender);
        sink.send(ChannelEvent::Accepted { message: MessageId(message), duplicate: true }).await;
        let running = lock(&self.running).get(&message).map(|r| (r.cancel.clone(), r.done.clone()));
        let cancel = running.as_ref().map_or_else(CancellationToken::new, |(cancel, _)| cancel.clone());
        let desk = self.clone();
        self.tasks.spawn(async move {
            let outcome = match running {
                Some((_, mut done)) => {
                    let seen = done.wait_for(Option::is_some).await;
                    seen.ok().and_then(|outcome| outcome.clone())
                }
                None => desk.stored_outcome(message).await,
            };
            let outcome = outcome.unwrap_or_else(|| TurnOutcome::Failed {
                error: "The answer to this message is not known any more.".to_owned(),
                remedy: "Ask again as a new message.".to_owned(),
                tool_calls: 0,
            });
            sink.send(ChannelEvent::Finished(outcome)).await;
        });
        Ticket { message: MessageId(message), events, cancel }
    }

    async fn stored_outcome(&self, message: Ulid) -> Option<TurnOutcome> {
        let store = self.store().clone();
        let row = blocking(move || outbox::find(&store, message)).await.ok()??;
        serde_json::from_value(row.outcome).ok()
    }
}

async fn next_exchange(store: &Store, session: Ulid) -> Result<u64, StoreError> {
    let store = store.clone();
    blocking(move || sessions::count(&store, session)).await
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
        let answer = outbox::Row {
            message: self.row.id,
            channel: self.row.channel.clone(),
            session: self.row.session,
            outcome: serde_json::to_value(outcome).unwrap_or_default(),
        };
        batch
            .put(outbox::add(&answer))
            .put([sessions::append(self.row.session, self.ordinal, &exchange), inbox::done(self.row.id)])
    }
}

/// A channel's way to the desk.
#[derive(Clone)]
pub struct DeskGateway(pub Arc<Desk>);

impl Gateway for DeskGateway {
    fn submit(&self, inbound: Inbound) -> BoxFuture<'_, Result<Ticket, Refusal>> {
        Box::pin(self.0.accept(inbound))
    }
}
