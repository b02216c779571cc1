//! Where the decoders put what they read.

use hearth_turn::{ModelEvent, ModelFailure, StopReason, Usage};
use serde_json::{Map, Value};

use crate::failure::in_stream;
use crate::names::Names;
use crate::text::{Piece, TextFilter};

/// Collects events; keeps calls until the end, and the largest of each count.
#[derive(Debug)]
pub(super) struct Sink {
    asked: String,
    names: Names,
    filter: TextFilter,
    events: Vec<ModelEvent>,
    calls: Vec<ModelEvent>,
    usage: Usage,
    model: String,
    delivered: bool,
    ended: bool,
}

impl Sink {
    pub(super) fn new(asked: &str, names: Names) -> Self {
        Self {
            asked: asked.to_owned(),
            filter: TextFilter::new(names.clone()),
            names,
            events: Vec::new(),
            calls: Vec::new(),
            usage: Usage::default(),
            model: String::new(),
            delivered: false,
            ended: false,
        }
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    pub(super) fn started(&self) -> bool {
        self.delivered
    }

    pub(super) fn take(&mut self) -> Vec<ModelEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn waiting(&mut self) {
        self.events.push(ModelEvent::Waiting);
    }

    pub(super) fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.delivered = true;
            let pieces = self.filter.push(text);
            self.sort(pieces);
        }
    }

    pub(super) fn thinking(&mut self, text: &str) {
        if !text.is_empty() {
            self.delivered = true;
            self.events.push(ModelEvent::Thinking(text.to_owned()));
        }
    }

    fn sort(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.events.push(ModelEvent::Text(text)),
                Piece::Thinking(text) => self.events.push(ModelEvent::Thinking(text)),
                Piece::Call { name, arguments } => {
                    self.calls.push(ModelEvent::Call { provider_id: String::new(), name, arguments });
                }
            }
        }
    }

    pub(super) fn call(&mut self, id: &str, name: &str, arguments: Result<Map<String, Value>, String>) {
        self.calls.push(ModelEvent::Call {
            provider_id: id.to_owned(),
            name: self.names.dotted(name),
            arguments,
        });
    }

    /// Counts may come several times, first as guesses: the largest one stands.
    pub(super) fn usage(&mut self, prompt: u64, cached: u64, completion: u64) {
        let u = &mut self.usage;
        u.prompt_tokens = u.prompt_tokens.max(prompt);
        u.cached_tokens = u.cached_tokens.max(cached);
        u.completion_tokens = u.completion_tokens.max(completion);
    }

    pub(super) fn model(&mut self, model: Option<&str>) {
        if let Some(name) = model.filter(|m| !m.is_empty() && self.model.is_empty()) {
            self.model = crate::failure::shorten(name, 200);
        }
    }

    pub(super) fn finish(&mut self, reason: StopReason) {
        if self.ended {
            return;
        }
        let pieces = self.filter.finish();
        self.sort(pieces);
        self.events.append(&mut self.calls);
        let model = if self.model.is_empty() { self.asked.clone() } else { self.model.clone() };
        self.events.push(ModelEvent::Finished { reason, usage: self.usage, model });
        self.ended = true;
    }

    pub(super) fn fail(&mut self, failure: ModelFailure) {
        if !self.ended {
            self.events.push(ModelEvent::Failed(failure));
            self.ended = true;
        }
    }

    /// An error inside of the stream. What would be a passing trouble before the
    /// first word is a broken answer after it.
    pub(super) fn error(&mut self, value: &Value) {
        let refusal = in_stream(&self.asked, value);
        if let Some(id) = &refusal.request_id {
            log::warn!("the model server reported an error for request {id}");
        }
        self.fail(match refusal.failure {
            ModelFailure::Busy { message, .. } if self.delivered => ModelFailure::Incomplete(message),
            other => other,
        });
    }
}
