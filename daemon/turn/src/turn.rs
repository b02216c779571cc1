//! The state machine of one turn.
//!
//! The shell feeds [`Input`]s with the time since the turn began and carries out
//! the [`Command`]s in order. After [`Command::Finish`] nothing follows.

use std::time::Duration;

use hearth_audit::{Draft, Kind};
use hearth_scope::{CallId, Effective, Grant, Label, Need};

use crate::batch::{Batch, RawCall};
use crate::breaker::Breaker;
use crate::capture;
use crate::event::StreamEvent;
use crate::limits::Limits;
use crate::message::{ChatMessage, Exchange, SessionId, TurnId};
use crate::model::{ModelEvent, ModelFailure, ModelRequest, StopReason};
use crate::outcome::TurnOutcome;
use crate::remedy;
use crate::tool::{ToolCall, ToolError, ToolOutcome, ToolSpec};

/// What a turn begins with. The tier and the effective set are resolved by the
/// caller before this value exists, and never again in the turn (INV-1).
#[derive(Debug)]
pub struct Start {
    /// Identity of the turn.
    pub turn: TurnId,
    /// The conversation.
    pub session: SessionId,
    /// Name of the channel.
    pub channel: String,
    /// What the person said.
    pub text: String,
    /// What the turn may do.
    pub effective: Effective,
    /// System text; the same bytes in every turn.
    pub system: String,
    /// Tools that the model is told about, in a fixed order.
    pub offered: Vec<ToolSpec>,
    /// Every tool there is; calling one that was not offered goes to the gate.
    pub catalog: Vec<ToolSpec>,
    /// Earlier exchanges, oldest first.
    pub history: Vec<Exchange>,
    /// Limits.
    pub limits: Limits,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// The model of this step said something.
    Model {
        /// The step that the event belongs to; events of other steps are ignored.
        step: u32,
        /// The event.
        event: ModelEvent,
    },
    /// A tool answered what a call needs.
    Checked {
        /// The call.
        call: CallId,
        /// What it needs, or why the arguments do not fit.
        need: Result<Need, ToolError>,
    },
    /// The last durable [`Command::Record`] is on disk.
    Recorded,
    /// A tool ended.
    ToolDone {
        /// The call.
        call: CallId,
        /// How it ended.
        outcome: ToolOutcome,
        /// How long it ran.
        duration: Duration,
    },
    /// The person wants the turn to stop.
    Cancel,
    /// The wall-clock budget may be used up.
    Tick,
}

/// What the shell has to do, in order.
#[derive(Debug)]
pub enum Command {
    /// Append audit entries; when `durable`, answer [`Input::Recorded`] once they
    /// are on disk.
    Record {
        /// The entries, in order.
        entries: Vec<Draft>,
        /// Wait for the disk.
        durable: bool,
    },
    /// Ask the model.
    CallModel {
        /// Step number, from 1.
        step: u32,
        /// The request.
        request: ModelRequest,
    },
    /// Close the connection to the model.
    StopModel,
    /// Ask the tool what this call needs; answer [`Input::Checked`].
    Check(ToolCall),
    /// Run the tool; answer [`Input::ToolDone`].
    Run {
        /// Proof that the gate allowed it.
        grant: Grant,
        /// The call.
        call: ToolCall,
        /// Kill the tool after this time.
        timeout: Duration,
        /// Everything that the turn has read so far.
        label: Label,
    },
    /// Tell the channel.
    Emit(StreamEvent),
    /// Commit the last entries, the history and the answer in one step, then
    /// tell the channel. Always the last command, exactly once (INV-5).
    Finish {
        /// The last audit entries.
        entries: Vec<Draft>,
        /// How the turn ended.
        outcome: TurnOutcome,
        /// What the history keeps.
        exchange: Exchange,
    },
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Waiting for the model.
    Model { text: String, thought: bool, told: bool, calls: Vec<RawCall> },
    /// Working through the calls of a step.
    Calls(Batch),
    /// `Finish` was issued.
    Done,
}

