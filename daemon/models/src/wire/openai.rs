//! OpenAI-compatible: `/v1/chat/completions`, server-sent events.

use hearth_turn::{ChatMessage, ModelRequest, StopReason};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ollama::tools;
use super::sink::Sink;
use super::{HttpRequest, count, post, text};
use crate::arguments::{parse_arguments, parse_text};
use crate::names::Names;
use crate::provider::{Place, Provider};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    stream_options: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    // OpenAI itself refuses the older name for its newer models.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    // Turns thinking off where the template knows the word; others ignore it.
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize, Default)]
struct Message<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    content: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

pub(super) fn request(provider: &Provider, request: &ModelRequest, names: &Names) -> HttpRequest {
    let mut messages = vec![];
    if !request.system.is_empty() {
        messages.push(Message { role: "system", content: &request.system, ..Message::default() });
    }
    messages.extend(request.messages.iter().map(|m| message(m, names)));
    let vendor = provider.endpoint.host_str() == Some("api.openai.com");
    let body = Body {
        model: &provider.model,
        stream: true,
        stream_options: json!({"include_usage": true}),
        max_tokens: (!vendor).then_some(request.max_tokens),
        max_completion_tokens: vendor.then_some(request.max_tokens),
        temperature: provider.temperature,
        chat_template_kwargs: (provider.place == Place::Local).then(|| json!({"enable_thinking": false})),
        tools: tools(request, names),
        messages,
    };
    post(provider.path("/v1/chat/completions"), &body)
}

fn message<'a>(message: &'a ChatMessage, names: &Names) -> Message<'a> {
    match message {
        ChatMessage::User { text } => Message { role: "user", content: text, ..Message::default() },
        ChatMessage::Assistant { text, calls } => Message {
            role: "assistant",
            content: text,
            tool_calls: calls
                .iter()
                .map(|c| {
                    // A text here, where Ollama wants an object.
                    let arguments = json!(c.arguments).to_string();
                    json!({"id": c.id, "type": "function",
                        "function": {"name": names.wire(&c.name), "arguments": arguments}})
                })
                .collect(),
            ..Message::default()
        },
        ChatMessage::Tool { call_id, text, .. } => {
            Message { role: "tool", tool_call_id: Some(call_id), content: text, ..Message::default() }
        }
    }
}

/// A call as it grows.
#[derive(Debug, Default)]
struct Partial {
    index: u64,
    id: String,
    name: String,
    arguments: String,
    object: Option<Map<String, Value>>,
}

#[derive(Debug, Default)]
pub(super) struct OpenAi {
    calls: Vec<Partial>,
    reason: Option<StopReason>,
}

impl OpenAi {
    pub(super) fn event(&mut self, value: &Value, sink: &mut Sink) {
        if value.get("error").is_some_and(|e| !e.is_null()) {
            return sink.error(value);
        }
        sink.model(text(value, "model"));
        usage(value, sink);
        // Choices may be empty, null or absent beside the usage.
        let Some(choice) = value.get("choices").and_then(|c| c.get(0)) else { return };
        if let Some(delta) = choice.get("delta").or(choice.get("message")) {
            let thinking = text(delta, "reasoning_content").or(text(delta, "reasoning"));
            sink.thinking(thinking.unwrap_or_default());
            match delta.get("content") {
                Some(Value::String(content)) => sink.text(content),
                Some(Value::Array(parts)) => {
                    parts.iter().filter_map(|p| text(p, "text")).for_each(|t| sink.text(t));
                }
                _ => {}
            }
            let calls = delta.get("tool_calls").and_then(Value::as_array);
            for (position, call) in calls.into_iter().flatten().enumerate() {
                self.grow(position as u64, call);
            }
        }
        self.reason = match text(choice, "finish_reason") {
            None | Some("") => self.reason,
            Some("length") => Some(StopReason::Length),
            Some("content_filter") => Some(StopReason::Filtered),
            Some(_) => Some(StopReason::Done),
        };
    }

    /// Calls are told apart by their index; a new identifier under a used index
    /// is a new call (some servers number all of them 0).
    fn grow(&mut self, position: u64, delta: &Value) {
        let index = delta.get("index").and_then(Value::as_u64).unwrap_or(position);
        let id = text(delta, "id").unwrap_or_default();
        let found = self.calls.iter().rposition(|c| c.index == index);
        let at = match found {
            Some(at) if id.is_empty() || self.calls[at].id.is_empty() || self.calls[at].id == id => at,
            _ => {
                self.calls.push(Partial { index, ..Partial::default() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[at];
        if call.id.is_empty() {
            call.id = id.to_owned();
        }
        let Some(function) = delta.get("function") else { return };
        if call.name.is_empty() {
            call.name = text(function, "name").unwrap_or_default().to_owned();
        }
        match function.get("arguments") {
            Some(Value::String(piece)) => call.arguments.push_str(piece),
            Some(object @ Value::Object(_)) => call.object = parse_arguments(object).ok(),
            _ => {}
        }
    }

    /// Without a reason to stop, the stream is not complete, whatever came.
    pub(super) fn end(&mut self, sink: &mut Sink) {
        let Some(reason) = self.reason else { return };
        for call in self.calls.drain(..) {
            let arguments = match call.object {
                Some(object) => Ok(object),
                None => parse_text(&call.arguments),
            };
            sink.call(&call.id, &call.name, arguments);
        }
        sink.finish(reason);
    }
}

fn usage(value: &Value, sink: &mut Sink) {
    if let Some(usage) = value.get("usage") {
        let cached = usage.get("prompt_tokens_details").map_or(0, |d| count(d, "cached_tokens"));
        sink.usage(count(usage, "prompt_tokens"), cached, count(usage, "completion_tokens"));
    }
    // llama-server's own figures: tokens from its cache and tokens it had to read.
    if let Some(timings) = value.get("timings") {
        let cached = count(timings, "cache_n");
        let prompt = cached.saturating_add(count(timings, "prompt_n"));
        sink.usage(prompt, cached, count(timings, "predicted_n"));
    }
}
