//! Sorts the text of a model into answer, thinking, and calls written as text.
//!
//! Small models write calls as text, and servers without the right template
//! pass them on. Text is held back only while it still can be a call.

mod scan;

use serde_json::{Map, Value};

use crate::arguments::{parse_arguments, shorten};
use crate::names::Names;
use scan::Scan;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FENCE: &str = "```";
/// Bytes that are held back at most.
const HELD_MAX: usize = 64 * 1024;

/// A sorted piece.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Text(String),
    Thinking(String),
    Call { name: String, arguments: Result<Map<String, Value>, String> },
}

#[derive(Debug, Default)]
enum State {
    /// Nothing but white space since the beginning, a thought or a call.
    #[default]
    Start,
    /// Inside of a thought.
    Think,
    /// Ordinary text; only a call tag can end it.
    Plain,
    /// A JSON object that may be a call.
    Object(Scan),
    /// Between call tags.
    Tagged,
}

/// The filter; feed it with pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct TextFilter {
    names: Names,
    state: State,
    held: String,
}

impl TextFilter {
    pub(crate) fn new(names: Names) -> Self {
        Self { names, ..Self::default() }
    }

    /// Takes the next piece; what is certain comes out.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        out
    }

    /// The end of a whole answer: what is still held is decided.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let piece = match std::mem::take(&mut self.state) {
            State::Start if held.trim().is_empty() => None,
            State::Start | State::Plain => Some(Piece::Text(held)),
            State::Think => Some(Piece::Thinking(held)),
            State::Tagged => Some(self.tagged(held.trim())),
            State::Object(scan) => Some(scan.decide(&held, &self.names).unwrap_or(Piece::Text(held))),
        };
        piece
            .into_iter()
            .filter(|p| !matches!(p, Piece::Text(t) | Piece::Thinking(t) if t.is_empty()))
            .collect()
    }

    /// One move; false when more text is needed.
    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Start => self.start(),
            State::Think => match self.held.find(THINK_END) {
                Some(at) => {
                    emit(out, Piece::Thinking, self.held[..at].to_owned());
                    self.held.drain(..at + THINK_END.len());
                    self.state = State::Start;
                    true
                }
                None => {
                    let safe = self.held.len() - partial(&self.held, THINK_END);
                    emit(out, Piece::Thinking, self.held.drain(..safe).collect());
                    false
                }
            },
            State::Plain => match self.held.find(CALL) {
                Some(at) => {
                    emit(out, Piece::Text, self.held[..at].to_owned());
                    self.held.drain(..at + CALL.len());
                    self.state = State::Tagged;
                    true
                }
                None => {
                    let safe = self.held.len() - partial(&self.held, CALL);
                    emit(out, Piece::Text, self.held.drain(..safe).collect());
                    false
                }
            },
            State::Tagged => match self.held.find(CALL_END) {
                Some(at) => {
                    let body = self.held[..at].trim().to_owned();
                    out.push(self.tagged(&body));
                    self.held.drain(..at + CALL_END.len());
                    self.state = State::Start;
                    true
                }
                None if self.held.len() > HELD_MAX => {
                    let body = std::mem::take(&mut self.held);
                    out.push(self.tagged(&body));
                    false
                }
                None => false,
            },
            State::Object(scan) => {
                if scan.advance(&self.held, &self.names) && self.held.len() <= HELD_MAX {
                    return false;
                }
                self.state = State::Plain;
                true
            }
        }
    }

    fn start(&mut self) -> bool {
        let lead = self.held.len() - self.held.trim_start().len();
        let text = &self.held[lead..];
        if text.is_empty() {
            return false;
        }
        for (tag, state) in [(THINK, State::Think), (CALL, State::Tagged)] {
            if text.starts_with(tag) {
                self.held.drain(..lead + tag.len());
                self.state = state;
                return true;
            }
            if tag.starts_with(text) {
                return false;
            }
        }
        if text.starts_with('{') {
            self.state = State::Object(Scan::new(lead, false));
            return true;
        }
        if let Some(rest) = text.strip_prefix(FENCE) {
            let word = |s: &str| {
                s.len() <= 20 && s.bytes().all(|b| b.is_ascii_alphanumeric() || b" _-\r".contains(&b))
            };
            match rest.split_once('\n') {
                Some((info, body)) if word(info) => {
                    let object = body.trim_start();
                    if object.is_empty() {
                        return false;
                    }
                    if object.starts_with('{') {
                        let at = self.held.len() - object.len();
                        self.state = State::Object(Scan::new(at, true));
                        return true;
                    }
                }
                None if word(rest) => return false,
                _ => {}
            }
        } else if FENCE.starts_with(text) {
            return false;
        }
        self.state = State::Plain;
        true
    }

    /// What stood between call tags is a call, well-formed or not.
    fn tagged(&self, body: &str) -> Piece {
        let body = body.strip_prefix("```json").or(body.strip_prefix(FENCE)).unwrap_or(body).trim();
        let body = body.strip_suffix(FENCE).unwrap_or(body).trim();
        match serde_json::from_str::<Map<String, Value>>(body) {
            Ok(map) => {
                let name = map.get("name").and_then(Value::as_str).unwrap_or_default();
                let arguments = match map.get("arguments").or(map.get("parameters")) {
                    Some(value) => parse_arguments(value),
                    None => Err(shorten(body)),
                };
                Piece::Call { name: self.names.dotted(name), arguments }
            }
            Err(_) => Piece::Call { name: String::new(), arguments: Err(shorten(body)) },
        }
    }
}

fn emit(out: &mut Vec<Piece>, piece: fn(String) -> Piece, text: String) {
    if !text.is_empty() {
        out.push(piece(text));
    }
}

/// Length of the longest end of `text` that is a beginning of `tag`.
fn partial(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|n| text.ends_with(&tag[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
