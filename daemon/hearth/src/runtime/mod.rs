//! The running daemon.

pub mod assemble;
pub mod control;
pub mod drive;
pub mod gateway;
pub mod ports;
pub mod serve;
pub mod unlock;
