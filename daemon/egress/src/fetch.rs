//! Reading the public internet for tools.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Method;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use url::{Host, Url};

use crate::client::builder;
use crate::error::{EgressError, Phase, from_reqwest};
use crate::guard::{OnLink, check_address, is_local_name, unwrapped};
use crate::resolve::{Pinned, Resolver, SystemResolver};

/// Ports of the public internet that may be asked.
const PORTS: &[u16] = &[80, 443, 8080, 8443];
/// Fetches that run at the same time.
const CONCURRENT: usize = 4;
/// Longest address, in bytes.
const URL_MAX: usize = 4096;

/// Caps of one fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchLimits {
    /// Bytes of the body that are kept; the rest is not read.
    pub body_bytes: usize,
    /// Redirects that are followed.
    pub redirects: usize,
    /// Limit for resolving, and again for connecting, per hop.
    pub connect: Duration,
    /// Limit from the request to the head of the answer, per hop.
    pub first_byte: Duration,
    /// Limit for everything, all hops and waiting for a free slot included.
    pub total: Duration,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            body_bytes: 2 * 1024 * 1024,
            redirects: 5,
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(10),
            total: Duration::from_secs(30),
        }
    }
}

/// A host of the household that the owner has named: the address check is
/// skipped for exactly this host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanHost {
    /// Name or address as it stands in the URL, lower case.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The address after all redirects.
    pub final_url: Url,
    /// Status code of the last answer.
    pub status: u16,
    /// Its `Content-Type`, where it has one.
    pub content_type: Option<String>,
    /// The body, at most as long as the limit; empty for HEAD.
    pub body: Vec<u8>,
    /// True when the body was longer than the limit.
    pub truncated: bool,
}

/// Fetches from the public internet: GET and HEAD, http and https, ports 80,
/// 443, 8080 and 8443.
///
/// Each hop is resolved once, every address is checked, and the connection goes
/// to the checked addresses only. No cookies, no credentials, no proxy. Bodies
/// are asked for without compression, and a compressed one is refused.
#[derive(Clone)]
pub struct Fetcher {
    resolver: Arc<dyn Resolver>,
    lan: Arc<[LanHost]>,
    on_link: fn() -> OnLink,
    slots: Arc<Semaphore>,
    limits: FetchLimits,
}

impl Default for Fetcher {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Fetcher {
    /// A fetcher with the hosts of the household that were granted one by one.
    pub fn new(lan: Vec<LanHost>) -> Self {
        Self::with_resolver(lan, Arc::new(SystemResolver))
    }

    /// The same with another resolver.
    pub fn with_resolver(lan: Vec<LanHost>, resolver: Arc<dyn Resolver>) -> Self {
        Self {
            resolver,
            lan: lan.into(),
            on_link: OnLink::read,
            slots: Arc::new(Semaphore::new(CONCURRENT)),
            limits: FetchLimits::default(),
        }
    }

    /// The same with other limits for callers that ask for its own.
    pub fn with_limits(self, limits: FetchLimits) -> Self {
        Self { limits, ..self }
    }

    /// The limits that were configured.
    pub fn limits(&self) -> FetchLimits {
        self.limits
    }

    /// Reads an address.
    pub async fn fetch(&self, url: &str, limits: FetchLimits) -> Result<Fetched, EgressError> {
        self.run(Method::GET, url, limits).await
    }

    /// Asks for the head only.
    pub async fn head(&self, url: &str, limits: FetchLimits) -> Result<Fetched, EgressError> {
        self.run(Method::HEAD, url, limits).await
    }

    async fn run(&self, method: Method, url: &str, limits: FetchLimits) -> Result<Fetched, EgressError> {
        let late = EgressError::TimedOut { phase: Phase::Total, limit: limits.total };
        let end = Instant::now() + limits.total;
        let work = async {
            let _slot =
                self.slots.acquire().await.map_err(|_| EgressError::Refused("shutting down".into()))?;
            self.hops(method, url, limits).await
        };
        timeout_at(end, work).await.unwrap_or(Err(late))
    }

    async fn hops(&self, method: Method, url: &str, limits: FetchLimits) -> Result<Fetched, EgressError> {
        if url.len() > URL_MAX {
            return Err(EgressError::BadUrl(format!("longer than {URL_MAX} bytes")));
        }
        let mut url = Url::parse(url.trim()).map_err(|e| EgressError::BadUrl(e.to_string()))?;
        for _ in 0..=limits.redirects {
            let answer = self.hop(&method, &url, &limits).await?;
            let location = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308)
                .then(|| answer.headers().get("location"))
                .flatten();
            let Some(location) = location else {
                return read(answer, url, limits.body_bytes).await;
            };
            url = follow(&url, location.as_bytes())?;
        }
        Err(EgressError::TooManyRedirects(limits.redirects))
    }

