//! What a tool knows of the turn that called it.

use hearth_scope::{CapabilitySet, Label, TrustTier};
use hearth_turn::{SessionId, TurnId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The turn around one call.
#[derive(Debug, Clone)]
pub struct ToolContext {
    /// The turn.
    pub turn: TurnId,
    /// The conversation.
    pub session: SessionId,
    /// The tier of the turn's origin.
    pub tier: TrustTier,
    /// What the turn holds. Only for targets that appear while a call runs (a
    /// redirect): the target in the arguments was checked by the gate.
    pub held: CapabilitySet,
    /// Everything that the turn has read so far. What a tainted turn writes to
    /// memory is labelled as written by anyone.
    pub label: Label,
    /// A random string, new in each turn, that fences text from outside.
    pub fence: String,
    /// Cancelled when the person stops the turn.
    pub cancel: CancellationToken,
    /// The end of the turn. A call ends at this or after its own time-out,
    /// whichever is earlier.
    pub deadline: Instant,
}
