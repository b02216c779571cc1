//! How a request is turned down.

use serde::{Deserialize, Serialize};

/// Who has to act on a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Not understood: the peer's program is wrong.
    Malformed,
    /// Understood, but this daemon does not offer it (an unknown protocol version too).
    Unsupported,
    /// Above a size limit.
    TooLarge,
    /// The origin may not ask for this.
    NotPermitted,
    /// The named thing is not there.
    NotFound,
    /// Too much is going on; the same request may succeed later.
    Busy,
    /// The store is still locked; it has to be unlocked first.
    Sealed,
    /// The daemon is stopping.
    ShuttingDown,
    /// A wait ended.
    TimedOut,
    /// The daemon failed; its log says why.
    Internal,
}

/// A request that was turned down: what happened, and what to do about it.
/// Both sentences are for people and hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{what}")]
pub struct Refusal {
    /// Who has to act.
    pub kind: RefusalKind,
    /// What happened.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Refusal {
    /// A refusal of `kind`.
    pub fn new(kind: RefusalKind, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind, what: what.into(), remedy: remedy.into() }
    }
}
