//! What a server's refusal means, and what a person can do about it.

use hearth_turn::ModelFailure;
use serde_json::Value;

use crate::provider::{Place, Provider, Wire};

/// Whether the same request is worth sending again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The answer will be the same.
    Never,
    /// The model is being loaded: soon, and again until it is there.
    Loading,
    /// Later, a few times.
    Later,
}

/// A refusal that came in place of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What it means.
    pub failure: ModelFailure,
    /// Whether to try again.
    pub retry: Retry,
    /// The server's identifier of the request, for its support.
    pub request_id: Option<String>,
}

/// The parts of an error body, wherever the server puts them.
#[derive(Debug, Default)]
struct Body {
    message: String,
    kind: String,
    code: String,
    prompt_tokens: u64,
    context_tokens: u64,
    request_id: Option<String>,
}

/// Reads the answer that a server gave with a status other than 200.
pub fn classify(model: &str, status: u16, retry_after_s: Option<u64>, body: &[u8]) -> Refusal {
    let parsed = serde_json::from_slice::<Value>(body).ok().filter(Value::is_object);
    let known = parsed.is_some();
    let fields = parsed.map(|v| read(&v, 0)).unwrap_or_default();
    let (failure, retry) = judge(model, status, retry_after_s, known, &fields);
    Refusal { failure, retry, request_id: fields.request_id }
}

/// Reads an error that came inside of a stream with status 200.
pub(crate) fn in_stream(model: &str, value: &Value) -> Refusal {
    let fields = read(value, 0);
    let status = match fields.kind.as_str() {
        "overloaded_error" => 529,
        "rate_limit_error" => 429,
        "authentication_error" => 401,
        "permission_error" => 403,
        "not_found_error" => 404,
        "invalid_request_error" => 400,
        _ => fields.code.parse().ok().filter(|c| (400..600).contains(c)).unwrap_or(500),
    };
    let (failure, retry) = judge(model, status, None, true, &fields);
    Refusal { failure, retry, request_id: fields.request_id }
}

fn judge(
    model: &str,
    status: u16,
    retry_after_s: Option<u64>,
    known: bool,
    body: &Body,
) -> (ModelFailure, Retry) {
    let message = say(status, body);
    let lower = body.message.to_lowercase();
    let is = |words: &[&str]| words.iter().any(|w| body.kind == *w || body.code == *w);
    if is(&["exceed_context_size_error", "context_length_exceeded"])
        || lower.starts_with("prompt is too long")
    {
        let failure = ModelFailure::ContextOverflow {
            prompt_tokens: body.prompt_tokens,
            context_tokens: body.context_tokens,
        };
        return (failure, Retry::Never);
    }
    if lower.contains("does not support tools") || lower.contains("requires --jinja") {
        return (ModelFailure::ToolsUnsupported(model.to_owned()), Retry::Never);
    }
    const NO_CREDIT: &[&str] = &[
        "insufficient_quota",
        "billing_error",
        "billing_hard_limit_reached",
        "enforced_spend_limit_reached",
        "credit_balance_too_low",
    ];
    let later = |retry| (ModelFailure::Busy { message: message.clone(), retry_after_s }, retry);
    match status {
        401 | 402 => (ModelFailure::Unauthorised(message), Retry::Never),
        // Without a body this is Ollama's check of the Host and Origin headers.
        403 if known => (ModelFailure::Unauthorised(message), Retry::Never),
        403 => {
            let why = "status 403 without a reason; Ollama answers so to a host name that it does not know";
            (ModelFailure::Rejected(why.into()), Retry::Never)
        }
        404 if known && names_model(body, &lower) => {
            (ModelFailure::ModelNotFound(model.to_owned()), Retry::Never)
        }
        404 => {
            let why = format!("{message}; it does not speak the protocol that it is configured for");
            (ModelFailure::Rejected(why), Retry::Never)
        }
        429 if is(NO_CREDIT) || lower.contains("insufficient credit") => {
            (ModelFailure::Unauthorised(message), Retry::Never)
        }
        501 => (ModelFailure::Rejected(message), Retry::Never),
        503 if lower.starts_with("loading model") => later(Retry::Loading),
        408 | 425 | 429 | 500..=599 => later(Retry::Later),
        _ => (ModelFailure::Rejected(message), Retry::Never),
    }
}

