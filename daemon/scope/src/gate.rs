//! The check before a tool runs, and the value that proves it.

use serde::{Deserialize, Serialize};

use crate::{CallId, Effective, Scope, ToolName};

/// What running a tool can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Reads something that is not private.
    Read,
    /// Reads the household's private data.
    PrivateRead,
    /// Sends data out of the box (a fetch counts).
    Send,
    /// Acts on the physical world.
    Actuate,
    /// Writes something that lasts.
    Persist,
    /// Destroys something, or runs a program.
    Destroy,
}

impl EffectClass {
    /// Calls of this class may run side by side and need no synced intent.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Read | Self::PrivateRead)
    }
}

/// What one call needs, computed by its tool from the arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Every scope in this list must be granted.
    pub scopes: Vec<Scope>,
    /// What the call acts on (path, host, topic), redacted for the audit log.
    pub subject: String,
    /// What the call can cause.
    pub effect: EffectClass,
}

/// The answer of the gate.
#[derive(Debug)]
pub enum Decision {
    /// The call may run, once, with this proof.
    Grant(Grant),
    /// A needed scope is not held.
    Denied {
        /// The first scope that was missing.
        scope: Scope,
    },
    /// The scope is held, but the owner has to agree first.
    NeedsApproval {
        /// Why, in words for a person.
        reason: String,
    },
}

/// Proof that the gate allowed one call. Only the gate can make one, it cannot
/// be copied, and a tool consumes it: skipping the check does not compile.
///
/// A tool takes the grant by value:
///
/// ```
/// use hearth_scope::Grant;
/// fn run(grant: Grant) -> usize { grant.scopes().len() }
/// fn once(grant: Grant) -> usize { run(grant) }
/// ```
///
/// so it cannot run twice on one grant,
///
/// ```compile_fail,E0382
/// use hearth_scope::Grant;
/// fn run(grant: Grant) -> usize { grant.scopes().len() }
/// fn twice(grant: Grant) -> usize { run(grant) + run(grant) }
/// ```
///
/// nor on a copy of it, nor on one that it read from somewhere (these are the
/// traits that would allow it, and types that have them)
///
/// ```
/// fn needs_clone<T: Clone>() {}
/// fn needs_default<T: Default>() {}
/// fn needs_deserialize<T: serde::de::DeserializeOwned>() {}
/// needs_clone::<hearth_scope::Scope>();
/// needs_default::<hearth_scope::CapabilitySet>();
/// needs_deserialize::<hearth_scope::Scope>();
/// ```
///
/// ```compile_fail,E0277
/// fn needs_clone<T: Clone>() {}
/// needs_clone::<hearth_scope::Grant>();
/// ```
///
/// ```compile_fail,E0277
/// fn needs_default<T: Default>() {}
/// needs_default::<hearth_scope::Grant>();
/// ```
///
/// ```compile_fail,E0277
/// fn needs_deserialize<T: serde::de::DeserializeOwned>() {}
/// needs_deserialize::<hearth_scope::Grant>();
/// ```
///
/// nor on one that it made itself,
///
/// ```compile_fail,E0451
/// use hearth_scope::{CallId, Grant, ToolName};
/// fn forge(tool: ToolName) -> Grant { Grant { tool, call: CallId(1), scopes: vec![] } }
/// ```
///
/// The set that it was checked against cannot be made up either:
///
/// ```compile_fail,E0451
/// use hearth_scope::{CapabilitySet, Effective, TrustTier};
/// fn forge(set: CapabilitySet) -> Effective { Effective { tier: TrustTier::Kernel, set } }
/// ```
#[derive(Debug)]
#[must_use = "a grant is for running one call"]
pub struct Grant {
    tool: ToolName,
    call: CallId,
    scopes: Vec<Scope>,
}

impl Grant {
    /// The tool that may run.
    pub fn tool(&self) -> &ToolName {
        &self.tool
    }

    /// The call that may run.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// What was granted.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }
}

impl Effective {
    /// Decides one call. Every needed scope must be granted; a call that names
    /// none may only read what is not private.
    pub fn check(&self, tool: &ToolName, call: CallId, need: &Need) -> Decision {
        if need.scopes.is_empty() && need.effect != EffectClass::Read {
            return Decision::NeedsApproval {
                reason: format!("{tool} has an effect but names no permission for it"),
            };
        }
        match need.scopes.iter().find(|s| !self.set().grants(s)) {
            Some(scope) => Decision::Denied { scope: scope.clone() },
            None => Decision::Grant(Grant { tool: tool.clone(), call, scopes: need.scopes.clone() }),
        }
    }
}
