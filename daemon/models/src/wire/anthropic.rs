//! Anthropic: `/v1/messages`, server-sent events.

use std::collections::BTreeMap;

use hearth_turn::{ChatMessage, ModelRequest, StopReason};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::sink::Sink;
use super::{HttpRequest, count, post, text};
use crate::arguments::{parse_text, shorten};
use crate::names::Names;
use crate::provider::Provider;

/// The version of the protocol.
const VERSION: &str = "2023-06-01";

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    #[serde(skip_serializing_if = "str::is_empty")]
    system: &'a str,
    messages: Vec<Message>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: Vec<Value>,
}

pub(super) fn request(provider: &Provider, request: &ModelRequest, names: &Names) -> HttpRequest {
    let tool = |t: &hearth_turn::ToolSpec| json!({"name": names.wire(t.name.as_str()), "description": t.description, "input_schema": t.schema});
    let body = Body {
        model: &provider.model,
        max_tokens: request.max_tokens,
        stream: true,
        temperature: provider.temperature,
        tools: request.tools.iter().map(tool).collect(),
        system: &request.system,
        messages: messages(&request.messages, names),
    };
    let mut request = post(provider.path("/v1/messages"), &body);
    request.headers.push(("anthropic-version".into(), VERSION.into()));
    request
}

/// Neighbours of the same role become one message, so that all results of a
/// step stand in one user message, in front of everything else in it.
fn messages(history: &[ChatMessage], names: &Names) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::new();
    for message in history {
        let (role, parts) = match message {
            ChatMessage::User { text } => ("user", vec![json!({"type": "text", "text": text})]),
            ChatMessage::Assistant { text, calls } => ("assistant", assistant(text, calls, names)),
            ChatMessage::Tool { call_id, text, is_error, .. } => {
                let mut result = json!({"type": "tool_result", "tool_use_id": call_id, "content": text});
                if *is_error {
                    result["is_error"] = Value::Bool(true);
                }
                ("user", vec![result])
            }
        };
        match out.last_mut() {
            // An empty message is refused by the server.
            _ if parts.is_empty() => {}
            Some(last) if last.role == role => last.content.extend(parts),
            _ => out.push(Message { role, content: parts }),
        }
    }
    out
}

fn assistant(text: &str, calls: &[hearth_turn::message::PastCall], names: &Names) -> Vec<Value> {
    let said = (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}));
    let call = |c: &hearth_turn::message::PastCall| json!({"type": "tool_use", "id": c.id, "name": names.wire(&c.name), "input": c.arguments});
    said.into_iter().chain(calls.iter().map(call)).collect()
}

/// A call as it grows.
#[derive(Debug)]
struct Partial {
    id: String,
    name: String,
    input: Map<String, Value>,
    json: String,
    closed: bool,
}

impl Partial {
    fn start(block: &Value) -> Self {
        let field = |key| text(block, key).unwrap_or_default().to_owned();
        let input = block.get("input").and_then(Value::as_object).cloned().unwrap_or_default();
        Self { id: field("id"), name: field("name"), input, json: String::new(), closed: false }
    }

    /// No text at all means no arguments, unless the answer was cut; anything
    /// else has to be an object.
    fn report(self, cut: bool, sink: &mut Sink) {
        let arguments = match (self.json.is_empty(), cut) {
            (false, _) if self.closed => parse_text(&self.json),
            (true, false) if self.closed => Ok(self.input),
            _ => Err(format!("cut off: {}", shorten(&self.json))),
        };
        sink.call(&self.id, &self.name, arguments);
    }
}

#[derive(Debug, Default)]
pub(super) struct Anthropic {
    calls: BTreeMap<u64, Partial>,
    reason: Option<StopReason>,
    input: u64,
    cached: u64,
    created: u64,
    output: u64,
}

impl Anthropic {
    pub(super) fn event(&mut self, value: &Value, sink: &mut Sink) {
        let index = count(value, "index");
        match text(value, "type").unwrap_or_default() {
            "error" => sink.error(value),
            "ping" => sink.waiting(),
            "message_start" => {
                let message = value.get("message").unwrap_or(&Value::Null);
                sink.model(text(message, "model"));
                self.usage(message, sink);
            }
            "content_block_start" => {
                let block = value.get("content_block").unwrap_or(&Value::Null);
                match text(block, "type") {
                    Some("text") => sink.text(text(block, "text").unwrap_or_default()),
                    Some("thinking") => sink.thinking(text(block, "thinking").unwrap_or_default()),
                    Some("tool_use") => {
                        self.calls.insert(index, Partial::start(block));
                    }
                    _ => {}
                }
            }
            "content_block_delta" => {
                let delta = value.get("delta").unwrap_or(&Value::Null);
                match text(delta, "type") {
                    Some("text_delta") => sink.text(text(delta, "text").unwrap_or_default()),
                    Some("thinking_delta") => sink.thinking(text(delta, "thinking").unwrap_or_default()),
                    Some("input_json_delta") => {
                        if let Some(call) = self.calls.get_mut(&index) {
                            call.json.push_str(text(delta, "partial_json").unwrap_or_default());
                        }
                    }
                    _ => {}
                }
            }
            "content_block_stop" => {
                if let Some(call) = self.calls.get_mut(&index) {
                    call.closed = true;
                }
            }
            "message_delta" => {
                self.stop(value.get("delta").unwrap_or(&Value::Null));
                self.usage(value, sink);
            }
            "message_stop" => self.end(sink),
            // New kinds of events and deltas are skipped.
            _ => {}
        }
    }

    /// An answer that was not streamed.
    pub(super) fn whole(&mut self, value: &Value, sink: &mut Sink) {
        if text(value, "type") == Some("error") || value.get("error").is_some() {
            return sink.error(value);
        }
        sink.model(text(value, "model"));
        let blocks = value.get("content").and_then(Value::as_array);
        for (index, block) in (0..).zip(blocks.into_iter().flatten()) {
            match text(block, "type") {
                Some("text") => sink.text(text(block, "text").unwrap_or_default()),
                Some("thinking") => sink.thinking(text(block, "thinking").unwrap_or_default()),
                Some("tool_use") => {
                    self.calls.insert(index, Partial { closed: true, ..Partial::start(block) });
                }
                _ => {}
            }
        }
        self.stop(value);
        self.usage(value, sink);
        if self.reason.is_some() {
            self.end(sink);
        }
    }

    fn stop(&mut self, value: &Value) {
        self.reason = match text(value, "stop_reason") {
            None => self.reason,
            Some("max_tokens" | "model_context_window_exceeded") => Some(StopReason::Length),
            Some("refusal") => Some(StopReason::Filtered),
            Some(_) => Some(StopReason::Done),
        };
    }

    /// The largest of each field; input tokens do not contain the cached ones here.
    fn usage(&mut self, value: &Value, sink: &mut Sink) {
        let Some(usage) = value.get("usage") else { return };
        self.input = self.input.max(count(usage, "input_tokens"));
        self.cached = self.cached.max(count(usage, "cache_read_input_tokens"));
        self.created = self.created.max(count(usage, "cache_creation_input_tokens"));
        self.output = self.output.max(count(usage, "output_tokens"));
        let prompt = self.input.saturating_add(self.cached).saturating_add(self.created);
        sink.usage(prompt, self.cached, self.output);
    }

    /// Calls are read only now: a cut answer may hold half of one.
    fn end(&mut self, sink: &mut Sink) {
        let reason = self.reason.unwrap_or(StopReason::Done);
        for (_, call) in std::mem::take(&mut self.calls) {
            call.report(reason == StopReason::Length, sink);
        }
        sink.finish(reason);
    }
}
