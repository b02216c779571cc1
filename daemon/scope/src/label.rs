//! Labels: who could have written what a turn has read, and how private it is.

use serde::{Deserialize, Serialize};

use crate::TrustTier;

/// Who could have written a text. The order is that of trust: the least of two
/// is the least trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Integrity {
    /// Anyone: web pages, messages, names of devices, files from outside.
    World,
    /// The daemon, in turns that read nothing from outside.
    Household,
    /// The owner, or a value that our own code made: a time, a number, a word of
    /// ours.
    Owner,
}

/// How private something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exposure {
    /// Anyone may know it.
    Public,
    /// It stays in the home.
    Home,
    /// It unlocks something.
    Secret,
}

/// What is known about the origin of a text, or of everything that a turn has
/// read so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// Who could have written it: of several authors the least trusted.
    pub integrity: Integrity,
    /// How private it is: of several parts the most private.
    pub exposure: Exposure,
}

impl Label {
    /// Changes nothing that it is joined with: nobody's text, nobody's secret.
    pub const NEUTRAL: Self = Self { integrity: Integrity::Owner, exposure: Exposure::Public };
    /// What has no label: from anyone, and private.
    pub const UNKNOWN: Self = Self { integrity: Integrity::World, exposure: Exposure::Home };

    /// A label of both parts.
    pub const fn new(integrity: Integrity, exposure: Exposure) -> Self {
        Self { integrity, exposure }
    }

    /// The label of what somebody said whose words have this tier.
    pub fn said_by(tier: TrustTier) -> Self {
        let integrity = if tier >= TrustTier::SemiTrusted { Integrity::Owner } else { Integrity::World };
        Self { integrity, exposure: Exposure::Home }
    }

    /// The label of both together. Neither part ever gets better by it.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self { integrity: self.integrity.min(other.integrity), exposure: self.exposure.max(other.exposure) }
    }

    /// True when anyone could have written some of it.
    pub fn is_tainted(self) -> bool {
        self.integrity == Integrity::World
    }
}

impl Default for Label {
    /// [`Label::UNKNOWN`]: a label that was forgotten must not look clean.
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl FromIterator<Label> for Label {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        labels.into_iter().fold(Self::NEUTRAL, Self::join)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Label; 9] = {
        let (i, e) = (
            [Integrity::World, Integrity::Household, Integrity::Owner],
            [Exposure::Public, Exposure::Home, Exposure::Secret],
        );
        [
            Label::new(i[0], e[0]),
            Label::new(i[0], e[1]),
            Label::new(i[0], e[2]),
            Label::new(i[1], e[0]),
            Label::new(i[1], e[1]),
            Label::new(i[1], e[2]),
            Label::new(i[2], e[0]),
            Label::new(i[2], e[1]),
            Label::new(i[2], e[2]),
        ]
    };

    /// True when `a` is no better than `b` in either part.
    fn no_better(a: Label, b: Label) -> bool {
        a.integrity <= b.integrity && a.exposure >= b.exposure
    }

    #[test]
    fn join_is_a_bound_and_never_improves() {
        for a in ALL {
            assert_eq!(a.join(a), a);
            assert_eq!(a.join(Label::NEUTRAL), a);
            assert!(!a.is_tainted() || ALL.iter().all(|b| a.join(*b).is_tainted()));
            for b in ALL {
                assert_eq!(a.join(b), b.join(a));
                assert!(no_better(a.join(b), a) && no_better(a.join(b), b));
                for c in ALL {
                    assert_eq!(a.join(b).join(c), a.join(b.join(c)));
                    // And it is the best of all that are no better than both.
                    if no_better(c, a) && no_better(c, b) {
                        assert!(no_better(c, a.join(b)));
                    }
                }
            }
        }
        assert_eq!([].into_iter().collect::<Label>(), Label::NEUTRAL);
        assert_eq!(ALL.into_iter().collect::<Label>(), Label::new(Integrity::World, Exposure::Secret));
    }

    #[test]
    fn what_has_no_label_is_not_clean() {
        assert_eq!(Label::default(), Label::UNKNOWN);
        assert!(Label::default().is_tainted());
        for (tier, tainted) in [
            (TrustTier::Untrusted, true),
            (TrustTier::SemiTrusted, false),
            (TrustTier::Trusted, false),
            (TrustTier::Kernel, false),
        ] {
            assert_eq!(Label::said_by(tier).is_tainted(), tainted, "{tier}");
        }
        assert!(serde_json::from_str::<Label>(r#"{"integrity":"owner"}"#).is_err());
        for label in ALL {
            let text = serde_json::to_string(&label).unwrap();
            assert_eq!(serde_json::from_str::<Label>(&text).unwrap(), label);
        }
    }
}
