//! Built-in tools: what they tell the model, what they need, and what they do.
//!
//! A tool never decides whether it may run. It says what a call needs, the gate
//! answers with a [`hearth_scope::Grant`], and [`Registry::run`] consumes it.
//! What tools reach of the rest of the daemon they reach through the traits in
//! [`port`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod context;
pub mod fs;
mod introspect;
pub mod memory;
pub mod net;
pub mod port;
pub mod registry;
pub mod shell;
pub mod text;
pub mod time;
pub mod tool;

#[cfg(test)]
mod testing;

pub use context::ToolContext;
pub use fs::{Root, RootError, Roots};
pub use net::{FetchPort, Page};
pub use port::{
    AuditPort, BoxFuture, Clock, ConfigPort, MemoryEntry, MemoryPort, NewMemory, Reading, Setting,
};
pub use registry::{Builder, Registry};
pub use shell::{ProgramLimits, Shell};
pub use tool::Tool;
