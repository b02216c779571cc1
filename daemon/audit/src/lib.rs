//! The audit log: entry types, the chain over them, signed heads, verification.
//!
//! Pure: no clock, no I/O, no randomness. The store appends what this crate encodes.

pub mod entry;

pub use entry::{Draft, Kind, Stamp};
