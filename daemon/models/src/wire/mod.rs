//! Requests and streams of the three protocols. Pure.

mod anthropic;
mod ollama;
mod openai;
mod sink;

use hearth_egress::Method;
pub use hearth_egress::Request as HttpRequest;
use hearth_turn::{ModelEvent, ModelFailure, ModelRequest, ToolSpec};
use serde::Serialize;
use serde_json::Value;

use crate::failure::shorten;
use crate::lines::{Lines, TOTAL_MAX, TooLong};
use crate::names::Names;
use crate::provider::{Provider, Wire};
use sink::Sink;

/// The request that asks `provider` for a streamed answer. Secrets are not in
/// it: the client that sends it adds them.
///
/// The order of the body is fixed: settings, tools, system text, history. The
/// next request of a conversation begins with the same bytes.
pub fn build_request(provider: &Provider, request: &ModelRequest) -> HttpRequest {
    let names = Names::of(&request.tools);
    match provider.wire {
        Wire::Ollama => ollama::request(provider, request, &names),
        Wire::OpenAi => openai::request(provider, request, &names),
        Wire::Anthropic => anthropic::request(provider, request, &names),
    }
}

/// The request that loads the model without asking anything, where there is one.
pub(crate) fn warm_up(provider: &Provider) -> Option<HttpRequest> {
    (provider.wire == Wire::Ollama).then(|| ollama::warm_up(provider))
}

fn post(path: String, body: &impl Serialize) -> HttpRequest {
    HttpRequest {
        method: Method::Post,
        path,
        headers: vec![("content-type".into(), "application/json".into())],
        body: serde_json::to_vec(body).expect("requests have text keys only"),
    }
}

/// What a body turned out to be.
#[derive(Debug)]
enum Form {
    /// Nothing but white space so far.
    Unknown,
    /// One event a line.
    Stream,
    /// One JSON object for everything: the server does not stream.
    Whole(Vec<u8>),
}

#[derive(Debug)]
enum State {
    Ollama(ollama::Ollama),
    OpenAi(openai::OpenAi),
    Anthropic(anthropic::Anthropic),
}

/// Decodes the body of an answer with status 200, cut into pieces anyhow.
///
/// The events of a body end with exactly one `Finished` or `Failed`; what comes
/// after it is ignored. Calls come right before `Finished`.
#[derive(Debug)]
pub struct Decoder {
    lines: Lines,
    form: Form,
    total: usize,
    state: State,
    sink: Sink,
}

