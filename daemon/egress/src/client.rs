//! The client of one configured server.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::error::{EgressError, died_before_answer, from_reqwest};
use crate::secret::SecretValue;
use crate::tls;

/// Which server a [`Client`] may talk to, and how.
#[derive(Debug, Clone)]
pub struct EndpointPolicy {
    /// Scheme, host and port are pinned; the path is ignored. `http` is allowed:
    /// the owner has named this server.
    pub base: Url,
    /// Limit for opening a connection, TLS included.
    pub connect: Duration,
    /// Headers that go with every request, for example an API key.
    pub headers: Vec<(String, SecretValue)>,
}

/// The methods in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// GET, without a body.
    Get,
    /// POST.
    Post,
}

/// A request to the configured server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method.
    pub method: Method,
    /// Absolute path with an optional query, for example `/api/chat`.
    pub path: String,
    /// Headers without secrets.
    pub headers: Vec<(String, String)>,
    /// Body; empty for GET.
    pub body: Vec<u8>,
}

/// The head of an answer with its body still to come.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Header names in lower case with their values; values that are not text are left out.
    pub headers: Vec<(String, String)>,
    /// The body. Dropping it closes the connection unless it was read to its end.
    pub body: Body,
}

impl Response {
    /// The first header of that name (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// A streaming body.
pub struct Body(BoxStream<'static, Result<Bytes, EgressError>>);

impl Body {
    /// A body from any stream; tests use it in place of a connection.
    pub fn new(stream: impl Stream<Item = Result<Bytes, EgressError>> + Send + 'static) -> Self {
        Self(stream.boxed())
    }

    /// Reads at most `limit` bytes; the flag says whether there was more.
    pub async fn read(mut self, limit: usize) -> Result<(Vec<u8>, bool), EgressError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            let room = limit - all.len();
            all.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                return Ok((all, true));
            }
        }
        Ok((all, false))
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Body")
    }
}

impl Stream for Body {
    type Item = Result<Bytes, EgressError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

/// A client that can reach one server only.
///
/// It follows no redirects, uses no proxy, sends no `Origin` and no `Referer`,
/// and has no time-out after the connection is open: the caller knows how long
/// a model may think. Dropping the future or the body ends the connection.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    peer: String,
    connect: Duration,
}

impl Client {
    /// A client for the server that `policy` names.
    pub fn for_endpoint(policy: EndpointPolicy) -> Result<Self, EgressError> {
        let mut base = policy.base;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(EgressError::BadUrl(format!("{} is not http or https", base.scheme())));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(EgressError::BadUrl("user name or password in the address".into()));
        }
        let host = base.host_str().ok_or_else(|| EgressError::BadUrl("no host".into()))?;
        let peer = format!("{host}:{}", base.port_or_known_default().unwrap_or(0));
        base.set_path("/");
        base.set_query(None);
        base.set_fragment(None);
        let mut headers = HeaderMap::new();
        for (name, value) in &policy.headers {
            let bad = || EgressError::BadUrl(format!("header {name} is not sendable"));
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| bad())?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        let http = builder(policy.connect)
            .default_headers(headers)
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(2)
            .build()
            .map_err(|e| from_reqwest(&peer, policy.connect, e))?;
        Ok(Self { http, base, peer, connect: policy.connect })
    }

    /// Host and port of the server.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Sends a request and returns when the head of the answer is there.
    ///
    /// Idle connections of the pool may be dead (llama-server drops them after
    /// five seconds): a request that dies before any byte of an answer is sent
    /// once more.
    pub async fn send(&self, request: Request) -> Result<Response, EgressError> {
        let url = self.url(&request.path)?;
        let body = Bytes::from(request.body);
        let once = || {
            let method = match request.method {
                Method::Get => reqwest::Method::GET,
                Method::Post => reqwest::Method::POST,
            };
            let mut r = self.http.request(method, url.clone());
            for (name, value) in &request.headers {
                r = r.header(name, value);
            }
            if request.method == Method::Post {
                r = r.body(body.clone());
            }
            r.send()
        };
        let answer = match once().await {
            Err(e) if died_before_answer(&e) => once().await,
            other => other,
        };
        let answer = answer.map_err(|e| from_reqwest(&self.peer, self.connect, e))?;
        let status = answer.status().as_u16();
        let headers = text_headers(answer.headers());
        let (peer, connect) = (self.peer.clone(), self.connect);
        let body =
            Body::new(answer.bytes_stream().map(move |c| c.map_err(|e| from_reqwest(&peer, connect, e))));
        Ok(Response { status, headers, body })
    }

    /// The pinned server with another path; anything that would lead elsewhere is refused.
    fn url(&self, path: &str) -> Result<Url, EgressError> {
        if !path.starts_with('/') || path.starts_with("//") || path.contains('\\') {
            return Err(EgressError::BadUrl("the path must begin with one slash".into()));
        }
        let url = self.base.join(path).map_err(|e| EgressError::BadUrl(e.to_string()))?;
        if url.origin() != self.base.origin() {
            return Err(EgressError::Refused("the path leads to another server".into()));
        }
        Ok(url)
    }
}

/// What both clients have in common.
#[expect(clippy::disallowed_methods, reason = "the one place that builds clients")]
pub(crate) fn builder(connect: Duration) -> reqwest::ClientBuilder {
    tls::install_tls();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls::config())
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .http1_only()
        .http1_max_headers(64)
        .connect_timeout(connect)
        .user_agent(concat!("Hearth/", env!("CARGO_PKG_VERSION")))
}

pub(crate) fn text_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().filter_map(|(n, v)| Some((n.as_str().to_owned(), v.to_str().ok()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests;
