//! Sets of scopes and what is left of them under a tier's ceiling.

use serde::{Deserialize, Serialize};

use crate::{Scope, TrustTier};

/// A sorted set of scopes; the same set always serialises to the same bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Scope>", into = "Vec<Scope>")]
pub struct CapabilitySet(Vec<Scope>);

impl CapabilitySet {
    /// The set that grants nothing.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Sorts and deduplicates.
    pub fn from_scopes(scopes: impl IntoIterator<Item = Scope>) -> Self {
        let mut scopes: Vec<_> = scopes.into_iter().collect();
        scopes.sort();
        scopes.dedup();
        Self(scopes)
    }

    /// True when some held scope grants `needed`.
    pub fn grants(&self, needed: &Scope) -> bool {
        self.0.iter().any(|held| needed.is_granted_by(held))
    }

    /// The scopes granted by both sets.
    pub fn intersect(&self, other: &Self) -> Self {
        let mine = self.0.iter().filter(|s| other.grants(s));
        let theirs = other.0.iter().filter(|s| self.grants(s));
        Self::from_scopes(mine.chain(theirs).cloned())
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = &Scope> {
        self.0.iter()
    }

    /// What is left of this set under the ceiling of `tier`.
    pub fn under(&self, tier: TrustTier) -> Effective {
        Effective { tier, set: self.clone() }
    }
}

impl From<Vec<Scope>> for CapabilitySet {
    fn from(scopes: Vec<Scope>) -> Self {
        Self::from_scopes(scopes)
    }
}

impl From<CapabilitySet> for Vec<Scope> {
    fn from(set: CapabilitySet) -> Self {
        set.0
    }
}

/// What a turn may do: the agent's capabilities under the ceiling of its tier.
/// Computed once per turn; only this type mints grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    tier: TrustTier,
    set: CapabilitySet,
}

impl Effective {
    /// The tier whose ceiling was applied.
    pub fn tier(&self) -> TrustTier {
        self.tier
    }

    /// The scopes that are left.
    pub fn set(&self) -> &CapabilitySet {
        &self.set
    }
}