fn names_model(body: &Body, lower: &str) -> bool {
    body.code == "model_not_found" || (lower.contains("model") && lower.contains("not found")) || {
        // Anthropic's own words: "model: NAME".
        body.kind == "not_found_error" && lower.starts_with("model:")
    }
}

/// Looks into `{"error": ..}`, a text that is JSON itself included (Ollama
/// passes its runner's answer on like that).
fn read(value: &Value, depth: u8) -> Body {
    let request_id = value.get("request_id").and_then(Value::as_str).map(|s| shorten(s, 80));
    let error = value.get("error").unwrap_or(value);
    let mut body = match error {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ Value::Object(_)) if depth < 2 => read(&inner, depth + 1),
            _ => Body { message: text.clone(), ..Body::default() },
        },
        Value::Object(map) => {
            let text = |key: &str| match map.get(key) {
                Some(Value::String(s)) => s.clone(),
                Some(Value::Number(n)) => n.to_string(),
                _ => String::new(),
            };
            let number = |key: &str| map.get(key).and_then(Value::as_u64).unwrap_or(0);
            let code = Some(text("error_code")).filter(|c| !c.is_empty()).unwrap_or_else(|| text("code"));
            Body {
                message: text("message"),
                kind: text("type"),
                code,
                prompt_tokens: number("n_prompt_tokens"),
                context_tokens: number("n_ctx"),
                request_id: None,
            }
        }
        _ => Body::default(),
    };
    body.request_id = request_id.or(body.request_id);
    if body.prompt_tokens == 0 && body.message.starts_with("prompt is too long") {
        // "prompt is too long: 210000 tokens > 200000 maximum"
        let mut numbers = body.message.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
        body.prompt_tokens = numbers.next().unwrap_or(0);
        body.context_tokens = numbers.next().unwrap_or(0);
    }
    body
}

fn say(status: u16, body: &Body) -> String {
    match shorten(&body.message, 300) {
        empty if empty.is_empty() => format!("status {status}"),
        message => message,
    }
}

/// One line without control characters.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|c| !c.is_control())
        .take(max)
        .collect()
}

/// What a person can do about a failure, in one sentence.
pub fn remedy(provider: &Provider, failure: &ModelFailure) -> String {
    let Provider { name, model, endpoint, .. } = provider;
    let host = endpoint.host_str().unwrap_or("the server");
    match failure {
        ModelFailure::Unreachable(_) if provider.place == Place::Local => {
            format!("Start the model server on {host}, or correct the address of \"{name}\" in the settings.")
        }
        ModelFailure::Unreachable(_) => {
            "Check the internet connection and the address in the settings.".into()
        }
        ModelFailure::TimedOut(_) if provider.place == Place::Local => {
            "Try again: the model may be loaded by now. If it happens often, use a smaller model or context."
                .into()
        }
        ModelFailure::TimedOut(_) | ModelFailure::Incomplete(_) => "Try again.".into(),
        ModelFailure::Busy { retry_after_s: Some(s), .. } => format!("Try again in {s} seconds."),
        ModelFailure::Busy { .. } => "Try again in a moment.".into(),
        ModelFailure::ContextOverflow { .. } => {
            "Start a new conversation, or raise the context size in the settings.".into()
        }
        ModelFailure::ModelNotFound(_) if provider.wire == Wire::Ollama => {
            format!("Run `ollama pull {model}` on {host}.")
        }
        ModelFailure::ModelNotFound(_) => {
            format!("Choose a model that {host} offers. If it is an Ollama server: `ollama pull {model}`.")
        }
        ModelFailure::ToolsUnsupported(_) => "Choose a model that can call tools.".into(),
        ModelFailure::Unauthorised(_) => format!("Check the key and the credit of \"{name}\"."),
        ModelFailure::Rejected(_) | ModelFailure::Malformed(_) => {
            format!("Check that {host} is a {} server and up to date.", provider.wire)
        }
    }
}

#[cfg(test)]
mod tests;
