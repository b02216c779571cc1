//! The daemon and its command line. Wiring only: what things are lies in the
//! other crates.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cli;
pub mod clock;
pub mod doctor;
pub mod logger;
pub mod runtime;
