//! Shared helpers of the outer test ring: a throw-away home, the real daemon in
//! it, and a scripted model server that speaks real HTTP.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

pub mod daemon;
pub mod model;

pub use daemon::{Daemon, Home, Output};
pub use model::{FakeModel, Reply};
