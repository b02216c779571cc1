//! Drives one turn: carries out the commands of the state machine in order and
//! feeds back what happened. One loop over a closed set of inputs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hearth_audit::Kind;
use hearth_contract::ChannelEvent;
use hearth_models::{ChatOptions, Models};
use hearth_scope::{Label, TrustTier};
use hearth_store::{Appended, Batch, Store, StoreError};
use hearth_tools::{Registry, ToolContext};
use hearth_turn::{
    Exchange, Input, ModelEvent, ModelRequest, SessionId, Start, StreamEvent, ToolCall, ToolError,
    ToolOutcome, Turn, TurnId, TurnOutcome,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;

/// A tool that does not keep its own deadline is dropped this much later.
const GRACE: Duration = Duration::from_secs(2);

/// Records that may be on their way at once.
const LATER_MAX: usize = 64;

/// A channel that does not take an event for this long has lost the rest.
const SLOW_CHANNEL: Duration = Duration::from_secs(5);

/// Answers model requests. Dropping the receiver or cancelling the token closes
/// the connection to the server.
pub trait ModelPort: Send + Sync {
    /// Starts one request.
    fn chat(
        &self,
        request: ModelRequest,
        options: ChatOptions,
        cancel: CancellationToken,
    ) -> mpsc::Receiver<ModelEvent>;
}

impl ModelPort for Models {
    fn chat(
        &self,
        request: ModelRequest,
        options: ChatOptions,
        cancel: CancellationToken,
    ) -> mpsc::Receiver<ModelEvent> {
        Models::chat(self, request, options, cancel)
    }
}

/// What the durable rows of a turn look like is not the driver's business.
pub trait Rows: Send {
    /// Added to the batch of the first intent that can have an effect: from then
    /// on the message must never be run again.
    fn acting(&mut self, batch: Batch) -> Batch;
    /// Added to the last batch: history, answer, message done.
    fn ended(&mut self, batch: Batch, outcome: &TurnOutcome, exchange: Exchange) -> Batch;
}

/// What every turn of this daemon shares.
#[derive(Clone)]
pub struct Shared {
    /// The store.
    pub store: Store,
    /// The models.
    pub models: Arc<dyn ModelPort>,
    /// The tools.
    pub tools: Arc<Registry>,
}

/// Where the events of a turn go.
pub struct Sink {
    sender: mpsc::Sender<ChannelEvent>,
    gone: bool,
}

impl Sink {
    /// Events go to `sender`; when it is closed they go nowhere.
    pub fn new(sender: mpsc::Sender<ChannelEvent>) -> Self {
        Self { sender, gone: false }
    }

    /// Hands one event over; false when the channel is gone. A slow channel
    /// delays, a dead one does not.
    pub async fn send(&mut self, event: ChannelEvent) -> bool {
        if !self.gone {
            let sent = tokio::time::timeout(SLOW_CHANNEL, self.sender.send(event)).await;
            self.gone = !matches!(sent, Ok(Ok(())));
        }
        !self.gone
    }
}

struct Driver<'a> {
    shared: &'a Shared,
    turn: TurnId,
    options: ChatOptions,
    session: SessionId,
    tier: TrustTier,
    held: hearth_scope::CapabilitySet,
    began: Instant,
    cancel: CancellationToken,
    /// Step number, events and connection of the model that is being asked.
    model: Option<(u32, mpsc::Receiver<ModelEvent>, CancellationToken)>,
    tools: JoinSet<Input>,
    fence: String,
    /// Records that were handed over and not waited for.
    later: Vec<Appended>,
}

/// Runs a turn to its end and answers its outcome, whose last batch is durable
/// then. An error says that a record could not be written: the turn has ended
/// there, without further effects, and its end is not stored.
pub async fn drive(
    shared: &Shared,
    start: Start,
    options: ChatOptions,
    rows: &mut dyn Rows,
    sink: &mut Sink,
    cancel: CancellationToken,
) -> Result<TurnOutcome, StoreError> {
    let mut driver = Driver {
        shared,
        turn: start.turn,
        options,
        session: start.session,
        tier: start.effective.tier(),
        held: start.effective.set().clone(),
        began: Instant::now(),
        cancel,
        model: None,
        tools: JoinSet::new(),
        fence: fence(),
        later: Vec::new(),
    };
    let result = driver.run(start, rows, sink).await;
    if let Some((_, _, stop)) = driver.model.take() {
        stop.cancel();
    }
    result
}

