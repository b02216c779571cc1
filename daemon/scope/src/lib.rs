//! What a turn may do: scopes, capability sets, trust tiers, origins and grants.
//!
//! Pure: no clock, no I/O, no randomness.
//!
//! * [`Scope`] is one permission; [`Scope::is_granted_by`] is the only comparison.
//! * [`CapabilitySet`] holds scopes; [`CapabilitySet::under`] applies the ceiling
//!   of a [`TrustTier`] once per turn and gives an [`Effective`] set.
//! * [`classify()`] turns the facts of a connection into an [`Origin`], and that
//!   has a tier.
//! * [`Effective::check`] answers one call; its [`Grant`] is the only key to a tool.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod base;
pub mod capability;
pub mod classify;
pub mod gate;
mod label;
pub mod name;
pub mod origin;
pub mod qualifier;
pub mod scope;
pub mod tier;

pub use capability::{CapabilitySet, Effective};
pub use classify::{ConnectionFacts, Refused, Verdict, classify};
pub use gate::{Decision, EffectClass, Grant, Need};
pub use label::{Exposure, Integrity, Label};
pub use name::{CallId, NameError, ToolName};
pub use origin::{Origin, Standing};
pub use scope::{Scope, ScopeError};
pub use tier::TrustTier;
