//! Where a message came from, built from facts that the peer cannot set.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::TrustTier;

/// Origin of a message. The accept path gets one from [`classify`](crate::classify()).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The daemon's own work; a channel that claims it is a bug.
    Internal,
    /// The console socket, with the peer's uid as the kernel reports it: the
    /// owner's or root's.
    Console {
        /// Peer user id.
        uid: u32,
    },
    /// TCP from this machine.
    Loopback {
        /// It showed a cookie that was issued over the owner's socket.
        owner: bool,
    },
    /// A neighbour on a network interface that the operator named.
    Neighbour {
        /// The peer's address.
        peer: IpAddr,
        /// The interface it came in on.
        interface: String,
        /// That interface is a private network of its own, such as WireGuard.
        vpn: bool,
        /// The paired device it is logged in on.
        device: Option<String>,
        /// The PIN or passkey was checked just before.
        fresh: bool,
    },
    /// A network peer that is no neighbour.
    Distant {
        /// The peer's address.
        peer: IpAddr,
        /// What makes it distant.
        reach: Reach,
    },
    /// A program in front of us speaks for someone else.
    Forwarded,
    /// A paired person in a private Telegram chat.
    Telegram {
        /// Numeric user id.
        user: i64,
        /// The text was written by someone else.
        forwarded: bool,
        /// A pressed button, not a text.
        button: bool,
    },
    /// Any other Telegram update.
    TelegramStranger,
    /// Text on an MQTT topic that a rule names.
    MqttText {
        /// The topic.
        topic: String,
    },
    /// A number, truth value or declared word on an MQTT topic of an
    /// authenticated broker.
    MqttValue {
        /// The topic.
        topic: String,
    },
    /// A signed and counted command on an MQTT command topic.
    MqttCommand {
        /// The topic.
        topic: String,
    },
    /// A web hook.
    Webhook {
        /// The stored routine that a valid signature fires.
        routine: Option<String>,
    },
    /// A schedule, trigger or mission step.
    Scheduled {
        /// Tier of the turn that created it.
        creator: TrustTier,
        /// It was created in a turn that had read text from outside.
        tainted: bool,
    },
}

/// Why a network peer counts as distant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// It is a router, which may speak for anyone behind it.
    Gateway,
    /// It has one of our own addresses.
    OwnAddress,
    /// A private address behind a router.
    Routed,
    /// The shared range of internet providers, 100.64.0.0/10.
    CarrierNat,
    /// An address that wraps another one: NAT64, 6to4, Teredo.
    Translated,
    /// A public address.
    Internet,
}

/// Who can have written the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Someone outside.
    Outside,
    /// Nobody: a value that our code parsed, which cannot carry an instruction.
    House,
    /// The sender.
    Sender,
}

/// What an origin amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The highest tier that a turn from there can have.
    pub tier: TrustTier,
    /// May resolve an approval that was parked for the owner.
    pub may_approve: bool,
    /// The author of the content.
    pub content: Content,
    /// Feeds rules and routines; never starts a conversation.
    pub event_only: bool,
}

impl Origin {
    /// The highest tier that this origin can have.
    pub fn tier(&self) -> TrustTier {
        self.standing().tier
    }

    /// Everything that follows from this origin.
    pub fn standing(&self) -> Standing {
        use TrustTier::{Kernel, SemiTrusted, Trusted, Untrusted};
        let (tier, may_approve, content, event_only) = match self {
            Self::Internal => (Kernel, false, Content::House, false),
            Self::Console { .. } | Self::Loopback { owner: true } => (Trusted, true, Content::Sender, false),
            Self::Neighbour { device: Some(_), fresh, .. } => (SemiTrusted, *fresh, Content::Sender, false),
            Self::Telegram { forwarded: true, .. } => (SemiTrusted, false, Content::Outside, false),
            Self::Telegram { button, .. } => (SemiTrusted, *button, Content::Sender, false),
            Self::MqttCommand { .. } => (SemiTrusted, false, Content::Sender, false),
            Self::MqttValue { .. } => (Untrusted, false, Content::House, true),
            Self::MqttText { .. } | Self::Webhook { .. } => (Untrusted, false, Content::Outside, true),
            Self::Scheduled { tainted: true, .. } => (Untrusted, false, Content::Outside, false),
            Self::Scheduled { creator, .. } => ((*creator).min(Trusted), false, Content::Sender, false),
            Self::Loopback { owner: false }
            | Self::Neighbour { device: None, .. }
            | Self::Distant { .. }
            | Self::Forwarded
            | Self::TelegramStranger => (Untrusted, false, Content::Outside, false),
        };
        Standing { tier, may_approve, content, event_only }
    }

    /// Passes an origin that a channel hands in. The kernel tier is refused: it
    /// belongs to the daemon's own work, and a channel that claims it is broken.
    pub fn from_channel(self) -> Result<Self, KernelClaimed> {
        if self.tier() == TrustTier::Kernel { Err(KernelClaimed) } else { Ok(self) }
    }
}

/// A channel claimed to be the daemon itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a channel claimed the kernel tier; this is a bug in the channel")]
pub struct KernelClaimed;