fn fence() -> String {
    let mut bytes = [0; 16];
    clock::fill(&mut bytes);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Driver<'_> {
    async fn run(
        &mut self,
        start: Start,
        rows: &mut dyn Rows,
        sink: &mut Sink,
    ) -> Result<TurnOutcome, StoreError> {
        use hearth_turn::Command;
        let (mut turn, commands) = Turn::begin(start);
        let mut todo = VecDeque::from(commands);
        let mut acting = false;
        let (mut cancel_seen, mut tick_seen) = (false, false);
        loop {
            while let Some(command) = todo.pop_front() {
                match command {
                    Command::Record { entries, durable } => {
                        let mut batch = Batch::new();
                        batch.audit = entries;
                        batch.closing =
                            batch.audit.iter().all(|draft| matches!(draft.kind, Kind::ToolOutcome { .. }));
                        if durable {
                            if !std::mem::replace(&mut acting, true) {
                                batch = rows.acting(batch);
                            }
                            self.commit(batch).await?;
                            todo.extend(turn.step(Input::Recorded, self.began.elapsed()));
                        } else {
                            self.later.push(self.shared.store.append_later(batch)?);
                            if self.later.len() >= LATER_MAX {
                                self.written().await?;
                            }
                        }
                    }
                    Command::CallModel { step, request } => {
                        let stop = CancellationToken::new();
                        let events = self.shared.models.chat(request, self.options, stop.clone());
                        self.model = Some((step, events, stop));
                    }
                    Command::StopModel => {
                        if let Some((_, _, stop)) = self.model.take() {
                            stop.cancel();
                        }
                    }
                    Command::Check(call) => {
                        let need = self.shared.tools.need(&call.name, &call.arguments);
                        let input = Input::Checked { call: call.id, need };
                        todo.extend(turn.step(input, self.began.elapsed()));
                    }
                    Command::Run { grant, call, timeout, label } => self.spawn(grant, call, timeout, label),
                    Command::Emit(event) => {
                        sink.send(ChannelEvent::Stream(event)).await;
                    }
                    Command::Finish { entries, outcome, exchange } => {
                        let mut batch = Batch::new();
                        batch.audit = entries;
                        let batch = rows.ended(batch, &outcome, exchange).closing();
                        self.commit(batch).await?;
                        return Ok(outcome);
                    }
                }
            }
            let deadline = self.began + turn.deadline();
            let input = tokio::select! {
                biased;
                () = self.cancel.cancelled(), if !cancel_seen => {
                    cancel_seen = true;
                    Input::Cancel
                }
                () = tokio::time::sleep_until(deadline), if !tick_seen => {
                    tick_seen = true;
                    Input::Tick
                }
                Some(done) = self.tools.join_next(), if !self.tools.is_empty() => match done {
                    Ok(input) => input,
                    // The task itself caught panics; only a runtime that shuts down ends up here.
                    Err(_) => Input::Cancel,
                },
                input = next_model_event(&mut self.model) => input,
            };
            todo.extend(turn.step(input, self.began.elapsed()));
        }
    }

    /// Makes a batch durable, and with it everything that was handed over before:
    /// an effect or an answer follows only when all of that is written.
    async fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        self.shared.store.commit(batch).await?;
        self.written().await
    }

    async fn written(&mut self) -> Result<(), StoreError> {
        for appended in self.later.drain(..) {
            appended.written().await?;
        }
        Ok(())
    }

    fn spawn(&mut self, grant: hearth_scope::Grant, call: ToolCall, timeout: Duration, label: Label) {
        let tools = self.shared.tools.clone();
        let ctx = ToolContext {
            turn: self.turn,
            session: self.session,
            tier: self.tier,
            held: self.held.clone(),
            label,
            fence: self.fence.clone(),
            // A running tool finishes or is killed at its own deadline.
            cancel: CancellationToken::new(),
            deadline: Instant::now() + timeout,
        };
        self.tools.spawn(async move {
            let id = call.id;
            let began = Instant::now();
            // A panic in a tool is that tool's failure, not the daemon's.
            let mut run = JoinSet::new();
            run.spawn(async move { tools.run(grant, call, &ctx).await });
            let outcome = match tokio::time::timeout(timeout + GRACE, run.join_next()).await {
                Ok(Some(Ok(outcome))) => outcome,
                // It crashed, or did not keep its own deadline: what it did is not known.
                Ok(_) | Err(_) => ToolOutcome::Failed(ToolError::Unfinished(timeout)),
            };
            Input::ToolDone { call: id, outcome, duration: began.elapsed() }
        });
    }
}

/// The next event of the model; waits for ever when none is asked. A stream that
/// ends without its last event is a failure.
async fn next_model_event(model: &mut Option<(u32, mpsc::Receiver<ModelEvent>, CancellationToken)>) -> Input {
    let Some((step, events, _)) = model else { return std::future::pending().await };
    let step = *step;
    match events.recv().await {
        Some(event) => {
            if matches!(event, ModelEvent::Finished { .. } | ModelEvent::Failed(_)) {
                *model = None;
            }
            Input::Model { step, event }
        }
        None => {
            *model = None;
            let event =
                ModelEvent::Failed(hearth_turn::ModelFailure::Incomplete("the stream ended".to_owned()));
            Input::Model { step, event }
        }
    }
}

/// A status line outside of any turn.
pub fn status(text: &str) -> ChannelEvent {
    ChannelEvent::Stream(StreamEvent::Status { text: text.to_owned() })
}
