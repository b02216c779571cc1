//! Where a message came from, built from facts that the peer cannot set.

use serde::{Deserialize, Serialize};

use crate::TrustTier;

/// Origin of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The daemon's own work; a channel that claims it is a bug.
    Internal,
    /// The console socket, with the peer's uid as the kernel reports it.
    Console {
        /// Peer user id.
        uid: u32,
    },
}

impl Origin {
    /// The highest tier that this origin can have.
    pub fn tier(&self) -> TrustTier {
        match self {
            Self::Internal => TrustTier::Kernel,
            Self::Console { .. } => TrustTier::Trusted,
        }
    }
}
