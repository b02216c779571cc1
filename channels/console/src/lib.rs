//! The console channel: framed JSON over a Unix socket that only the owner and
//! root can reach.
//!
//! [`bind`] makes the socket, [`serve`] answers on it, and [`Client`] is what
//! the verbs of `hearth` use. The frames are written down in
//! `docs/formats/ipc-frame.md`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod client;
mod connection;
pub mod frame;
pub mod protocol;
pub mod server;
pub mod socket;

pub use client::{Answer, Client, ClientError};
pub use server::{Policy, serve};
pub use socket::{BindError, Listener, bind};
