//! The turn loop as a state machine: `step(Input, Now) -> Vec<Command>`.
//!
//! Pure: time, deadlines, cancellation and randomness are inputs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod answer;
mod batch;
mod breaker;
mod calls;
mod capture;
mod end;
pub mod event;
mod identifier;
pub mod limits;
pub mod message;
pub mod model;
pub mod outcome;
mod remedy;
mod repair;
pub mod tool;
mod turn;

pub use event::StreamEvent;
pub use limits::Limits;
pub use message::{ChatMessage, Exchange, Message, MessageId, PastCall, SessionId, TurnId};
pub use model::{ModelEvent, ModelFailure, ModelRequest, StopReason, Usage};
pub use outcome::{HearthError, TurnOutcome};
pub use tool::{ToolCall, ToolError, ToolOutcome, ToolSpec, Verification};
pub use turn::{Command, Input, Start, Turn};
