//! Decides early whether an object can be a call.

use serde_json::{Map, Value};

use super::{FENCE, Piece};
use crate::arguments::{parse_arguments, shorten};
use crate::names::Names;

/// Nesting that is followed at most.
const DEPTH_MAX: u32 = 64;

/// Follows a JSON object as it arrives, byte by byte and once only.
#[derive(Debug)]
pub(super) struct Scan {
    from: usize,
    at: usize,
    end: Option<usize>,
    fenced: bool,
    depth: u32,
    in_string: bool,
    escaped: bool,
    string_from: usize,
    expect_key: bool,
    key_is_name: bool,
    name: Option<String>,
}

impl Scan {
    pub(super) fn new(from: usize, fenced: bool) -> Self {
        Self {
            from,
            at: from,
            end: None,
            fenced,
            depth: 0,
            in_string: false,
            escaped: false,
            string_from: 0,
            expect_key: false,
            key_is_name: false,
            name: None,
        }
    }

    /// Reads on; false as soon as the text can't be a call.
    pub(super) fn advance(&mut self, text: &str, names: &Names) -> bool {
        let bytes = text.as_bytes();
        while self.end.is_none() && self.at < bytes.len() {
            let (at, byte) = (self.at, bytes[self.at]);
            self.at += 1;
            let fits =
                if self.in_string { self.in_string(text, at, byte, names) } else { self.outside(at, byte) };
            if !fits {
                return false;
            }
        }
        match self.end {
            Some(end) => {
                let tail = text[end..].trim();
                tail.is_empty() || (self.fenced && FENCE.starts_with(tail))
            }
            None => true,
        }
    }

    fn in_string(&mut self, text: &str, at: usize, byte: u8, names: &Names) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                if self.depth != 1 {
                    return true;
                }
                let string = &text[self.string_from..at];
                if self.expect_key {
                    self.expect_key = false;
                    self.key_is_name = string == "name";
                    return matches!(string, "name" | "arguments" | "parameters" | "id" | "type");
                }
                if self.key_is_name {
                    self.name = names.known(string).map(str::to_owned);
                    return self.name.is_some();
                }
            }
            _ => {}
        }
        true
    }

    fn outside(&mut self, at: usize, byte: u8) -> bool {
        match byte {
            b'"' => {
                self.in_string = true;
                self.string_from = at + 1;
            }
            b'{' | b'[' => {
                if self.depth == 1 && self.expect_key {
                    return false;
                }
                self.depth += 1;
                self.expect_key = self.depth == 1;
                return self.depth <= DEPTH_MAX;
            }
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.end = Some(at + 1);
                }
            }
            b',' => self.expect_key = self.depth == 1,
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => return !(self.depth == 1 && self.expect_key),
        }
        true
    }

    /// The answer is complete: a call, or nothing of the kind. Once a known name
    /// stood in its place, malformed text is reported as a malformed call.
    pub(super) fn decide(&self, text: &str, names: &Names) -> Option<Piece> {
        let name = self.name.clone()?;
        debug_assert!(names.known(&name).is_some());
        let object = &text[self.from..self.end.unwrap_or(text.len())];
        let arguments = match serde_json::from_str::<Map<String, Value>>(object) {
            Ok(map) => match (map.get("arguments"), map.get("parameters")) {
                (Some(value), None) | (None, Some(value)) => parse_arguments(value),
                _ => return None,
            },
            Err(_) => Err(shorten(object)),
        };
        Some(Piece::Call { name, arguments })
    }
}