/// One turn.
#[derive(Debug)]
pub struct Turn {
    pub(crate) start: Start,
    pub(crate) phase: Phase,
    pub(crate) exchange: Exchange,
    pub(crate) step: u32,
    pub(crate) next_call: u32,
    pub(crate) ran: u32,
    /// A call changed something or may have, or sent something that was not a
    /// mere request.
    pub(crate) acted: bool,
    pub(crate) asked_again: bool,
    pub(crate) without_tools: bool,
    pub(crate) capturing: bool,
    pub(crate) cancelled: bool,
    pub(crate) overdue: bool,
    pub(crate) breaker: Breaker,
    pub(crate) failures: Option<(String, u32)>,
    pub(crate) now: Duration,
}

impl Turn {
    /// Begins a turn.
    pub fn begin(start: Start) -> (Self, Vec<Command>) {
        let mut out = vec![Command::Record {
            entries: vec![Draft::new(Kind::TurnStarted {
                turn: start.turn.0,
                session: start.session.0,
                channel: start.channel.clone(),
                tier: start.effective.tier(),
                effective: start.effective.set().clone(),
            })],
            durable: false,
        }];
        let user = ChatMessage::User { text: start.text.clone() };
        let remember = capture::remember(&start.text)
            .filter(|_| start.offered.iter().any(|t| t.name.as_str() == "memory.write"))
            .map(str::to_owned);
        // What was read before is read again.
        let said = Label::said_by(start.effective.tier());
        let label = start.history.iter().map(|exchange| exchange.label).chain([said]).collect();
        let mut turn = Self {
            start,
            phase: Phase::Done,
            exchange: Exchange { messages: vec![user], label },
            step: 0,
            next_call: 1,
            ran: 0,
            acted: false,
            asked_again: false,
            without_tools: false,
            capturing: remember.is_some(),
            cancelled: false,
            overdue: false,
            breaker: Breaker::default(),
            failures: None,
            now: Duration::ZERO,
        };
        match remember {
            Some(text) => {
                let arguments = serde_json::Map::from_iter([("text".to_owned(), text.into())]);
                let call = RawCall {
                    provider_id: String::new(),
                    name: "memory.write".to_owned(),
                    arguments: Ok(arguments),
                };
                turn.plan(String::new(), vec![call], &mut out);
            }
            None => turn.call_model(&mut out),
        }
        (turn, out)
    }

    /// Time since the beginning at which the shell must send [`Input::Tick`].
    pub fn deadline(&self) -> Duration {
        self.start.limits.budget
    }

    /// Takes one input at `now`, the time since the turn began.
    pub fn step(&mut self, input: Input, now: Duration) -> Vec<Command> {
        let mut out = Vec::new();
        self.now = now;
        self.overdue |= now >= self.start.limits.budget;
        match input {
            Input::Model { step, event } if step == self.step => self.on_model(event, &mut out),
            Input::Model { .. } | Input::Tick => {}
            Input::Cancel => self.cancelled = true,
            Input::Checked { call, need } => self.on_checked(call, need, &mut out),
            Input::Recorded => self.on_recorded(&mut out),
            Input::ToolDone { call, outcome, duration } => self.on_tool(call, outcome, duration, &mut out),
        }
        if self.must_stop() && matches!(self.phase, Phase::Model { .. }) {
            out.push(Command::StopModel);
            self.stop(&mut out);
        }
        out
    }

    pub(crate) fn must_stop(&self) -> bool {
        self.cancelled || self.overdue
    }

    // The model.

