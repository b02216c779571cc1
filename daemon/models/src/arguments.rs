//! Arguments of a call, in the shapes in which models and servers send them.

use serde_json::{Map, Value};

/// Longest text that is handed back in an error, in characters.
const SHOWN: usize = 1000;

/// Accepts an object, an object as JSON text, and that once more as JSON text.
///
/// Anything else, an empty text included, is an error that holds the text: a
/// call is never run with arguments that the model did not write.
pub fn parse_arguments(value: &Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(map) => Ok(map.clone()),
        Value::String(text) => parse_text(text),
        other => Err(shorten(&other.to_string())),
    }
}

/// The same for arguments that arrived as text.
pub(crate) fn parse_text(text: &str) -> Result<Map<String, Value>, String> {
    let inner = match serde_json::from_str(text) {
        Ok(Value::Object(map)) => return Ok(map),
        Ok(Value::String(inner)) => inner,
        _ => return Err(shorten(text)),
    };
    match serde_json::from_str(&inner) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(shorten(text)),
    }
}

pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests;
