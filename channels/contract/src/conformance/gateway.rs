//! A gateway that follows a script and counts what it is asked for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hearth_turn::{MessageId, StreamEvent, TurnOutcome};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{BoxFuture, ChannelEvent, Gateway, Inbound, Refusal, Ticket};

/// What a scripted turn does next.
#[derive(Debug, Clone)]
pub enum Step {
    /// Streams a piece of text.
    Text(String),
    /// Waits until the turn is cancelled.
    AwaitCancel,
    /// Waits until [`FakeGateway::open_gate`] is called.
    AwaitGate,
    /// Ends the turn. Further steps break the gateway's own contract.
    Finish(TurnOutcome),
    /// Refuses the message instead of running it; only as the first step.
    Refuse(Refusal),
}

/// How often something happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages handed over.
    pub submitted: usize,
    /// Turns started: less than `submitted` by the duplicates and refusals.
    pub started: usize,
    /// Turns that came to the end of their script.
    pub ended: usize,
    /// Turns that were waiting for their cancellation and got it.
    pub cancelled: usize,
}

/// A [`Gateway`] whose turns are scripts, chosen by the text of the message.
/// Without one it answers `echo: TEXT` in one piece.
#[derive(Debug, Clone)]
pub struct FakeGateway(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    counts: watch::Sender<Counts>,
    gate: CancellationToken,
    turns: TaskTracker,
}

#[derive(Debug, Default)]
struct State {
    scripts: HashMap<String, Vec<Step>>,
    inbound: Vec<Inbound>,
    known: HashMap<(String, String), (MessageId, Vec<Step>)>,
    started: HashSet<MessageId>,
}

impl Default for FakeGateway {
    fn default() -> Self {
        Self(Arc::new(Inner {
            state: Mutex::default(),
            counts: watch::Sender::default(),
            gate: CancellationToken::new(),
            turns: TaskTracker::new(),
        }))
    }
}

impl FakeGateway {
    /// A gateway that echoes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plays `steps` for messages with this text.
    pub fn on(&self, text: &str, steps: impl IntoIterator<Item = Step>) {
        self.state().scripts.insert(text.to_owned(), steps.into_iter().collect());
    }

    /// Lets every turn pass that waits, or will wait, at the gate.
    pub fn open_gate(&self) {
        self.0.gate.cancel();
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        *self.0.counts.borrow()
    }

    /// Waits until the counts fit.
    pub async fn wait(&self, fits: impl FnMut(&Counts) -> bool) -> Counts {
        let mut counts = self.0.counts.subscribe();
        let seen = counts.wait_for(fits).await.expect("the sender lives in self");
        *seen
    }

    /// Every message that was handed over, in order.
    pub fn inbound(&self) -> Vec<Inbound> {
        self.state().inbound.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        self.0.counts.send_modify(change);
    }

    async fn play(self, steps: Vec<Step>, events: mpsc::Sender<ChannelEvent>, cancel: CancellationToken) {
        for step in steps {
            let event = match step {
                Step::Text(text) => ChannelEvent::Stream(StreamEvent::Text { text }),
                Step::Finish(outcome) => ChannelEvent::Finished(outcome),
                Step::AwaitCancel => {
                    cancel.cancelled().await;
                    self.count(|c| c.cancelled += 1);
                    continue;
                }
                Step::AwaitGate => {
                    self.0.gate.cancelled().await;
                    continue;
                }
                Step::Refuse(_) => continue,
            };
            // A peer that went away does not stop the turn.
            let _ = events.send(event).await;
        }
        self.count(|c| c.ended += 1);
    }
}

impl Gateway for FakeGateway {
    fn submit(&self, inbound: Inbound) -> BoxFuture<'_, Result<Ticket, Refusal>> {
        Box::pin(async move {
            let key = (inbound.channel.to_string(), inbound.external_id.clone());
            let (message, steps, duplicate) = {
                let mut state = self.state();
                state.inbound.push(inbound.clone());
                let steps = state.scripts.get(&inbound.text).cloned().unwrap_or_else(|| echo(&inbound.text));
                let next = MessageId(ulid::Ulid::from(state.known.len() as u128 + 1));
                let (message, steps) = state.known.entry(key).or_insert((next, steps)).clone();
                let duplicate = !state.started.insert(message);
                (message, steps, duplicate)
            };
            self.count(|c| c.submitted += 1);
            if let Some(Step::Refuse(refusal)) = steps.first() {
                self.state().started.remove(&message);
                return Err(refusal.clone());
            }
            // Small, so that a slow peer is felt.
            let (sender, events) = mpsc::channel(4);
            let cancel = CancellationToken::new();
            let ticket = Ticket { message, events, cancel: cancel.clone() };
            let accepted = ChannelEvent::Accepted { message, duplicate };
            sender.try_send(accepted).expect("the queue is new and has room");
            if duplicate {
                let outcome = steps.into_iter().find(|s| matches!(s, Step::Finish(_)));
                if let Some(Step::Finish(outcome)) = outcome {
                    sender.try_send(ChannelEvent::Finished(outcome)).expect("the queue has room for two");
                }
            } else {
                self.count(|c| c.started += 1);
                self.0.turns.spawn(self.clone().play(steps, sender, cancel));
            }
            Ok(ticket)
        })
    }
}

/// The outcome of a turn that answered `text`.
pub(super) fn completed(text: &str) -> TurnOutcome {
    TurnOutcome::Completed { text: text.to_owned(), tool_calls: 0, duration_ms: 1 }
}

fn echo(text: &str) -> Vec<Step> {
    let answer = format!("echo: {text}");
    vec![Step::Text(answer.clone()), Step::Finish(completed(&answer))]
}
