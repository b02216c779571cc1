//! The calls of a step: decided, recorded, run and answered.

use std::time::Duration;

use hearth_audit::{Draft, Kind};
use hearth_scope::{CallId, Decision, EffectClass, Grant, Label, Need};

use crate::batch::{Answer, Batch, RawCall, Ready, Verdict};
use crate::event::StreamEvent;
use crate::limits::cut;
use crate::message::ChatMessage;
use crate::outcome::TurnOutcome;
use crate::tool::{ToolCall, ToolError, ToolOutcome, Verification};
use crate::turn::{Command, Phase, Turn, millis};

/// Said once to a model whose calls of one tool fail again and again.
const STOP_USING: &str = "\nThis tool has failed three times in a row. Stop using it and tell the user.";

impl Turn {
    /// Begins the calls of a step. A call counts for the breaker when the model
    /// makes it, whether it can run or not.
    pub(crate) fn plan(&mut self, text: String, raw: Vec<RawCall>, out: &mut Vec<Command>) {
        let max = self.start.limits.calls_per_step;
        let (batch, attempts) = Batch::plan(raw, &self.start.catalog, max, &mut self.next_call);
        self.exchange.messages.push(ChatMessage::Assistant { text, calls: batch.past_calls() });
        let checks: Vec<_> = batch.unchecked().cloned().map(Command::Check).collect();
        self.phase = Phase::Calls(batch);
        if let Some(tried) = attempts.into_iter().find_map(|a| self.breaker.note(a)) {
            return self.finish(TurnOutcome::Looping { tried, tool_calls: self.ran }, None, out);
        }
        out.extend(checks);
        self.advance(out);
    }

    pub(crate) fn on_checked(&mut self, call: CallId, need: Result<Need, ToolError>, out: &mut Vec<Command>) {
        let Phase::Calls(batch) = &mut self.phase else {
            return;
        };
        batch.checked(call, need);
        self.advance(out);
    }

    /// Goes on with the next call that has no result; when all have one, the
    /// model is asked again.
    pub(crate) fn advance(&mut self, out: &mut Vec<Command>) {
        loop {
            let stopping = self.must_stop();
            let Phase::Calls(batch) = &mut self.phase else {
                return;
            };
            if batch.is_waiting() {
                return;
            }
            if stopping {
                return self.stop(out);
            }
            let Some(ready) = batch.next_ready() else {
                return self.batch_done(out);
            };
            let (turn, tier) = (self.start.turn.0, self.start.effective.tier());
            let (id, tool) = (ready.call.id, ready.call.name.clone());
            match self.start.effective.check(&tool, id, &ready.need) {
                Decision::Grant(grant) => self.start_call(ready, grant, out),
                Decision::Denied { scope } => {
                    let held = self.start.effective.set().clone();
                    let entry = Kind::ScopeDenied {
                        turn,
                        call: id,
                        tool: tool.clone(),
                        scope: scope.clone(),
                        tier,
                        held,
                    };
                    out.push(Command::Record { entries: vec![Draft::new(entry)], durable: false });
                    out.push(finished(id, tool.as_str(), "not allowed from here".to_owned(), None));
                    let result = format!(
                        "Denied: {tool} is not allowed in this conversation (scope {scope}, trust {tier}). \
                         Do not try again; tell the user."
                    );
                    self.result(id, result, Verdict::NotRun);
                }
                Decision::NeedsApproval { reason } => return self.escalate(id, reason, out),
            }
        }
    }

    /// Records the intent; an effect waits until it is durable (INV-3).
    fn start_call(&mut self, ready: Ready, grant: Grant, out: &mut Vec<Command>) {
        let Phase::Calls(batch) = &mut self.phase else {
            return;
        };
        let durable = !ready.need.effect.is_read_only();
        let intent = Draft {
            kind: Kind::ToolIntent {
                turn: self.start.turn.0,
                call: ready.call.id,
                tool: ready.call.name.clone(),
                version: ready.version,
                scopes: ready.need.scopes.clone(),
                subject: ready.need.subject.clone(),
                repaired: ready.repaired,
                label: self.exchange.label,
            },
            arguments: Some(serde_json::to_vec(&ready.call.arguments).unwrap_or_default()),
        };
        out.push(Command::Record { entries: vec![intent], durable });
        batch.hold(ready, grant);
        if !durable {
            self.run_held(out);
        }
    }

    fn run_held(&mut self, out: &mut Vec<Command>) {
        let Phase::Calls(batch) = &mut self.phase else {
            return;
        };
        let Some((ready, grant)) = batch.run_held() else {
            return;
        };
        let left = self.start.limits.budget.saturating_sub(self.now);
        out.push(Command::Emit(StreamEvent::ToolCallStarted {
            call: ready.call.id.0,
            tool: ready.call.name.to_string(),
            subject: ready.need.subject.clone(),
        }));
        let timeout = ready.timeout.min(left);
        out.push(Command::Run { grant, call: ready.call, timeout, label: self.exchange.label });
    }

    pub(crate) fn on_recorded(&mut self, out: &mut Vec<Command>) {
        let stopping = self.must_stop();
        let Phase::Calls(batch) = &mut self.phase else {
            return;
        };
        if stopping {
            // The intent is on disk, the effect did not happen: say so.
            if let Some(ready) = batch.drop_held() {
                let entry = self.outcome_entry(&ready.call, "cancelled", Duration::ZERO);
                out.push(Command::Record { entries: vec![Draft::new(entry)], durable: false });
            }
            return self.stop(out);
        }
        self.run_held(out);
        self.advance(out);
    }

