//! Canonical JSON: one value, one sequence of bytes.
//!
//! Keys sorted by their bytes, no white space, integers only, at most 64 levels.

use std::fmt::Write as _;

use serde_json::{Number, Value};

/// Deepest nesting.
pub const DEPTH_MAX: usize = 64;

/// Why a value has no canonical form, or bytes are not canonical.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// A number that is not an integer of 64 bits.
    #[error("only integers of 64 bits have a canonical form")]
    Float,
    /// More than 64 levels.
    #[error("nested deeper than 64 levels")]
    Depth,
    /// The bytes are not JSON.
    #[error("not JSON")]
    Syntax,
    /// JSON, but not in its canonical form (order, white space, repeated keys, escapes).
    #[error("not in canonical form")]
    Form,
}

/// The canonical bytes of a value.
pub fn to_canonical(value: &Value) -> Result<Vec<u8>, CanonicalError> {
    let mut out = String::new();
    write_value(value, &mut out, 0)?;
    Ok(out.into_bytes())
}

/// The value of canonical bytes; anything that is not byte for byte what
/// [`to_canonical`] writes is refused.
pub fn parse_strict(bytes: &[u8]) -> Result<Value, CanonicalError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|_| CanonicalError::Syntax)?;
    if to_canonical(&value)? == bytes { Ok(value) } else { Err(CanonicalError::Form) }
}

fn write_value(value: &Value, out: &mut String, depth: usize) -> Result<(), CanonicalError> {
    if depth > DEPTH_MAX {
        return Err(CanonicalError::Depth);
    }
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => write_number(n, out)?,
        Value::String(s) => write_string(s, out),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(item, out, depth + 1)?;
            }
            out.push(']');
        }
        Value::Object(map) => {
            // Not left to the map's own order: a feature of serde_json can change that.
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_unstable_by_key(|(k, _)| k.as_bytes());
            out.push('{');
            for (i, (key, item)) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_string(key, out);
                out.push(':');
                write_value(item, out, depth + 1)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_number(n: &Number, out: &mut String) -> Result<(), CanonicalError> {
    if n.is_f64() {
        return Err(CanonicalError::Float);
    }
    let _ = write!(out, "{n}");
    Ok(())
}

fn write_string(s: &str, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn canonical_forms() {
        #[track_caller]
        fn check(value: Value, expect: Result<&str, CanonicalError>) {
            let bytes = to_canonical(&value);
            assert_eq!(bytes.as_deref(), expect.map(str::as_bytes).as_ref().map(|b| *b));
            if let Ok(bytes) = bytes {
                assert_eq!(parse_strict(&bytes), Ok(value));
            }
        }
        check(
            json!({"b": 1, "a": [true, null, -5], "é": "ü", "B": u64::MAX}),
            Ok("{\"B\":18446744073709551615,\"a\":[true,null,-5],\"b\":1,\"é\":\"ü\"}"),
        );
        check(json!("\u{0}\u{1f}\n\"\\/"), Ok("\"\\u0000\\u001f\\n\\\"\\\\/\""));
        check(json!(1.5), Err(CanonicalError::Float));
        check(json!(1.0), Err(CanonicalError::Float));
        let mut deep = json!(1);
        for _ in 0..65 {
            deep = json!([deep]);
        }
        check(deep, Err(CanonicalError::Depth));
    }

    #[test]
    fn other_bytes_are_refused() {
        let table: [(&[u8], CanonicalError); 9] = [
            (b"{\"a\":1,\"a\":2}", CanonicalError::Form),
            (b"{\"b\":1,\"a\":2}", CanonicalError::Form),
            (b"{\"a\": 1}", CanonicalError::Form),
            (b"\"\\u0041\"", CanonicalError::Form),
            (b"\"\\/\"", CanonicalError::Form),
            (b"-0", CanonicalError::Float),
            (b"1e2", CanonicalError::Float),
            (b"01", CanonicalError::Syntax),
            (b"\"\xff\"", CanonicalError::Syntax),
        ];
        for (bytes, error) in table {
            assert_eq!(parse_strict(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
