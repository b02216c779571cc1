//! From the facts of a connection to its origin.

mod http;
mod network;

use std::net::IpAddr;
use std::time::Duration;

pub use http::Http;
pub use network::{Interface, InterfaceKind, Network};

use crate::TrustTier;
use crate::origin::Origin;

/// How long a PIN or passkey check counts as fresh.
pub const STEP_UP_MAX: Duration = Duration::from_secs(300);

/// Facts about a message's way in. Nothing here may come from a field that the
/// peer fills in, apart from HTTP headers, and these can only lower the result.
#[derive(Debug, Clone)]
pub enum ConnectionFacts<'a> {
    /// The console's Unix socket.
    Socket(Socket),
    /// A TCP listener that speaks HTTP.
    Tcp(Tcp<'a>),
    /// A Telegram update.
    Telegram(Telegram<'a>),
    /// An MQTT message.
    Mqtt(Mqtt<'a>),
    /// A call of a web hook.
    Webhook {
        /// The routine that belongs to the hook.
        routine: &'a str,
        /// The signature over the body was right.
        signed: bool,
    },
    /// A schedule, trigger or mission step is due.
    Scheduled {
        /// Tier of the turn that created it.
        creator: TrustTier,
        /// It was created in a turn that had read text from outside.
        tainted: bool,
    },
}

/// A peer of the console socket.
#[derive(Debug, Clone, Copy)]
pub struct Socket {
    /// User id from the kernel, for this connection.
    pub peer: u32,
    /// The owner's.
    pub owner: u32,
    /// The daemon's own. When it is the owner's too, the two cannot be told
    /// apart and the peer counts as the owner.
    pub daemon: u32,
    /// What the kernel reports for users that do not exist in our namespace.
    pub overflow: u32,
}

/// A peer of a TCP listener.
#[derive(Debug, Clone)]
pub struct Tcp<'a> {
    /// Which listener.
    pub listener: Listener,
    /// The interface that the connection came in on; `None` means loopback.
    pub interface: Option<&'a str>,
    /// Address of the peer.
    pub peer: IpAddr,
    /// The interface that a link-local address is scoped to.
    pub scope: Option<&'a str>,
    /// Our own view of the networks around.
    pub network: &'a Network,
    /// The request.
    pub http: Http<'a>,
    /// What the session cookie proves, checked by our own code.
    pub proof: Proof<'a>,
}

/// Our TCP listeners; each has a fixed ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listener {
    /// 127.0.0.0/8 and ::1.
    Loopback,
    /// Bound to one named interface.
    Lan,
}

/// What a session cookie proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// Nothing.
    None,
    /// It was issued over the owner's socket.
    OwnerCookie,
    /// A paired device is logged in.
    Paired {
        /// The device.
        device: &'a str,
        /// Time since its PIN or passkey was last checked.
        checked: Option<Duration>,
    },
}

/// A Telegram update.
#[derive(Debug, Clone, Copy)]
pub struct Telegram<'a> {
    /// Numeric ids of the paired people. Names are not looked at.
    pub paired: &'a [i64],
    /// Numeric id of the sender, if there is one.
    pub sender: Option<i64>,
    /// The sender is a bot.
    pub bot: bool,
    /// The sender hides behind a group or channel.
    pub on_behalf: bool,
    /// The chat is private.
    pub private: bool,
    /// What kind of update.
    pub update: Update,
    /// The text comes from elsewhere: forwarded, or through another bot.
    pub forwarded: bool,
}

/// Kinds of Telegram updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// A new message.
    Message,
    /// A pressed button of ours, used once.
    Button,
    /// Edits, channel posts, inline queries and all the rest.
    Other,
}

/// An MQTT message.
#[derive(Debug, Clone, Copy)]
pub struct Mqtt<'a> {
    /// The topic.
    pub topic: &'a str,
    /// A rule of the owner names the topic.
    pub rule: bool,
    /// The broker was reached over TLS with a login, so that not everyone publishes.
    pub authenticated: bool,
    /// What the payload turned out to be.
    pub payload: Payload,
}