    pub(crate) fn call_model(&mut self, out: &mut Vec<Command>) {
        if self.must_stop() {
            return self.stop(out);
        }
        if self.step >= self.start.limits.steps {
            let tried = format!("{} model steps without a final answer", self.step);
            return self.finish(TurnOutcome::Looping { tried, tool_calls: self.ran }, None, out);
        }
        self.step += 1;
        self.phase = Phase::Model { text: String::new(), thought: false, told: false, calls: Vec::new() };
        let history = self.start.history.iter().flat_map(|e| &e.messages);
        out.push(Command::CallModel {
            step: self.step,
            request: ModelRequest {
                system: self.start.system.clone(),
                tools: if self.without_tools { Vec::new() } else { self.start.offered.clone() },
                messages: history.chain(&self.exchange.messages).cloned().collect(),
                max_tokens: self.start.limits.max_tokens,
            },
        });
    }

    fn on_model(&mut self, event: ModelEvent, out: &mut Vec<Command>) {
        let Phase::Model { text, thought, told, calls } = &mut self.phase else {
            return;
        };
        match event {
            // Said once in a step, not every few seconds.
            ModelEvent::Waiting if std::mem::replace(told, true) => {}
            ModelEvent::Waiting => {
                let text = "The model is loading or reading the conversation.".to_owned();
                out.push(Command::Emit(StreamEvent::Status { text }));
            }
            ModelEvent::Text(piece) => {
                text.push_str(&piece);
                out.push(Command::Emit(StreamEvent::Text { text: piece }));
            }
            ModelEvent::Thinking(_) => *thought = true,
            ModelEvent::Call { provider_id, name, arguments } => {
                calls.push(RawCall { provider_id, name, arguments });
            }
            ModelEvent::Finished { reason, usage, model } => {
                let (text, thought, calls) = (std::mem::take(text), *thought, std::mem::take(calls));
                self.record_model(&model, usage.prompt_tokens, usage.completion_tokens, "ok", out);
                if self.must_stop() {
                    return self.stop_with(&text, out);
                }
                match (calls.is_empty(), reason) {
                    (false, _) => self.plan(text, calls, out),
                    (true, StopReason::Filtered) => {
                        let error = "The model provider withheld the answer.".to_owned();
                        let remedy = "Ask in other words, or use another model.".to_owned();
                        self.finish(TurnOutcome::Failed { error, remedy, tool_calls: self.ran }, None, out);
                    }
                    (true, _) if text.trim().is_empty() && thought && !self.asked_again => {
                        self.asked_again = true;
                        self.call_model(out);
                    }
                    (true, _) => self.complete(&text, out),
                }
            }
            ModelEvent::Failed(failure) => self.on_model_failure(failure, out),
        }
    }

    fn on_model_failure(&mut self, failure: ModelFailure, out: &mut Vec<Command>) {
        self.record_model("", 0, 0, remedy::class(&failure), out);
        match failure {
            ModelFailure::ContextOverflow { .. } if !self.start.history.is_empty() => {
                // Drop the older half, whole exchanges only.
                let drop = self.start.history.len().div_ceil(2);
                self.start.history.drain(..drop);
                let text = "The conversation is too long; its oldest part is left out.".to_owned();
                out.push(Command::Emit(StreamEvent::Status { text }));
                self.call_model(out);
            }
            ModelFailure::ToolsUnsupported(model) if !self.without_tools => {
                self.without_tools = true;
                let text = format!("The model {model} cannot use tools; answering without them.");
                out.push(Command::Emit(StreamEvent::Status { text }));
                self.call_model(out);
            }
            failure => {
                let (error, remedy) = remedy::sentences(&failure);
                self.finish(TurnOutcome::Failed { error, remedy, tool_calls: self.ran }, None, out);
            }
        }
    }

    fn record_model(&self, model: &str, prompt: u64, completion: u64, outcome: &str, out: &mut Vec<Command>) {
        let entry = Kind::ModelCall {
            turn: self.start.turn.0,
            step: self.step,
            model: model.to_owned(),
            prompt_tokens: prompt,
            completion_tokens: completion,
            outcome: outcome.to_owned(),
        };
        out.push(Command::Record { entries: vec![Draft::new(entry)], durable: false });
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
