//! Sets of scopes and what is left of them under a tier's ceiling.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::Rule;
use crate::scope::CommonScope;
use crate::{Scope, TrustTier};

/// Most entries of a set that is read back from its serialised form.
const ENTRIES_MAX: usize = 4096;
/// Most conditions of one entry; what would need more is dropped, never widened.
const CONDITIONS_MAX: usize = 8;

/// A sorted set of permissions; the same set always serialises to the same bytes.
///
/// Almost every entry is one scope. The intersection of sets can also hold
/// entries of several scopes *which all have to grant* a needed scope, for
/// instance what `fs.read:/a/*/x` and `fs.read:/*/b` have in common. These
/// serialise as a nested list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Wire>", into = "Vec<Wire>")]
pub struct CapabilitySet(Vec<Entry>);

impl CapabilitySet {
    /// The set that grants nothing.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Sorts and deduplicates.
    pub fn from_scopes(scopes: impl IntoIterator<Item = Scope>) -> Self {
        Self::from_entries(scopes.into_iter().map(|scope| Entry(vec![scope])).collect())
    }

    /// True when some entry grants `needed`.
    pub fn grants(&self, needed: &Scope) -> bool {
        self.0.iter().any(|entry| entry.grants(needed))
    }

    /// The set that grants exactly what both sets grant.
    pub fn intersect(&self, other: &Self) -> Self {
        let pairs = self.0.iter().flat_map(|a| other.0.iter().filter_map(|b| a.meet(b)));
        let mut met = Self::from_entries(pairs.collect());
        met.drop_contained();
        met
    }

    /// The scopes that are held unconditionally, in order. Entries of several
    /// scopes are left out: one of their scopes alone would say too much.
    pub fn iter(&self) -> impl Iterator<Item = &Scope> {
        self.0.iter().filter_map(|entry| match entry.0.as_slice() {
            [scope] => Some(scope),
            _ => None,
        })
    }

    /// True when something of this base is held, in whatever form.
    pub fn has_base(&self, base: &str) -> bool {
        self.0.iter().any(|entry| entry.0.iter().any(|scope| scope.base() == base))
    }

    /// True when nothing is granted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is left of this set under the ceiling of `tier`.
    pub fn under(&self, tier: TrustTier) -> Effective {
        let kept = self.0.iter().filter_map(|entry| entry.under(tier)).collect();
        Effective { tier, set: Self::from_entries(kept) }
    }

    fn from_entries(mut entries: Vec<Entry>) -> Self {
        entries.sort();
        entries.dedup();
        Self(entries)
    }

    /// Drops entries that another qualified entry contains. A bare entry does
    /// not displace qualified ones: a ceiling may keep only these.
    fn drop_contained(&mut self) {
        let all = self.0.clone();
        // Canonical forms that contain each other are equal, and duplicates are gone.
        self.0.retain(|entry| {
            !all.iter().any(|other| {
                other != entry
                    && other.0.iter().all(|scope| scope.qualifier().is_some())
                    && entry.within(other)
            })
        });
    }
}

/// Scopes of one base which all have to grant; never empty, sorted, and none
/// of them contains another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(Vec<Scope>);

impl Entry {
    fn grants(&self, needed: &Scope) -> bool {
        self.0.iter().all(|scope| needed.is_granted_by(scope))
    }

    /// True when `other` grants everything that this entry grants.
    fn within(&self, other: &Self) -> bool {
        other.0.iter().all(|theirs| self.0.iter().any(|mine| mine.is_granted_by(theirs)))
    }

    /// The greatest entry within both, if there is one.
    fn meet(&self, other: &Self) -> Option<Self> {
        let mut all: Vec<Scope> = Vec::new();
        for scope in self.0.iter().chain(&other.0) {
            let mut scope = scope.clone();
            let mut at = 0;
            while let Some(seen) = all.get(at) {
                if scope.is_granted_by(seen) {
                    all.swap_remove(at);
                } else if seen.is_granted_by(&scope) {
                    scope = all.swap_remove(at);
                } else {
                    match scope.common(seen) {
                        CommonScope::Nothing => return None,
                        CommonScope::Exactly(both) => {
                            scope = both;
                            all.swap_remove(at);
                        }
                        CommonScope::Both => at += 1,
                    }
                }
            }
            all.push(scope);
        }
        all.sort();
        (all.len() <= CONDITIONS_MAX).then_some(Self(all))
    }

    /// Applies the ceilings one below the other, so that a tier never keeps more
    /// than the tier above it.
    fn under(&self, tier: TrustTier) -> Option<Self> {
        let base = self.0[0].known();
        let steps = [TrustTier::Trusted, TrustTier::SemiTrusted, TrustTier::Untrusted];
        let mut steps = steps.iter().take_while(|step| **step >= tier);
        steps.try_fold(self.clone(), |kept, step| kept.cap(base.rule(*step)))
    }

    fn cap(self, rule: Rule) -> Option<Self> {
        match rule {
            Rule::Granted => Some(self),
            Rule::QualifiedOnly => self.0.iter().any(Scope::narrows).then_some(self),
            Rule::Only(ceiling) => {
                self.meet(&Self(vec![Scope::parse(ceiling).expect("ceilings are tested to parse")]))
            }
            Rule::Denied => None,
        }
    }
}

/// Serialised form of an entry: a scope, or a list of scopes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Wire {
    One(Scope),
    All(Vec<Scope>),
}

impl From<CapabilitySet> for Vec<Wire> {
    fn from(set: CapabilitySet) -> Self {
        let wire = |Entry(mut scopes): Entry| match scopes.len() {
            1 => Wire::One(scopes.remove(0)),
            _ => Wire::All(scopes),
        };
        set.0.into_iter().map(wire).collect()
    }
}

impl TryFrom<Vec<Wire>> for CapabilitySet {
    type Error = &'static str;
    fn try_from(entries: Vec<Wire>) -> Result<Self, Self::Error> {
        if entries.len() > ENTRIES_MAX {
            return Err("a capability set has at most 4096 entries");
        }
        let entry = |wire| match wire {
            Wire::One(scope) => Ok(Entry(vec![scope])),
            Wire::All(scopes) => {
                if scopes.is_empty() || scopes.len() > CONDITIONS_MAX {
                    return Err("a joint entry has 1 to 8 scopes");
                }
                let mut met = Entry(vec![scopes[0].clone()]);
                for scope in scopes {
                    met = met.meet(&Entry(vec![scope])).ok_or("a joint entry grants nothing")?;
                }
                Ok(met)
            }
        };
        Ok(Self::from_entries(entries.into_iter().map(entry).collect::<Result<_, _>>()?))
    }
}

impl From<Vec<Scope>> for CapabilitySet {
    fn from(scopes: Vec<Scope>) -> Self {
        Self::from_scopes(scopes)
    }
}

impl fmt::Display for CapabilitySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (i, Entry(scopes)) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            for (j, scope) in scopes.iter().enumerate() {
                f.write_str(if j == 0 { "" } else { " within " })?;
                scope.fmt(f)?;
            }
        }
        Ok(())
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