    async fn hop(
        &self,
        method: &Method,
        url: &Url,
        limits: &FetchLimits,
    ) -> Result<reqwest::Response, EgressError> {
        let target = self.check(url, limits.connect).await?;
        let peer = format!("{}:{}", target.host, target.port);
        let http = builder(limits.connect)
            .dns_resolver(Pinned { host: target.host, addresses: target.addresses.into() })
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|e| from_reqwest(&peer, limits.connect, e))?;
        let request = http
            .request(method.clone(), url.clone())
            .header("accept", "*/*")
            .header("accept-encoding", "identity")
            .send();
        match tokio::time::timeout(limits.connect + limits.first_byte, request).await {
            Ok(answer) => answer.map_err(|e| from_reqwest(&peer, limits.connect, e)),
            Err(_) => Err(EgressError::TimedOut { phase: Phase::FirstByte, limit: limits.first_byte }),
        }
    }

    /// The guard: what may be connected to, or why not.
    async fn check(&self, url: &Url, limit: Duration) -> Result<Target, EgressError> {
        let refuse = |why: String| Err(EgressError::Refused(why));
        if !matches!(url.scheme(), "http" | "https") {
            return refuse(format!("{} is not http or https", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("a user name or password in the address".into());
        }
        let host = url.host().ok_or_else(|| EgressError::BadUrl("no host".into()))?;
        let name = url.host_str().unwrap_or_default().trim_end_matches('.').to_owned();
        let port = url.port_or_known_default().ok_or_else(|| EgressError::BadUrl("no port".into()))?;
        let granted = self.lan.iter().any(|l| l.port == port && l.host.eq_ignore_ascii_case(&name));
        if !granted && !PORTS.contains(&port) {
            return refuse(format!("port {port}; allowed are 80, 443, 8080 and 8443"));
        }
        let found = match host {
            Host::Ipv4(v4) => vec![IpAddr::V4(v4)],
            Host::Ipv6(v6) => vec![IpAddr::V6(v6)],
            Host::Domain(_) if !granted && is_local_name(&name) => {
                return refuse(format!(
                    "{name} is a name of the local network; the owner can allow {name}:{port}"
                ));
            }
            Host::Domain(_) => match tokio::time::timeout(limit, self.resolver.resolve(&name)).await {
                Err(_) => return Err(EgressError::TimedOut { phase: Phase::Resolve, limit }),
                Ok(Err(e)) => return Err(EgressError::Resolve { host: name, reason: e.to_string() }),
                Ok(Ok(found)) => found,
            },
        };
        let on_link = (self.on_link)();
        let mut addresses = Vec::new();
        let mut refused = None;
        for ip in found {
            let verdict = match check_address(ip) {
                _ if granted => Ok(()),
                Ok(()) if on_link.contains(ip) => Err("on this machine's own network"),
                other => other,
            };
            match verdict {
                Ok(()) => addresses.push(SocketAddr::new(ip, port)),
                Err(kind) => refused = Some((ip, kind)),
            }
        }
        match (addresses.is_empty(), refused) {
            (false, _) => Ok(Target { host: url.host_str().unwrap_or_default().to_owned(), port, addresses }),
            (true, Some((ip, kind))) => {
                refuse(format!("{name} is {} ({kind}), not on the public internet", unwrapped(ip)))
            }
            (true, None) => Err(EgressError::Resolve { host: name, reason: "it has no address".into() }),
        }
    }
}

/// Where a redirect leads; the guard looks at it when it is asked.
fn follow(from: &Url, location: &[u8]) -> Result<Url, EgressError> {
    let text = std::str::from_utf8(location).ok().filter(|l| l.len() <= URL_MAX);
    let text = text.ok_or_else(|| EgressError::Protocol("a redirect to an unreadable address".into()))?;
    let mut next = from.join(text).map_err(|e| EgressError::BadUrl(format!("in a redirect: {e}")))?;
    if from.scheme() == "https" && next.scheme() != "https" {
        return Err(EgressError::Refused("a redirect from https to something else".into()));
    }
    next.set_fragment(None);
    Ok(next)
}

#[derive(Debug)]
struct Target {
    host: String,
    port: u16,
    addresses: Vec<SocketAddr>,
}

async fn read(answer: reqwest::Response, final_url: Url, limit: usize) -> Result<Fetched, EgressError> {
    let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    if let Some(coding) = header("content-encoding").filter(|c| !c.eq_ignore_ascii_case("identity")) {
        let coding: String = coding.chars().take(40).collect();
        return Err(EgressError::Protocol(format!(
            "a body compressed with {coding}, which was not asked for"
        )));
    }
    let (status, content_type) = (answer.status().as_u16(), header("content-type"));
    let mut body = Vec::new();
    let mut truncated = false;
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|e| from_reqwest("the server", Duration::ZERO, e))?;
        let room = limit - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            truncated = true;
            break;
        }
    }
    Ok(Fetched { final_url, status, content_type, body, truncated })
}

#[cfg(test)]
mod tests;
