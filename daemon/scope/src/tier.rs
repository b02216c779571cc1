//! How far the sender of a message is trusted.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Trust in the origin of a message, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrustTier {
    /// Anonymous or unverified senders.
    Untrusted,
    /// An identified person on a transport that is not ours.
    SemiTrusted,
    /// The owner on an owned channel.
    Trusted,
    /// The daemon's own internal work; never a channel.
    Kernel,
}

impl TrustTier {
    /// The name used in goldens, logs and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Untrusted => "untrusted",
            Self::SemiTrusted => "semi_trusted",
            Self::Trusted => "trusted",
            Self::Kernel => "kernel",
        }
    }
}

impl fmt::Display for TrustTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
