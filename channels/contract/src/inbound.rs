//! A message on its way in.

use std::fmt;

use hearth_scope::{Origin, TrustTier};
use serde::{Deserialize, Serialize};

use crate::refusal::{Refusal, RefusalKind};

/// Longest channel name, in bytes.
pub const CHANNEL_NAME_MAX: usize = 32;
/// Longest identifier that a transport may give to a message, in bytes.
pub const EXTERNAL_ID_MAX: usize = 128;
/// Longest name of a conversation, in bytes.
pub const CONVERSATION_MAX: usize = 64;
/// Largest text of a message where nothing smaller is configured, in bytes.
pub const TEXT_MAX: usize = 64 * 1024;

/// The name of a channel: lower-case ASCII letters, digits, `-` and `_`,
/// beginning with a letter, at most 32 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChannelName(String);

/// A text that is not a channel name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a channel name is 1 to 32 lower-case letters, digits, \"-\" or \"_\", a letter first")]
pub struct ChannelNameError;

impl ChannelName {
    /// Checks and takes a name.
    pub fn parse(text: &str) -> Result<Self, ChannelNameError> {
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if text.len() <= CHANNEL_NAME_MAX
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.bytes().all(word)
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(ChannelNameError)
        }
    }

    /// The console on the box itself.
    pub fn console() -> Self {
        Self("console".to_owned())
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ChannelName {
    type Error = ChannelNameError;
    fn try_from(text: String) -> Result<Self, ChannelNameError> {
        Self::parse(&text)
    }
}

impl From<ChannelName> for String {
    fn from(name: ChannelName) -> Self {
        name.0
    }
}

/// A message as an adapter hands it over. `channel` and `external_id` together
/// are the key by which a repeated delivery is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inbound {
    /// Built by the accept path from facts that the peer cannot set.
    pub origin: Origin,
    /// The channel that it came through.
    pub channel: ChannelName,
    /// The transport's identifier of the message; the same one again is the same message.
    pub external_id: String,
    /// The conversation that it belongs to, for example `default`.
    pub conversation: String,
    /// The text.
    pub text: String,
}

impl Inbound {
    /// Refuses what no adapter may pass on: names and identifiers that are
    /// empty, too long or hold control characters, a text that is blank, holds
    /// NUL or has more than `text_max` bytes, and an origin of the kernel tier.
    pub fn check(&self, text_max: usize) -> Result<(), Refusal> {
        if self.origin.tier() == TrustTier::Kernel {
            return Err(Refusal::new(
                RefusalKind::Internal,
                "the channel claimed to be the daemon itself",
                "This is a bug in the channel: please report it.",
            ));
        }
        check_word("message identifier", &self.external_id, EXTERNAL_ID_MAX)?;
        check_word("conversation", &self.conversation, CONVERSATION_MAX)?;
        if self.text.len() > text_max {
            return Err(Refusal::new(
                RefusalKind::TooLarge,
                format!("the message has {} bytes, and {text_max} are allowed", self.text.len()),
                "Shorten it or send it in parts, or raise limits.message_bytes.",
            ));
        }
        if self.text.trim().is_empty() || self.text.contains('\0') {
            return Err(Refusal::new(
                RefusalKind::Malformed,
                "the message is empty or holds a NUL character",
                "Write some text.",
            ));
        }
        Ok(())
    }
}

/// Refuses a short name that is empty, too long, or holds control characters.
pub(crate) fn check_word(what: &str, text: &str, max: usize) -> Result<(), Refusal> {
    if text.trim().is_empty() || text.len() > max || text.chars().any(char::is_control) {
        return Err(Refusal::new(
            RefusalKind::Malformed,
            format!("the {what} is empty, too long, or holds control characters"),
            format!("Use 1 to {max} bytes of visible text."),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Inbound), expected: Option<RefusalKind>) {
        let mut inbound = Inbound {
            origin: Origin::Console { uid: 1000 },
            channel: ChannelName::console(),
            external_id: "01J".to_owned(),
            conversation: "default".to_owned(),
            text: "hello".to_owned(),
        };
        change(&mut inbound);
        assert_eq!(inbound.check(16).err().map(|r| r.kind), expected, "{inbound:?}");
    }

    #[test]
    fn only_sound_messages_pass() {
        use RefusalKind::{Internal, Malformed, TooLarge};
        check(|_| (), None);
        check(|m| m.text = "x".repeat(16), None);
        check(|m| m.text = "x".repeat(17), Some(TooLarge));
        check(|m| m.text = " \n".to_owned(), Some(Malformed));
        check(|m| m.text = "a\0b".to_owned(), Some(Malformed));
        check(|m| m.external_id = String::new(), Some(Malformed));
        check(|m| m.external_id = "x".repeat(129), Some(Malformed));
        check(|m| m.external_id = "a\nb".to_owned(), Some(Malformed));
        check(|m| m.conversation = "x".repeat(65), Some(Malformed));
        check(|m| m.conversation = " ".to_owned(), Some(Malformed));
        check(|m| m.origin = Origin::Internal, Some(Internal));
    }

    #[test]
    fn channel_names() {
        for good in ["console", "telegram", "web-2", "a", &"a".repeat(32)] {
            assert_eq!(ChannelName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "Console", "2web", "a b", "a/b", "é", &"a".repeat(33)] {
            assert!(ChannelName::parse(bad).is_err(), "{bad}");
            assert!(serde_json::from_value::<ChannelName>(bad.into()).is_err(), "{bad}");
        }
    }
}
