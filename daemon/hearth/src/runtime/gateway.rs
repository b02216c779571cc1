//! Takes messages in: durable first, each once. What happens to them then is in
//! `queue`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use hearth_audit::Kind;
use hearth_contract::{BoxFuture, ChannelEvent, Gateway, Inbound, Refusal, RefusalKind, Ticket};
use hearth_models::ChatOptions;
use hearth_scope::{CapabilitySet, TrustTier};
use hearth_store::{Batch, Store, StoreError, inbox, outbox, sessions};
use hearth_turn::{Limits, MessageId, TurnOutcome};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use ulid::Ulid;

use crate::clock::SystemClock;
use crate::runtime::drive::{Shared, Sink};
use crate::runtime::ports::blocking;

/// Events that wait for a slow channel.
const EVENTS: usize = 256;
/// Most outcomes that are kept for messages whose end could not be stored.
const UNRECORDED: usize = 64;

/// What is the same for every turn.
pub struct Agent {
    /// What the agent holds.
    pub capabilities: CapabilitySet,
    /// System text.
    pub system: String,
    /// Limits of a turn.
    pub limits: Limits,
    /// Conversations that remote model servers may answer; "*" is all of them.
    pub remote_conversations: Vec<String>,
    /// Limits of their turns.
    pub remote_limits: Limits,
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

impl Agent {
    /// What a conversation demands of the choice of servers, and its limits.
    pub(super) fn terms(&self, conversation: &str) -> (ChatOptions, Limits) {
        let leaves = self.remote_conversations.iter().any(|name| name == "*" || name == conversation);
        let limits = if leaves { &self.remote_limits } else { &self.limits };
        (ChatOptions { local_only: !leaves }, limits.clone())
    }
}

/// A message that waits or runs.
pub(super) struct Running {
    pub(super) conversation: String,
    pub(super) cancel: CancellationToken,
    pub(super) done: watch::Receiver<Option<TurnOutcome>>,
}

/// Takes messages in and runs their turns.
pub struct Desk {
    pub(super) shared: Shared,
    pub(super) agent: Agent,
    pub(super) clock: SystemClock,
    pub(super) turns: Semaphore,
    /// One turn at a time in a conversation, in the order of arrival: by
    /// conversation the newest message that waits or runs, and its end.
    pub(super) conversations: Mutex<HashMap<Ulid, (Ulid, CancellationToken)>>,
    pub(super) running: Mutex<HashMap<Ulid, Running>>,
    /// The newest outcomes that could not be stored, for whoever asks again.
    pub(super) unrecorded: Mutex<VecDeque<(Ulid, TurnOutcome)>>,
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
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
            unrecorded: Mutex::default(),
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

    pub(super) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Cancels the turns of a conversation; answers how many there were.
    pub fn cancel(&self, conversation: &str) -> usize {
        let running = lock(&self.running);
        let mine = running.values().filter(|r| r.conversation == conversation);
        mine.inspect(|r| r.cancel.cancel()).count()
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
            conversation: inbound.conversation,
            origin: serde_json::to_value(&inbound.origin).unwrap_or_default(),
            text: inbound.text,
            received_ms: self.clock.wall_ms(),
            stage: inbox::Stage::Received,
        };
        let mut batch = Batch::new().put(new_session.iter().map(sessions::create)).put(inbox::accept(&row));
        if new_session.is_some() {
            let tier = inbound.origin.tier().min(self.agent.ceiling);
            batch = batch.audit(Kind::SessionOpened { channel: row.channel.clone(), tier });
        }
        // Durable before anyone is told that it was accepted (INV-4).
        self.store().commit(batch).await.map_err(refuse)?;
        let (sender, events) = mpsc::channel(EVENTS);
        let message = MessageId(row.id);
        let _ = sender.send(ChannelEvent::Accepted { message, duplicate: false }).await;
        let cancel = self.stop.child_token();
        self.start(row, inbound.origin, Sink::new(sender), cancel.clone());
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
                    let waited = done.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
                    let Ok(outcome) = waited else {
                        // The daemon stops before the turn has begun.
                        sink.send(ChannelEvent::Postponed).await;
                        return;
                    };
                    outcome
                }
                None => desk.stored_outcome(message).await.or_else(|| desk.unrecorded_outcome(message)),
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

    /// Keeps an outcome that could not be stored.
    pub(super) fn remember(&self, message: Ulid, outcome: TurnOutcome) {
        let mut kept = lock(&self.unrecorded);
        kept.push_back((message, outcome));
        if kept.len() > UNRECORDED {
            kept.pop_front();
        }
    }

    fn unrecorded_outcome(&self, message: Ulid) -> Option<TurnOutcome> {
        lock(&self.unrecorded).iter().find(|(id, _)| *id == message).map(|(_, outcome)| outcome.clone())
    }

    async fn stored_outcome(&self, message: Ulid) -> Option<TurnOutcome> {
        let store = self.store().clone();
        let row = blocking(move || outbox::find(&store, message)).await.ok()??;
        serde_json::from_value(row.outcome).ok()
    }
}

fn crashed() -> Refusal {
    let remedy = "Look into the log (`journalctl -u hearth`), and ask again.";
    Refusal::new(RefusalKind::Internal, "the message was not taken because of a bug", remedy)
}

/// A channel's way to the desk.
#[derive(Clone)]
pub struct DeskGateway(pub Arc<Desk>);

impl Gateway for DeskGateway {
    /// A channel that stops waiting for the answer does not stop the message
    /// between its row and its turn.
    fn submit(&self, inbound: Inbound) -> BoxFuture<'_, Result<Ticket, Refusal>> {
        let desk = self.0.clone();
        let taken = desk.tasks.clone().spawn(async move { desk.accept(inbound).await });
        Box::pin(async move { taken.await.unwrap_or_else(|_| Err(crashed())) })
    }
}
