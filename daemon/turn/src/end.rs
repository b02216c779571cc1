//! How a turn ends.

use std::time::Duration;

use hearth_audit::{Draft, Kind};
use hearth_scope::CallId;

use crate::answer;
use crate::event::StreamEvent;
use crate::identifier;
use crate::message::ChatMessage;
use crate::outcome::TurnOutcome;
use crate::turn::{Command, Phase, Turn, millis};

impl Turn {
    pub(crate) fn escalate(&mut self, id: CallId, reason: String, out: &mut Vec<Command>) {
        let Phase::Calls(batch) = &self.phase else { return };
        let Some(tool) = batch.tool_of(id) else { return };
        let turn = self.start.turn.0;
        let entry = Kind::ApprovalRequested { turn, call: id, tool: tool.clone(), reason: reason.clone() };
        out.push(Command::Record { entries: vec![Draft::new(entry)], durable: false });
        self.finish(TurnOutcome::Escalated { reason, tool, tool_calls: self.ran }, None, out);
    }

    pub(crate) fn complete(&mut self, text: &str, out: &mut Vec<Command>) {
        let mut shown = answer::finish(text, self.acted);
        if let Some((said, meant)) = identifier::altered(text, &self.exchange.messages) {
            shown.push_str(&format!("\n\n(Check \"{said}\": the tool said \"{meant}\".)"));
        }
        if let Some(note) = shown.strip_prefix(text.trim()).filter(|n| !n.is_empty()) {
            out.push(Command::Emit(StreamEvent::Text { text: note.to_owned() }));
        }
        let outcome =
            TurnOutcome::Completed { text: shown, tool_calls: self.ran, duration_ms: millis(self.now) };
        self.finish(outcome, Some(text.trim()), out);
    }

    pub(crate) fn stop(&mut self, out: &mut Vec<Command>) {
        let said = match &mut self.phase {
            Phase::Model { text, .. } => std::mem::take(text),
            _ => String::new(),
        };
        self.stop_with(&said, out);
    }

    pub(crate) fn stop_with(&mut self, said: &str, out: &mut Vec<Command>) {
        let outcome = if self.cancelled {
            TurnOutcome::Cancelled { tool_calls: self.ran }
        } else {
            TurnOutcome::TimedOut { tool_calls: self.ran, duration_ms: millis(self.now) }
        };
        self.finish(outcome, Some(said.trim()), out);
    }

    pub(crate) fn finish(&mut self, outcome: TurnOutcome, said: Option<&str>, out: &mut Vec<Command>) {
        let mut entries = Vec::new();
        if let Phase::Calls(mut batch) = std::mem::replace(&mut self.phase, Phase::Done) {
            // Reads that still run are dropped by the shell; no intent stays open.
            for call in batch.running() {
                entries.push(Draft::new(self.outcome_entry(call, "cancelled", Duration::ZERO)));
            }
            // A call is never kept without a result.
            self.exchange.messages.extend(batch.take_results().map(ChatMessage::from));
        }
        let said = said.unwrap_or_default();
        let text = match &outcome {
            TurnOutcome::Completed { .. } if !said.is_empty() => said.to_owned(),
            TurnOutcome::Completed { text, .. } => text.clone(),
            other => format!("{said} [no full answer: {}]", other.name()).trim().to_owned(),
        };
        self.exchange.messages.push(ChatMessage::Assistant { text, calls: Vec::new() });
        let reason = match &outcome {
            TurnOutcome::Completed { .. } | TurnOutcome::Cancelled { .. } => None,
            TurnOutcome::TimedOut { .. } => {
                Some(format!("budget of {} s", self.start.limits.budget.as_secs()))
            }
            TurnOutcome::Looping { tried, .. } => Some(tried.clone()),
            TurnOutcome::Escalated { tool, .. } => Some(format!("{tool} needs approval")),
            TurnOutcome::Failed { error, .. } => Some(error.clone()),
        };
        let ended = Kind::TurnEnded {
            turn: self.start.turn.0,
            outcome: outcome.name().to_owned(),
            reason,
            tool_calls: self.ran,
            duration_ms: millis(self.now),
        };
        let exchange = std::mem::take(&mut self.exchange);
        entries.push(Draft::new(ended));
        out.push(Command::Finish { entries, outcome, exchange });
    }
}
