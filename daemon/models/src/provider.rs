//! Which servers there are.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use hearth_egress::{EndpointPolicy, SecretValue};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// The protocol that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wire {
    /// Ollama's own, `/api/chat`.
    Ollama,
    /// `/v1/chat/completions`: llama-server and most others.
    OpenAi,
    /// `/v1/messages`.
    Anthropic,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ollama => "Ollama",
            Self::OpenAi => "OpenAI-compatible",
            Self::Anthropic => "Anthropic",
        })
    }
}

/// Whether a server stands in the household.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On this machine or in this household.
    Local,
    /// Anywhere else: conversations that must stay at home never go there.
    Remote,
}

impl Place {
    /// A guess from the address: loopback and private addresses, single words
    /// and names that exist in households only are local, all others remote.
    pub fn of(endpoint: &Url) -> Self {
        let local = match endpoint.host() {
            Some(Host::Ipv4(v4)) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
            Some(Host::Ipv6(v6)) => match v6.to_ipv4_mapped() {
                Some(v4) => IpAddr::V4(v4).is_loopback() || v4.is_private(),
                None => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
            },
            Some(Host::Domain(name)) => {
                let name = name.trim_end_matches('.');
                let ends = ["localhost", ".localhost", ".local", ".lan", ".internal", ".home.arpa"];
                !name.contains('.') || ends.iter().any(|end| name.ends_with(end))
            }
            None => false,
        };
        if local { Self::Local } else { Self::Remote }
    }
}

/// How long each phase of a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Opening the connection.
    pub connect: Duration,
    /// From the request to the first token, loading and reading the prompt
    /// included. Signs of life of the server start it anew.
    pub first_token: Duration,
    /// Silence after the first token.
    pub between_tokens: Duration,
    /// Silence after which `Waiting` is reported, again and again.
    pub waiting: Duration,
}

impl Timeouts {
    /// 300 s to the first token for a local server, 60 s for a remote one; the rest is the same.
    pub fn of(place: Place) -> Self {
        let first_token = match place {
            Place::Local => 300,
            Place::Remote => 60,
        };
        Self {
            connect: Duration::from_secs(10),
            first_token: Duration::from_secs(first_token),
            between_tokens: Duration::from_secs(60),
            waiting: Duration::from_secs(5),
        }
    }
}

/// One server with one model.
#[derive(Debug, Clone)]
pub struct Provider {
    /// The name in the configuration; shown in status and logs.
    pub name: String,
    /// Its protocol.
    pub wire: Wire,
    /// Where it stands.
    pub place: Place,
    /// Its address. A path is a prefix; `/v1` at its end may be there or not.
    pub endpoint: Url,
    /// The model, as the server names it.
    pub model: String,
    /// The key, where one is needed.
    pub api_key: Option<SecretValue>,
    /// Size of the context in tokens. Sent to Ollama with every request and
    /// always the same, because a change reloads the model.
    pub context_tokens: u32,
    /// Most tokens of an answer, where it is less than the request asks for.
    pub max_tokens: Option<u32>,
    /// Seconds for which Ollama keeps the model loaded; negative is for ever.
    pub keep_alive_s: i64,
    /// Sampling temperature; not sent when absent.
    pub temperature: Option<f32>,
    /// Limits of time.
    pub timeouts: Timeouts,
}

impl Provider {
    /// A server with the defaults: place guessed from the address, 4,096 tokens
    /// of context, 30 minutes loaded, temperature as the server likes.
    pub fn new(name: impl Into<String>, wire: Wire, endpoint: Url, model: impl Into<String>) -> Self {
        let place = Place::of(&endpoint);
        Self {
            name: name.into(),
            wire,
            place,
            endpoint,
            model: model.into(),
            api_key: None,
            context_tokens: 4096,
            max_tokens: None,
            keep_alive_s: 1800,
            temperature: None,
            timeouts: Timeouts::of(place),
        }
    }

    /// The path of `route` (for example `/v1/models`) under the prefix of the address.
    pub(crate) fn path(&self, route: &str) -> String {
        let prefix = self.endpoint.path().trim_end_matches('/');
        match prefix.strip_suffix("/v1") {
            Some(rest) if route.starts_with("/v1/") => format!("{rest}{route}"),
            _ => format!("{prefix}{route}"),
        }
    }

    /// What the HTTP client may do for this server.
    pub fn policy(&self) -> EndpointPolicy {
        let headers = match (&self.api_key, self.wire) {
            (None, _) => Vec::new(),
            (Some(key), Wire::Anthropic) => vec![("x-api-key".to_owned(), key.clone())],
            (Some(key), _) => vec![("authorization".to_owned(), key.prefixed("Bearer "))],
        };
        EndpointPolicy { base: self.endpoint.clone(), connect: self.timeouts.connect, headers }
    }
}

#[cfg(test)]
mod tests;
