//! The calls of one model step: planned, checked, run, answered, in order.

use std::time::Duration;

use hearth_scope::{CallId, Grant, Need, ToolName};
use serde_json::{Map, Value};

use crate::breaker::Attempt;
use crate::message::{ChatMessage, PastCall};
use crate::repair;
use crate::tool::{ToolCall, ToolError, ToolSpec};

/// A call as the model wrote it.
#[derive(Debug)]
pub(crate) struct RawCall {
    pub(crate) provider_id: String,
    pub(crate) name: String,
    pub(crate) arguments: Result<Map<String, Value>, String>,
}

/// A call whose needs are known.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) call: ToolCall,
    pub(crate) need: Need,
    pub(crate) version: u32,
    pub(crate) timeout: Duration,
    pub(crate) repaired: bool,
}

#[derive(Debug)]
enum State {
    /// Waits for its needs.
    Unchecked,
    /// Waits for its turn.
    Checked(Need),
    /// Handed out for a decision.
    Deciding(Need),
    /// Its intent is being written.
    Held(Box<(Ready, Grant)>),
    /// It runs.
    Running(Box<Ready>),
    /// It has a result.
    Answered { text: String, verdict: Verdict },
}

/// What a result says about its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It worked.
    Worked,
    /// It failed, or was so broken that it could not be tried.
    Failed,
    /// It was denied or not run, which says nothing about how it was written.
    NotRun,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) call_id: String,
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) verdict: Verdict,
}

impl From<Answer> for ChatMessage {
    fn from(answer: Answer) -> Self {
        let Answer { call_id, name, text, verdict } = answer;
        Self::Tool { call_id, name, text, is_error: verdict != Verdict::Worked }
    }
}

#[derive(Debug)]
struct Slot {
    past: PastCall,
    call: Option<ToolCall>,
    version: u32,
    timeout: Duration,
    repaired: bool,
    state: State,
}

/// All calls of a step.
#[derive(Debug)]
pub(crate) struct Batch {
    slots: Vec<Slot>,
}

impl Batch {
    /// Numbers the calls and answers those that can never run. Every call is also
    /// handed out as an attempt.
    pub(crate) fn plan(
        raw: Vec<RawCall>,
        catalog: &[ToolSpec],
        max: usize,
        next: &mut u32,
    ) -> (Self, Vec<Attempt>) {
        let mut attempts = Vec::new();
        let slots = raw.into_iter().enumerate().map(|(index, raw)| {
            let id = CallId(*next);
            *next += 1;
            let provider_id = if raw.provider_id.is_empty() { format!("call_{id}") } else { raw.provider_id };
            let exact = catalog
                .iter()
                .find(|t| t.name.as_str() == raw.name || t.name.as_str().replace('.', "_") == raw.name);
            let (spec, repaired) = match exact {
                Some(spec) => (Some(spec), false),
                None => (repair::closest(&raw.name, catalog), true),
            };
            let name = spec.map_or_else(|| raw.name.chars().take(64).collect(), |s| s.name.to_string());
            let written = match &raw.arguments {
                Ok(arguments) => serde_json::to_string(arguments).unwrap_or_default(),
                Err(text) => text.clone(),
            };
            attempts.push(Attempt { tool: spec.map(|s| s.name.clone()), call: format!("{name} {written}") });
            let refused = |text: String| State::Answered { text, verdict: Verdict::Failed };
            let (arguments, state) = match (raw.arguments, spec) {
                _ if index >= max => {
                    let text = format!("Error: at most {max} calls in one step.");
                    (Map::new(), State::Answered { text, verdict: Verdict::NotRun })
                }
                (_, None) => {
                    let names: Vec<_> = catalog.iter().map(|t| t.name.as_str()).collect();
                    (
                        Map::new(),
                        refused(format!(
                            "Error: there is no tool \"{name}\". The tools are: {}.",
                            names.join(", ")
                        )),
                    )
                }
                (Err(text), Some(_)) => {
                    let shown: String = text.chars().take(200).collect();
                    (Map::new(), refused(format!("Error: the arguments are not a JSON object: {shown}")))
                }
                (Ok(arguments), Some(_)) => (arguments, State::Unchecked),
            };
            Slot {
                call: spec.map(|s| ToolCall { id, name: s.name.clone(), arguments: arguments.clone() }),
                past: PastCall { id: provider_id, name, arguments },
                version: spec.map_or(0, |s| s.version),
                timeout: spec.map_or(Duration::ZERO, |s| s.timeout),
                repaired: repaired && spec.is_some(),
                state,
            }
        });
        let slots = slots.collect();
        (Self { slots }, attempts)
    }

    /// The calls as the history keeps them.
    pub(crate) fn past_calls(&self) -> Vec<PastCall> {
        self.slots.iter().map(|s| s.past.clone()).collect()
    }

