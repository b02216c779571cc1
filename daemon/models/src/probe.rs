//! Looks at the servers for status and doctor.

use std::time::Duration;

use futures_util::future::join_all;
use hearth_egress::{EgressError, Method};
use hearth_turn::ModelFailure;
use serde_json::Value;
use tokio::time::timeout;

use crate::driver::Models;
use crate::endpoint::{Endpoint, unreachable};
use crate::failure::{classify, shorten};
use crate::provider::{Provider, Wire};
use crate::wire::HttpRequest;

/// Bytes of an answer that are read.
const BODY: usize = 1024 * 1024;
/// Time for one question.
const TIME: Duration = Duration::from_secs(10);

/// What a server turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerKind {
    /// Ollama, with its version.
    Ollama(String),
    /// A server that lists its models at `/v1/models`.
    OpenAiCompatible,
    /// The same, configured with the Anthropic protocol.
    Anthropic,
    /// Something answers, and it is neither.
    Unknown,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The provider's name.
    pub name: String,
    /// Host and port, without anything secret.
    pub endpoint: String,
    /// The configured protocol.
    pub wire: Wire,
    /// The configured model.
    pub model: String,
    /// What answers there, or why nothing does.
    pub server: Result<ServerKind, ModelFailure>,
    /// Whether the server has the model; `None` where it could not be asked.
    pub model_present: Option<bool>,
    /// Largest context that the model or the running server allows, in tokens.
    pub context_tokens: Option<u64>,
    /// Whether the model can call tools, where the server says so.
    pub tools: Option<bool>,
}

impl Models {
    /// Asks all servers at the same time; takes 30 seconds at most. Costs no tokens.
    pub async fn probe(&self) -> Vec<ProbeReport> {
        join_all(self.endpoints.iter().map(probe)).await
    }
}

async fn probe(endpoint: &Endpoint) -> ProbeReport {
    let provider = &endpoint.provider;
    let host = provider.endpoint.host_str().unwrap_or_default();
    let mut report = ProbeReport {
        name: provider.name.clone(),
        endpoint: format!("{host}:{}", provider.endpoint.port_or_known_default().unwrap_or(0)),
        wire: provider.wire,
        model: provider.model.clone(),
        server: Ok(ServerKind::Unknown),
        model_present: None,
        context_tokens: None,
        tools: None,
    };
    // Only Ollama knows this route, so the answer tells the two apart.
    if provider.wire != Wire::Anthropic {
        match get(endpoint, "/api/version").await {
            Ok(Ok(v)) if v.get("version").is_some_and(Value::is_string) => {
                let version = v["version"].as_str().unwrap_or_default();
                report.server = Ok(ServerKind::Ollama(shorten(version, 40)));
                ollama(endpoint, &mut report).await;
                return report;
            }
            Ok(_) => {}
            Err(failure) => {
                report.server = Err(failure);
                return report;
            }
        }
    }
    match get(endpoint, "/v1/models").await {
        Ok(Ok(list)) => {
            report.server = Ok(match provider.wire {
                Wire::Anthropic => ServerKind::Anthropic,
                Wire::Ollama | Wire::OpenAi => ServerKind::OpenAiCompatible,
            });
            openai(provider, &list, &mut report);
        }
        Ok(Err(failure @ (ModelFailure::Unauthorised(_) | ModelFailure::Busy { .. }))) | Err(failure) => {
            report.server = Err(failure)
        }
        Ok(Err(_)) => {}
    }
    report
}

async fn ollama(endpoint: &Endpoint, report: &mut ProbeReport) {
    let Ok(Ok(tags)) = get(endpoint, "/api/tags").await else { return };
    let models = tags.get("models").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // "x" means "x:latest".
    let wanted = &endpoint.provider.model;
    let full = if wanted.contains(':') { wanted.clone() } else { format!("{wanted}:latest") };
    let found = models.iter().find(|m| m.get("name").and_then(Value::as_str) == Some(full.as_str()));
    report.model_present = Some(found.is_some());
    let Some(found) = found else { return };
    report.context_tokens = found.pointer("/details/context_length").and_then(Value::as_u64);
    report.tools = found
        .get("capabilities")
        .and_then(Value::as_array)
        .map(|all| all.iter().any(|c| c.as_str() == Some("tools")));
}

fn openai(provider: &Provider, list: &Value, report: &mut ProbeReport) {
    let models = list.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let named = |m: &&Value| m.get("id").and_then(Value::as_str) == Some(provider.model.as_str());
    let found = models.iter().find(named);
    // llama-server has one model and takes any name; `meta` is its mark.
    let only = models.first().filter(|m| models.len() == 1 && m.get("meta").is_some());
    report.model_present = Some(found.or(only).is_some());
    report.context_tokens = found
        .or(only)
        .and_then(|m| m.pointer("/meta/n_ctx").or(m.pointer("/meta/n_ctx_train")))
        .and_then(Value::as_u64);
}

/// Asks for JSON. The outer error: nothing answers; the inner one: a refusal.
async fn get(endpoint: &Endpoint, route: &str) -> Result<Result<Value, ModelFailure>, ModelFailure> {
    let provider = &endpoint.provider;
    let headers = match provider.wire {
        Wire::Anthropic => vec![("anthropic-version".to_owned(), "2023-06-01".to_owned())],
        _ => Vec::new(),
    };
    let request = HttpRequest { method: Method::Get, path: provider.path(route), headers, body: Vec::new() };
    let ask = async {
        let answer = endpoint.transport.send(request).await?;
        let status = answer.status;
        Ok::<_, EgressError>((status, answer.body.read(BODY).await?.0))
    };
    let (status, body) = match timeout(TIME, ask).await {
        Err(_) => return Err(ModelFailure::TimedOut(format!("no answer within {} s", TIME.as_secs()))),
        Ok(Err(e)) => return Err(unreachable(e)),
        Ok(Ok(answer)) => answer,
    };
    if status != 200 {
        return Ok(Err(endpoint.redact(classify(&provider.model, status, None, &body).failure)));
    }
    Ok(serde_json::from_slice(&body).map_err(|_| ModelFailure::Malformed("not JSON".into())))
}
