//! Names that the gate binds a grant to.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest tool name, in bytes (the limit of the strictest model provider).
pub const TOOL_NAME_MAX: usize = 64;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a tool name: expected lower-case words joined by dots, at most 64 bytes")]
pub struct NameError(String);

/// The dotted name of a tool, for example `memory.read`.
///
/// Lower-case ASCII letters, digits and `_` in segments joined by single dots;
/// each segment starts with a letter; at most 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(String);

impl ToolName {
    /// Checks and takes a name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let segment_ok = |s: &str| {
            s.starts_with(|c: char| c.is_ascii_lowercase())
                && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        if text.len() <= TOOL_NAME_MAX && text.split('.').all(segment_ok) {
            Ok(Self(text.to_owned()))
        } else {
            Err(NameError(text.chars().take(80).collect()))
        }
    }

    /// The dotted form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ToolName {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl From<ToolName> for String {
    fn from(name: ToolName) -> Self {
        name.0
    }
}

/// Number of a tool call within its turn, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub u32);

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
