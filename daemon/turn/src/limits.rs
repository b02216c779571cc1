//! The limits of a turn. All are settable; each one that ends a turn is named
//! in the turn's last audit entry.

use std::time::Duration;

/// Limits of one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Model calls in a turn. At the limit the turn ends as `Looping`.
    pub steps: u32,
    /// Tool calls in one model step. Further ones are answered with an error.
    pub calls_per_step: usize,
    /// Wall-clock time. At the limit the turn ends as `TimedOut`.
    pub budget: Duration,
    /// Bytes of one tool result that enter the context. The rest is cut with a mark.
    pub tool_result_bytes: usize,
    /// Tokens that the model may generate in one step.
    pub max_tokens: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: 32,
            calls_per_step: 16,
            budget: Duration::from_secs(600),
            tool_result_bytes: 64 * 1024,
            max_tokens: 1024,
        }
    }
}

/// Cuts `text` to at most `max` bytes on a character boundary and says so.
pub fn cut(text: String, max: usize) -> String {
    if text.len() <= max {
        return text;
    }
    let mark = format!("\n[{} bytes in all, cut here]", text.len());
    let mut end = max.saturating_sub(mark.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{mark}", &text[..end])
}
