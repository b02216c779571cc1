//! The only HTTP client of the daemon.
//!
//! Two clients for two kinds of peer. [`Client`] talks to one configured model
//! server and to nothing else: scheme, host and port are pinned, redirects are
//! not followed, proxies from the environment are ignored. [`Fetcher`] reads
//! the public internet for tools: every address and every redirect hop is
//! checked against the address guard, and size and time are capped.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod error;
mod fetch;
mod guard;
mod resolve;
mod secret;
mod tls;

pub use bytes::Bytes;
pub use client::{Body, Client, EndpointPolicy, Method, Request, Response};
pub use error::{EgressError, Phase};
pub use fetch::{FetchLimits, Fetched, Fetcher, LanHost};
pub use guard::{OnLink, check_address};
pub use resolve::{Resolver, SystemResolver};
pub use secret::SecretValue;
pub use tls::install_tls;
pub use url::Url;