    pub(crate) fn on_tool(
        &mut self,
        id: CallId,
        outcome: ToolOutcome,
        duration: Duration,
        out: &mut Vec<Command>,
    ) {
        let Phase::Calls(batch) = &mut self.phase else {
            return;
        };
        let Some(ready) = batch.ended(id) else { return };
        self.ran += 1;
        let word = match &outcome {
            ToolOutcome::Completed { verified: Verification::Verified, .. } => "verified",
            ToolOutcome::Completed { verified: Verification::Unverified, .. }
            | ToolOutcome::Failed(ToolError::Unfinished(_)) => "unverified",
            ToolOutcome::Completed { verified: Verification::NotApplicable, .. } => "not_applicable",
            ToolOutcome::Denied { .. } => "denied",
            ToolOutcome::RequiresEscalation { .. } => "escalated",
            ToolOutcome::Failed(ToolError::Cancelled) => "cancelled",
            ToolOutcome::Failed(_) => "failed",
        };
        let mut entries = vec![Draft::new(self.outcome_entry(&ready.call, word, duration))];
        entries.extend(self.memory_entry(&ready, &outcome));
        out.push(Command::Record { entries, durable: false });
        let tool = ready.call.name.to_string();
        match outcome {
            ToolOutcome::Completed { output, verified, label } => {
                self.read(label);
                // A fetch leaves the box, and yet there is no effect to see.
                let effect = verified != Verification::NotApplicable;
                self.acted |= effect && !ready.need.effect.is_read_only();
                let seen = match verified {
                    Verification::Verified => "done, and seen to be done",
                    Verification::Unverified => "done, effect not seen",
                    Verification::NotApplicable => "done",
                };
                out.push(finished(id, &tool, seen.to_owned(), Some(verified)));
                let text = match output {
                    serde_json::Value::String(text) => text,
                    other => other.to_string(),
                };
                self.result(id, text, Verdict::Worked);
            }
            ToolOutcome::Denied { scope } => {
                out.push(finished(id, &tool, "not allowed from here".to_owned(), None));
                self.result(id, format!("Denied: scope {scope} is not held."), Verdict::NotRun);
            }
            ToolOutcome::RequiresEscalation { reason } => return self.escalate(id, reason, out),
            ToolOutcome::Failed(error) => {
                // The words of an error may come from the other side.
                if matches!(ready.need.effect, EffectClass::Send | EffectClass::Destroy) {
                    self.read(Label::UNKNOWN);
                }
                let (verified, advice) = match error {
                    ToolError::Unfinished(_) => {
                        self.acted = true;
                        (Some(Verification::Unverified), ". Look before you try it again")
                    }
                    _ => (None, ""),
                };
                out.push(finished(id, &tool, error.to_string(), verified));
                self.result(id, format!("Error: {error}{advice}"), Verdict::Failed);
            }
        }
        self.advance(out);
    }

    /// Notes what the turn has read. Within a turn the label only gets worse.
    fn read(&mut self, label: Label) {
        self.exchange.label = self.exchange.label.join(label);
    }

    /// True exactly when this is the third failure of one tool in a row.
    fn third_failure(&mut self, answer: &Answer) -> bool {
        let count = match (&self.failures, answer.verdict) {
            (_, Verdict::NotRun) => return false,
            (_, Verdict::Worked) => {
                self.failures = None;
                return false;
            }
            (Some((name, n)), Verdict::Failed) if *name == answer.name => n + 1,
            (_, Verdict::Failed) => 1,
        };
        self.failures = Some((answer.name.clone(), count));
        count == 3
    }

    pub(crate) fn outcome_entry(&self, call: &ToolCall, outcome: &str, duration: Duration) -> Kind {
        Kind::ToolOutcome {
            turn: self.start.turn.0,
            call: call.id,
            tool: call.name.clone(),
            outcome: outcome.to_owned(),
            duration_ms: millis(duration),
        }
    }

    fn memory_entry(&self, ready: &Ready, outcome: &ToolOutcome) -> Option<Draft> {
        let operation = ready.call.name.as_str().strip_prefix("memory.")?;
        let ToolOutcome::Completed { output, .. } = outcome else {
            return None;
        };
        let entries = output.get("count").and_then(serde_json::Value::as_u64).unwrap_or(1);
        Some(Draft::new(Kind::MemoryAccess {
            turn: self.start.turn.0,
            operation: operation.to_owned(),
            scope: ready.need.scopes.first()?.clone(),
            entries,
        }))
    }

    fn result(&mut self, id: CallId, text: String, verdict: Verdict) {
        let max = self.start.limits.tool_result_bytes;
        if let Phase::Calls(batch) = &mut self.phase {
            batch.result(id, cut(text, max), verdict);
        }
    }

    fn batch_done(&mut self, out: &mut Vec<Command>) {
        let Phase::Calls(batch) = &mut self.phase else {
            return;
        };
        let answers: Vec<_> = batch.take_results().collect();
        let worked = answers.iter().all(|a| a.verdict == Verdict::Worked);
        let room = self.start.limits.tool_result_bytes.saturating_sub(STOP_USING.len());
        for mut answer in answers {
            if self.third_failure(&answer) {
                answer.text = cut(answer.text, room) + STOP_USING;
            }
            self.exchange.messages.push(answer.into());
        }
        if std::mem::take(&mut self.capturing) && worked {
            let text = "I will remember that.";
            out.push(Command::Emit(StreamEvent::Text { text: text.to_owned() }));
            return self.complete(text, out);
        }
        self.call_model(out);
    }
}

fn finished(id: CallId, tool: &str, summary: String, verified: Option<Verification>) -> Command {
    Command::Emit(StreamEvent::ToolCallFinished { call: id.0, tool: tool.to_owned(), summary, verified })
}
