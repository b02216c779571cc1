//! Built-in tools: what they tell the model, what they need, and what they do.
//!
//! A tool never decides whether it may run. It says what a call needs, the gate
//! answers with a [`hearth_scope::Grant`], and [`Registry::run`] consumes it.
//! What tools reach of the rest of the daemon they reach through the traits in
//! [`port`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod context;
pub mod fs;
pub mod memory;
pub mod port;
pub mod registry;
pub mod shell;
pub mod text;
pub mod time;
pub mod tool;

#[cfg(test)]
mod testing;

pub use context::ToolContext;
pub use port::{BoxFuture, Clock, Label, MemoryEntry, MemoryPort, NewMemory, Reading};
pub use registry::{Builder, Registry};
pub use tool::Tool;
