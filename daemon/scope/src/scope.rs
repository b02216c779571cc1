//! The validated string form of a permission.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::{Base, Form};
use crate::qualifier::{self, Common};

/// Why a scope was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// The base is not a known permission.
    #[error("unknown permission {0:?}")]
    UnknownBase(String),
    /// The qualifier does not fit its base.
    #[error("bad qualifier for {base}: {why}")]
    Qualifier {
        /// The permission.
        base: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// `base` or `base:qualifier`; the base is known, the qualifier is well formed
/// and in its canonical form. At most 1024 bytes of qualifier.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scope(String);

impl Scope {
    /// Checks a scope and brings it to its canonical form.
    pub fn parse(text: &str) -> Result<Self, ScopeError> {
        match text.split_once(':') {
            Some((base, qualifier)) => Self::qualified(base, qualifier),
            None => Self::row(text).map(|base| Self(base.name.to_owned())),
        }
    }

    /// Builds `base:qualifier` from its parts.
    pub fn qualified(base: &str, qualifier: &str) -> Result<Self, ScopeError> {
        let base = Self::row(base)?;
        match qualifier::canonical(base.form, qualifier) {
            Ok(qualifier) => Ok(Self(format!("{}:{qualifier}", base.name))),
            Err(why) => Err(ScopeError::Qualifier { base: base.name, why }),
        }
    }

    fn row(name: &str) -> Result<&'static Base, ScopeError> {
        Base::find(name).ok_or_else(|| ScopeError::UnknownBase(name.chars().take(80).collect()))
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
    ///
    /// The bases must be equal. A bare `held` is enough for every qualifier; a
    /// qualified one is enough for a qualifier that it contains, and never for
    /// the bare base. Reflexive and transitive.
    pub fn is_granted_by(&self, held: &Scope) -> bool {
        self.base() == held.base()
            && match (held.qualifier(), self.qualifier()) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(held), Some(needed)) => qualifier::contains(self.form(), held, needed),
            }
    }

    /// The row of this scope's base.
    pub(crate) fn known(&self) -> &'static Base {
        Base::find(self.base()).expect("the base was found when the scope was parsed")
    }

    fn form(&self) -> Form {
        self.known().form
    }

    /// True when the qualifier names something in particular.
    pub(crate) fn narrows(&self) -> bool {
        self.qualifier().is_some_and(qualifier::narrows)
    }

    /// What two scopes have in common, given that neither grants the other.
    pub(crate) fn common(&self, other: &Scope) -> CommonScope {
        let (Some(a), Some(b)) = (self.qualifier(), other.qualifier()) else {
            return CommonScope::Nothing;
        };
        if self.base() != other.base() {
            return CommonScope::Nothing;
        }
        match qualifier::common(self.form(), a, b) {
            Common::Nothing => CommonScope::Nothing,
            Common::Exactly(q) => CommonScope::Exactly(Self(format!("{}:{q}", self.base()))),
            Common::Both => CommonScope::Both,
        }
    }
}

/// What two scopes have in common.
pub(crate) enum CommonScope {
    /// Nothing at all.
    Nothing,
    /// Exactly this scope.
    Exactly(Scope),
    /// Whatever both grant.
    Both,
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
