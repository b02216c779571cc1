//! What a turn may do: scopes, capability sets, trust tiers, origins and grants.
//!
//! Pure: no clock, no I/O, no randomness.

pub mod capability;
pub mod gate;
pub mod name;
pub mod origin;
pub mod scope;
pub mod tier;

pub use capability::{CapabilitySet, Effective};
pub use gate::{Decision, EffectClass, Grant, Need};
pub use name::{CallId, NameError, ToolName};
pub use origin::Origin;
pub use scope::{Scope, ScopeError};
pub use tier::TrustTier;
