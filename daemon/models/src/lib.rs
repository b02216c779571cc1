//! Clients of language models: Ollama, OpenAI-compatible servers, Anthropic.
//!
//! [`build_request`] and [`Decoder`] are pure: data in, data out. [`Models`]
//! drives them over the network with time-outs by phase, retries and an ordered
//! list of servers.
//!
//! A call is reported only when the stream has ended as its protocol demands,
//! so that nothing from a broken answer is ever run.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arguments;
mod breaker;
mod driver;
mod endpoint;
mod failure;
mod lines;
mod names;
mod probe;
mod provider;
mod size;
mod text;
mod wire;

pub use arguments::parse_arguments;
pub use breaker::{Breaker, Permit};
pub use driver::{ChatOptions, Models, Transport};
pub use failure::{Refusal, Retry, classify, remedy};
pub use names::Names;
pub use probe::{ProbeReport, ServerKind};
pub use provider::{Place, Provider, Timeouts, Wire};
pub use size::{Fitted, estimate_tokens, fit};
pub use wire::{Decoder, HttpRequest, build_request};
