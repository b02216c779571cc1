//! The running daemon.

pub mod assemble;
pub mod control;
pub mod drive;
pub mod gateway;
pub mod ports;
mod queue;
pub mod serve;
pub mod unlock;
pub mod upkeep;
