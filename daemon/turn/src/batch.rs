//! The calls of one model step: planned, checked, run, answered, in order.

use std::time::Duration;

use hearth_scope::{CallId, Grant, Need, ToolName};
use serde_json::{Map, Value};

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
    Answered { text: String, is_error: bool },
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
    /// Numbers the calls and answers those that can never run.
    pub(crate) fn plan(raw: Vec<RawCall>, catalog: &[ToolSpec], max: usize, next: &mut u32) -> Self {
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
            let refused = |text: String| State::Answered { text, is_error: true };
            let (arguments, state) = match (raw.arguments, spec) {
                _ if index >= max => {
                    (Map::new(), refused(format!("Error: at most {max} calls in one step.")))
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
        Self { slots: slots.collect() }
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
                Err(error) => State::Answered { text: format!("Error: {error}"), is_error: true },
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
        let not_run = State::Answered { text: "Not run.".to_owned(), is_error: true };
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
        let none = State::Answered { text: String::new(), is_error: true };
        match std::mem::replace(&mut slot.state, none) {
            State::Running(ready) => Some(*ready),
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Sets the result of a call.
    pub(crate) fn result(&mut self, id: CallId, text: String, is_error: bool) {
        if let Some(slot) = self.slot(id) {
            slot.state = State::Answered { text, is_error };
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

    /// All results in the order of the calls, and whether any is an error.
    pub(crate) fn take_results(&mut self) -> (Vec<ChatMessage>, bool) {
        let results = self.abandon();
        let any_error = results.iter().any(|r| matches!(r, ChatMessage::Tool { is_error: true, .. }));
        (results, any_error)
    }

    /// A result for every call: its own, or that it was not run.
    pub(crate) fn abandon(&mut self) -> Vec<ChatMessage> {
        self.slots
            .drain(..)
            .map(|slot| {
                let (text, is_error) = match slot.state {
                    State::Answered { text, is_error } => (text, is_error),
                    _ => ("Not run.".to_owned(), true),
                };
                ChatMessage::Tool { call_id: slot.past.id, name: slot.past.name, text, is_error }
            })
            .collect()
    }
}
