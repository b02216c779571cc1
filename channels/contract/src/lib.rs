//! What every channel adapter is given, and what it must do with it.
//!
//! An adapter turns the bytes of its transport into an [`Inbound`] message with
//! an origin that the peer cannot set, hands it to the [`Gateway`], and shows
//! the peer the events of the [`Ticket`]. It knows nothing of the store, the
//! tools or the models. The suite in `conformance` (feature of the same name)
//! is the same for every adapter.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::pin::Pin;

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod control;
pub mod gateway;
pub mod inbound;
pub mod refusal;

pub use control::{Control, ControlRequest, Passphrase};
pub use gateway::{ChannelEvent, Gateway, Ticket};
pub use inbound::{ChannelName, Inbound};
pub use refusal::{Refusal, RefusalKind};

/// A future that can be kept in a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
