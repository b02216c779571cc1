//! How large a request is, and how it is made to fit.

use hearth_turn::{ChatMessage, ModelRequest};
use serde_json::json;

/// Tokens that a message costs beside its text (role and separators).
const PER_MESSAGE: u64 = 8;

/// A request that was made to fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The request, maybe with a shorter history.
    pub request: ModelRequest,
    /// Exchanges that were left out, oldest first.
    pub dropped: usize,
    /// Estimate for what is left, in tokens.
    pub estimated_tokens: u64,
    /// False when system text, tools and the last exchange alone are too much.
    pub fits: bool,
}

/// An upper estimate of the prompt's tokens: a third of the bytes of all texts
/// (English has about four bytes to a token, other languages three), and eight
/// tokens for each message.
pub fn estimate_tokens(request: &ModelRequest) -> u64 {
    fixed(request) + request.messages.iter().map(message).sum::<u64>()
}

/// Leaves out the oldest exchanges until the request fits into
/// `context_tokens` with room for the answer (`max_tokens`, at most half).
///
/// The system text, the tools and the last exchange are never cut, and an
/// exchange goes as a whole, so that no call is separated from its result. When
/// something has to go, the history shrinks to two thirds of the room, so that
/// the next turns keep the same beginning and the server's cache stays useful.
/// The point of the cut depends on the history alone: the same history with one
/// more exchange is cut at the same point until the room is used up again.
pub fn fit(request: ModelRequest, context_tokens: u32) -> Fitted {
    let context = u64::from(context_tokens);
    let room = context - u64::from(request.max_tokens).min(context / 2);
    let fixed = fixed(&request);
    let starts = exchange_starts(&request.messages);
    let sizes: Vec<u64> = starts
        .iter()
        .enumerate()
        .map(|(i, from)| {
            let to = starts.get(i + 1).copied().unwrap_or(request.messages.len());
            request.messages[*from..to].iter().map(message).sum()
        })
        .collect();
    let roomy = fixed + room.saturating_sub(fixed) * 2 / 3;
    let (mut first, mut total) = (0, fixed);
    for (last, size) in sizes.iter().enumerate() {
        total += size;
        if total > room {
            while first < last && total > roomy {
                total -= sizes[first];
                first += 1;
            }
        }
    }
    let mut request = request;
    if first > 0 {
        request.messages.drain(..starts[first]);
    }
    Fitted { request, dropped: first, estimated_tokens: total, fits: total <= room }
}

/// Where exchanges begin: at each message of a person (and at the beginning).
fn exchange_starts(messages: &[ChatMessage]) -> Vec<usize> {
    (0..messages.len()).filter(|i| *i == 0 || matches!(messages[*i], ChatMessage::User { .. })).collect()
}

fn fixed(request: &ModelRequest) -> u64 {
    let tools: usize = request
        .tools
        .iter()
        .map(|t| {
            json!({"name": t.name.as_str(), "description": t.description, "parameters": t.schema})
                .to_string()
                .len()
        })
        .sum();
    tokens(request.system.len()) + tokens(tools) + PER_MESSAGE * (1 + request.tools.len() as u64)
}

fn message(message: &ChatMessage) -> u64 {
    let bytes = match message {
        ChatMessage::User { text } => text.len(),
        ChatMessage::Assistant { text, calls } => {
            let call =
                |c: &hearth_turn::message::PastCall| c.name.len() + json!(c.arguments).to_string().len() + 40;
            text.len() + calls.iter().map(call).sum::<usize>()
        }
        ChatMessage::Tool { text, name, .. } => text.len() + name.len(),
    };
    tokens(bytes) + PER_MESSAGE
}

fn tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(3)
}

#[cfg(test)]
mod tests;