impl Decoder {
    /// A decoder for one answer of `model` to a request that offered `tools`.
    pub fn new(wire: Wire, model: &str, tools: &[ToolSpec]) -> Self {
        let state = match wire {
            Wire::Ollama => State::Ollama(ollama::Ollama),
            Wire::OpenAi => State::OpenAi(openai::OpenAi::default()),
            Wire::Anthropic => State::Anthropic(anthropic::Anthropic::default()),
        };
        Self {
            lines: Lines::default(),
            form: Form::Unknown,
            total: 0,
            state,
            sink: Sink::new(model, Names::of(tools)),
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ModelEvent> {
        if !self.sink.ended() {
            self.total = self.total.saturating_add(bytes.len());
            if self.total > TOTAL_MAX {
                self.sink.fail(ModelFailure::Malformed(TooLong::Total.to_string()));
            } else {
                self.take(bytes);
            }
        }
        self.sink.take()
    }

    fn take(&mut self, mut bytes: &[u8]) {
        if matches!(self.form, Form::Unknown) {
            let Some(first) = bytes.iter().position(|b| !b.is_ascii_whitespace()) else { return };
            bytes = &bytes[first..];
            self.form = match bytes[0] {
                b'{' if !matches!(self.state, State::Ollama(_)) => Form::Whole(Vec::new()),
                b'<' => {
                    return self
                        .sink
                        .fail(ModelFailure::Malformed("a web page in place of an answer".into()));
                }
                _ => Form::Stream,
            };
        }
        if let Form::Whole(all) = &mut self.form {
            return all.extend_from_slice(bytes);
        }
        let (state, sink) = (&mut self.state, &mut self.sink);
        let pushed = self.lines.push(bytes, |line| {
            state.line(line, sink);
            !sink.ended()
        });
        if let Err(e) = pushed {
            self.sink.fail(ModelFailure::Malformed(e.to_string()));
        }
    }

    /// Whether the model has begun to answer, be it with text that is still held back.
    pub fn started(&self) -> bool {
        self.sink.started()
    }

    /// The connection has ended, properly or not: the rest is decided. Returns
    /// the last event unless it was there already.
    pub fn finish(&mut self) -> Vec<ModelEvent> {
        self.end("the server closed the connection before the end")
    }

    /// The same, with the reason why the connection ended.
    pub fn finish_broken(&mut self, reason: &str) -> Vec<ModelEvent> {
        self.end(reason)
    }

    fn end(&mut self, reason: &str) -> Vec<ModelEvent> {
        if !self.sink.ended() {
            // A last line that is no whole JSON was cut: it counts for nothing.
            let rest = self.lines.rest();
            match std::mem::replace(&mut self.form, Form::Stream) {
                Form::Whole(all) => {
                    if let Some(value) = object(&all) {
                        self.state.whole(&value, &mut self.sink);
                    }
                }
                _ if object(rest.trim_ascii()).or(sse_data(&rest).and_then(object)).is_some()
                    || rest.ends_with(b"[DONE]") =>
                {
                    self.state.line(&rest, &mut self.sink);
                }
                _ => {}
            }
            self.state.end(&mut self.sink);
        }
        if !self.sink.ended() {
            self.sink.fail(ModelFailure::Incomplete(shorten(reason, 300)));
        }
        self.sink.take()
    }
}

impl State {
    fn line(&mut self, line: &[u8], sink: &mut Sink) {
        let payload = match self {
            Self::Ollama(_) => line.trim_ascii(),
            Self::OpenAi(_) | Self::Anthropic(_) => match sse_data(line) {
                Some(data) => data,
                None => {
                    if line.starts_with(b":") {
                        sink.waiting();
                    }
                    return;
                }
            },
        };
        if payload.is_empty() || sink.ended() {
            return;
        }
        if payload == b"[DONE]" {
            return self.end(sink);
        }
        let Some(value) = parse(payload, sink) else { return };
        match self {
            Self::Ollama(s) => s.event(&value, sink),
            Self::OpenAi(s) => s.event(&value, sink),
            Self::Anthropic(s) => s.event(&value, sink),
        }
    }

    fn whole(&mut self, value: &Value, sink: &mut Sink) {
        match self {
            Self::Ollama(s) => s.event(value, sink),
            Self::OpenAi(s) => s.event(value, sink),
            Self::Anthropic(s) => s.whole(value, sink),
        }
    }

    /// The stream is over: a protocol that has what it needs reports success.
    fn end(&mut self, sink: &mut Sink) {
        if let Self::OpenAi(s) = self {
            s.end(sink);
        }
    }
}

/// The data of a server-sent event's line; `None` for all other lines.
fn sse_data(line: &[u8]) -> Option<&[u8]> {
    line.strip_prefix(b"data:").map(<[u8]>::trim_ascii)
}

/// Bytes that are no UTF-8 become replacement characters: one bad letter does
/// not cost the answer.
fn object(bytes: &[u8]) -> Option<Value> {
    serde_json::from_str(&String::from_utf8_lossy(bytes)).ok().filter(Value::is_object)
}

fn parse(bytes: &[u8], sink: &mut Sink) -> Option<Value> {
    let value = object(bytes);
    if value.is_none() {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]);
        sink.fail(ModelFailure::Malformed(format!("not JSON: {}", shorten(&shown, 100))));
    }
    value
}

/// A text field, where there is one.
fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// A count, where there is one.
fn count(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}
