//! Finding addresses, behind a trait so that tests can answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Finds the addresses of a name.
pub trait Resolver: Send + Sync {
    /// All addresses of `host`, in the order in which to try them.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that resolves; the guard looks at what comes out"
    )]
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|a| a.ip()).collect()) })
    }
}

/// Answers with the addresses that were checked, whatever the name's owner says
/// by now: the connection goes to what was looked at and nowhere else.
pub(crate) struct Pinned {
    pub(crate) host: String,
    pub(crate) addresses: Arc<[SocketAddr]>,
}

impl Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let same = name.as_str().trim_end_matches('.').eq_ignore_ascii_case(self.host.trim_end_matches('.'));
        let addresses = same.then(|| Arc::clone(&self.addresses));
        Box::pin(async move {
            let addresses = addresses.ok_or("the name was not checked")?;
            let all: Vec<SocketAddr> = addresses.to_vec();
            Ok(Box::new(all.into_iter()) as Addrs)
        })
    }
}