    /// The calls whose needs must be asked for.
    pub(crate) fn unchecked(&self) -> impl Iterator<Item = &ToolCall> {
        self.slots.iter().filter(|s| matches!(s.state, State::Unchecked)).filter_map(|s| s.call.as_ref())
    }

    fn slot(&mut self, id: CallId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|s| s.call.as_ref().is_some_and(|c| c.id == id))
    }

    /// Takes the answer to a check.
    pub(crate) fn checked(&mut self, id: CallId, need: Result<Need, ToolError>) {
        let Some(slot) = self.slot(id) else { return };
        if matches!(slot.state, State::Unchecked) {
            slot.state = match need {
                Ok(need) => State::Checked(need),
                Err(error) => State::Answered { text: format!("Error: {error}"), verdict: Verdict::Failed },
            };
        }
    }

    /// True while nothing new may be started: needs are missing, an intent is
    /// being written, or something runs that must not run beside the next call.
    pub(crate) fn is_waiting(&self) -> bool {
        let side_by_side = self.slots.iter().all(|s| match &s.state {
            State::Checked(need) | State::Deciding(need) => need.effect.is_read_only(),
            State::Running(ready) => ready.need.effect.is_read_only(),
            State::Held(_) | State::Unchecked => false,
            State::Answered { .. } => true,
        });
        let left = self.slots.iter().any(|s| matches!(s.state, State::Checked(_)));
        self.slots.iter().any(|s| match s.state {
            State::Unchecked | State::Held(_) => true,
            State::Running(_) => !(side_by_side && left),
            _ => false,
        })
    }

    /// The next call to decide on, in order.
    pub(crate) fn next_ready(&mut self) -> Option<Ready> {
        let slot = self.slots.iter_mut().find(|s| matches!(s.state, State::Checked(_)))?;
        let State::Checked(need) = &slot.state else {
            return None;
        };
        let ready = Ready {
            call: slot.call.clone()?,
            need: need.clone(),
            version: slot.version,
            timeout: slot.timeout,
            repaired: slot.repaired,
        };
        slot.state = State::Deciding(ready.need.clone());
        Some(ready)
    }

    /// Keeps a granted call until its intent is recorded.
    pub(crate) fn hold(&mut self, ready: Ready, grant: Grant) {
        if let Some(slot) = self.slot(ready.call.id) {
            slot.state = State::Held(Box::new((ready, grant)));
        }
    }

    fn take_held(&mut self) -> Option<(&mut Slot, Ready, Grant)> {
        let slot = self.slots.iter_mut().find(|s| matches!(s.state, State::Held(_)))?;
        let not_run = State::Answered { text: "Not run.".to_owned(), verdict: Verdict::NotRun };
        match std::mem::replace(&mut slot.state, not_run) {
            State::Held(held) => Some((slot, held.0, held.1)),
            _ => None,
        }
    }

    /// Marks the held call as running and hands it out.
    pub(crate) fn run_held(&mut self) -> Option<(Ready, Grant)> {
        let (slot, ready, grant) = self.take_held()?;
        slot.state = State::Running(Box::new(ready.clone()));
        Some((ready, grant))
    }

    /// Gives the held call up.
    pub(crate) fn drop_held(&mut self) -> Option<Ready> {
        self.take_held().map(|(_, ready, _)| ready)
    }

    /// A running call has ended; its result follows.
    pub(crate) fn ended(&mut self, id: CallId) -> Option<Ready> {
        let slot = self.slot(id)?;
        let none = State::Answered { text: String::new(), verdict: Verdict::NotRun };
        match std::mem::replace(&mut slot.state, none) {
            State::Running(ready) => Some(*ready),
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Sets the result of a call.
    pub(crate) fn result(&mut self, id: CallId, text: String, verdict: Verdict) {
        if let Some(slot) = self.slot(id) {
            slot.state = State::Answered { text, verdict };
        }
    }

    /// Calls that were started and have not ended.
    pub(crate) fn running(&self) -> impl Iterator<Item = &ToolCall> {
        self.slots.iter().filter(|s| matches!(s.state, State::Running(_))).filter_map(|s| s.call.as_ref())
    }

    /// The tool of a call.
    pub(crate) fn tool_of(&self, id: CallId) -> Option<ToolName> {
        self.slots.iter().filter_map(|s| s.call.as_ref()).find(|c| c.id == id).map(|c| c.name.clone())
    }

    /// A result for every call, in order: its own, or that it was not run.
    pub(crate) fn take_results(&mut self) -> impl Iterator<Item = Answer> {
        self.slots.drain(..).map(|slot| {
            let (text, verdict) = match slot.state {
                State::Answered { text, verdict } => (text, verdict),
                _ => ("Not run.".to_owned(), Verdict::NotRun),
            };
            Answer { call_id: slot.past.id, name: slot.past.name, text, verdict }
        })
    }
}
