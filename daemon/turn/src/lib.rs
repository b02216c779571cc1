//! The turn loop as a state machine: `step(Input, Now) -> Vec<Command>`.
//!
//! Pure: time, deadlines, cancellation and randomness are inputs.

pub mod event;
pub mod message;
pub mod model;
pub mod outcome;
pub mod tool;

pub use event::StreamEvent;
pub use message::{ChatMessage, Exchange, Message, MessageId, SessionId, TurnId};
pub use model::{ModelEvent, ModelFailure, ModelRequest, StopReason, Usage};
pub use outcome::{HearthError, TurnOutcome};
pub use tool::{ToolCall, ToolError, ToolOutcome, ToolSpec, Verification};