/// What an MQTT payload turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Text.
    Text,
    /// Parsed as the number, truth value or word that the owner declared.
    Value,
    /// For a command topic.
    Command {
        /// Signature right and counter never seen before.
        proven: bool,
    },
}

/// What becomes of a connection or message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is turned away.
    Refuse(Refused),
    /// It is let in, as this. Never of the kernel tier.
    Accept(Origin),
}

impl Verdict {
    /// The tier, unless refused.
    pub fn tier(&self) -> Option<TrustTier> {
        match self {
            Self::Refuse(_) => None,
            Self::Accept(origin) => Some(origin.tier()),
        }
    }
}

/// Why a connection or message was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Neither the owner nor root.
    #[error("the console socket belongs to another user")]
    OtherUser,
    /// A process of the daemon's own account.
    #[error("a process of the daemon must not act as the owner")]
    OwnProcess,
    /// A user that does not exist here.
    #[error("the user does not exist in this namespace")]
    UnmappedUser,
    /// No address that a peer can have.
    #[error("not an address that a peer can have")]
    NotAPeer,
    /// A link-local address that no interface vouches for.
    #[error("a link-local address without its interface")]
    Unattributed,
    /// The interface is not one that the operator named.
    #[error("this interface was not opened for access")]
    Interface,
    /// The `Host` header is missing, double, or not ours.
    #[error("the Host header does not name this device")]
    Host,
    /// Another site, or no browser proof where one is needed.
    #[error("the request does not come from this device's own page")]
    CrossSite,
    /// A method that is never served.
    #[error("this method is not served")]
    Method,
    /// No rule names the topic.
    #[error("no rule names this topic")]
    NoRule,
    /// A command without a valid signature and fresh counter.
    #[error("the command is not proven")]
    Unproven,
}

/// Classifies a connection or message. Pure; the same facts give the same verdict.
pub fn classify(facts: &ConnectionFacts<'_>) -> Verdict {
    let origin = match facts {
        ConnectionFacts::Socket(socket) => console(socket),
        ConnectionFacts::Tcp(tcp) => network::tcp(tcp),
        ConnectionFacts::Telegram(update) => Ok(telegram(update)),
        ConnectionFacts::Mqtt(message) => mqtt(message),
        ConnectionFacts::Webhook { routine, signed } => {
            Ok(Origin::Webhook { routine: signed.then(|| (*routine).to_owned()) })
        }
        ConnectionFacts::Scheduled { creator, tainted } => {
            Ok(Origin::Scheduled { creator: *creator, tainted: *tainted })
        }
    };
    origin.map_or_else(Verdict::Refuse, Verdict::Accept)
}

fn console(s: &Socket) -> Result<Origin, Refused> {
    if s.peer == s.overflow || s.peer == u32::MAX {
        Err(Refused::UnmappedUser)
    } else if s.peer == s.owner {
        Ok(Origin::Console { uid: s.peer })
    } else if s.peer == s.daemon {
        Err(Refused::OwnProcess)
    } else if s.peer == 0 {
        Ok(Origin::Console { uid: s.peer })
    } else {
        Err(Refused::OtherUser)
    }
}

fn telegram(t: &Telegram<'_>) -> Origin {
    match t.sender {
        Some(user)
            if t.paired.contains(&user)
                && t.private
                && !t.bot
                && !t.on_behalf
                && t.update != Update::Other =>
        {
            let button = t.update == Update::Button;
            Origin::Telegram { user, forwarded: t.forwarded, button }
        }
        _ => Origin::TelegramStranger,
    }
}

fn mqtt(m: &Mqtt<'_>) -> Result<Origin, Refused> {
    let topic = m.topic.to_owned();
    match m.payload {
        _ if !m.rule => Err(Refused::NoRule),
        Payload::Command { proven: true } => Ok(Origin::MqttCommand { topic }),
        Payload::Command { proven: false } => Err(Refused::Unproven),
        Payload::Value if m.authenticated => Ok(Origin::MqttValue { topic }),
        Payload::Value | Payload::Text => Ok(Origin::MqttText { topic }),
    }
}
