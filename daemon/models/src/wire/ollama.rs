//! Ollama: `/api/chat`, one JSON object a line.

use hearth_turn::{ChatMessage, ModelRequest, StopReason};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::sink::Sink;
use super::{HttpRequest, count, post, text};
use crate::arguments::parse_arguments;
use crate::names::Names;
use crate::provider::Provider;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    stream: bool,
    // Unset would mean "on" for a model that can think.
    think: bool,
    // Too long a prompt is an error instead of a silent cut.
    truncate: bool,
    keep_alive: i64,
    options: Options,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct Options {
    num_ctx: u32,
    num_predict: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
}

#[derive(Serialize, Default)]
struct Message<'a> {
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    content: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
}

#[derive(Serialize)]
struct Call<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: String,
    // An object here; a text is refused by the server.
    arguments: &'a Map<String, Value>,
}

pub(super) fn request(provider: &Provider, request: &ModelRequest, names: &Names) -> HttpRequest {
    let mut messages = vec![];
    if !request.system.is_empty() {
        messages.push(Message { role: "system", content: &request.system, ..Message::default() });
    }
    messages.extend(request.messages.iter().map(|m| message(m, names)));
    let body = Body {
        model: &provider.model,
        stream: true,
        think: false,
        truncate: false,
        keep_alive: provider.keep_alive_s,
        options: Options {
            num_ctx: provider.context_tokens,
            num_predict: request.max_tokens,
            temperature: provider.temperature,
        },
        tools: tools(request, names),
        messages,
    };
    post(provider.path("/api/chat"), &body)
}

/// No messages: the model is loaded with the context size of later requests.
pub(super) fn warm_up(provider: &Provider) -> HttpRequest {
    let body = json!({"model": provider.model, "messages": [], "keep_alive": provider.keep_alive_s,
        "options": {"num_ctx": provider.context_tokens}});
    post(provider.path("/api/chat"), &body)
}

/// The form of tools that Ollama shares with OpenAI.
pub(super) fn tools(request: &ModelRequest, names: &Names) -> Vec<Value> {
    let tool = |t: &hearth_turn::ToolSpec| {
        json!({"type": "function", "function": {
            "name": names.wire(t.name.as_str()), "description": t.description, "parameters": t.schema}})
    };
    request.tools.iter().map(tool).collect()
}

fn message<'a>(message: &'a ChatMessage, names: &Names) -> Message<'a> {
    match message {
        ChatMessage::User { text } => Message { role: "user", content: text, ..Message::default() },
        ChatMessage::Assistant { text, calls } => Message {
            role: "assistant",
            content: text,
            tool_calls: calls
                .iter()
                .map(|c| Call {
                    id: &c.id,
                    function: Function { name: names.wire(&c.name), arguments: &c.arguments },
                })
                .collect(),
            ..Message::default()
        },
        ChatMessage::Tool { call_id, name, text, .. } => Message {
            role: "tool",
            tool_name: Some(names.wire(name)),
            tool_call_id: Some(call_id),
            content: text,
            ..Message::default()
        },
    }
}

#[derive(Debug)]
pub(super) struct Ollama;

impl Ollama {
    pub(super) fn event(&mut self, value: &Value, sink: &mut Sink) {
        if value.get("error").is_some() {
            return sink.error(value);
        }
        sink.model(text(value, "model"));
        if let Some(message) = value.get("message") {
            sink.thinking(text(message, "thinking").unwrap_or_default());
            sink.text(text(message, "content").unwrap_or_default());
            for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
                let function = call.get("function").unwrap_or(&Value::Null);
                let arguments = parse_arguments(function.get("arguments").unwrap_or(&Value::Null));
                let id = text(call, "id").unwrap_or_default();
                sink.call(id, text(function, "name").unwrap_or_default(), arguments);
            }
        }
        if value.get("done").and_then(Value::as_bool) == Some(true) {
            sink.usage(count(value, "prompt_eval_count"), 0, count(value, "eval_count"));
            sink.finish(match text(value, "done_reason") {
                Some("length") => StopReason::Length,
                _ => StopReason::Done,
            });
        }
    }
}
