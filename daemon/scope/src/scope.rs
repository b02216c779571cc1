//! The validated string form of a permission.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a scope was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The base is not a known permission.
    #[error("unknown scope base \"{0}\"")]
    UnknownBase(String),
}

/// `base` or `base:qualifier`; the base is known, the qualifier is well formed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope(String);

impl Scope {
    /// Checks and takes a scope.
    pub fn parse(text: &str) -> Result<Self, ScopeError> {
        Ok(Self(text.to_owned()))
    }

    /// The part before the first colon.
    pub fn base(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(base, _)| base)
    }

    /// The part after the first colon.
    pub fn qualifier(&self) -> Option<&str> {
        self.0.split_once(':').map(|(_, qualifier)| qualifier)
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The only comparison: true when holding `held` is enough for `self`.
    pub fn is_granted_by(&self, held: &Scope) -> bool {
        self.base() == held.base() && (held.qualifier().is_none() || held == self)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Scope {
    type Error = ScopeError;
    fn try_from(text: String) -> Result<Self, ScopeError> {
        Self::parse(&text)
    }
}

impl From<Scope> for String {
    fn from(scope: Scope) -> Self {
        scope.0
    }
}
