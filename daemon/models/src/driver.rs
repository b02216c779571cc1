//! Asks the servers in order and reports one stream of events.

use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use hearth_egress::{Client, EgressError, Response};
use hearth_turn::{ModelEvent, ModelFailure, ModelRequest};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::breaker::Permit;
use crate::endpoint::{Endpoint, Outlet};
use crate::provider::{Place, Provider};
use crate::size::fit;
use crate::wire::HttpRequest;

/// Events that wait for a slow reader.
const QUEUE: usize = 64;
/// How a request reaches a server. The real one is the HTTP client; a test puts
/// another in its place.
pub trait Transport: Send + Sync {
    /// Sends a request; returns when the head of the answer is there.
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<Response, EgressError>>;
}

impl Transport for Client {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<Response, EgressError>> {
        Box::pin(Client::send(self, request))
    }
}

/// The request as it fits a server's context and limit of an answer.
fn fitted(request: &ModelRequest, provider: &Provider) -> ModelRequest {
    let max_tokens = provider.max_tokens.map_or(request.max_tokens, |most| most.min(request.max_tokens));
    let fitted = fit(ModelRequest { max_tokens, ..request.clone() }, provider.context_tokens);
    if fitted.dropped > 0 {
        log::info!("{}: the oldest {} exchanges do not fit the context", provider.name, fitted.dropped);
    }
    fitted.request
}

/// What a conversation demands of the choice of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatOptions {
    /// Never ask a server outside of the household. On by default.
    pub local_only: bool,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { local_only: true }
    }
}

/// The model servers in the order in which they are asked.
#[derive(Clone)]
pub struct Models {
    pub(crate) endpoints: Arc<[Endpoint]>,
    tasks: TaskTracker,
}

impl Models {
    /// Clients for the servers; fails when an address or a key cannot be used.
    pub fn new(providers: Vec<Provider>) -> Result<Self, EgressError> {
        let pair =
            |p: Provider| Ok((p.clone(), Arc::new(Client::for_endpoint(p.policy())?) as Arc<dyn Transport>));
        Ok(Self::with_transports(providers.into_iter().map(pair).collect::<Result<_, EgressError>>()?))
    }

    /// The same over other transports.
    pub fn with_transports(servers: Vec<(Provider, Arc<dyn Transport>)>) -> Self {
        let endpoint = |(provider, transport)| Endpoint { provider, transport, breaker: Mutex::default() };
        Self { endpoints: servers.into_iter().map(endpoint).collect(), tasks: TaskTracker::new() }
    }

    /// The servers that may be asked, in order.
    pub fn providers(&self, options: ChatOptions) -> impl Iterator<Item = &Provider> {
        self.allowed(options).map(|e| &e.provider)
    }

    fn allowed(&self, options: ChatOptions) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(move |e| !options.local_only || e.provider.place == Place::Local)
    }

    /// Asks for a streamed answer. Needs a running tokio runtime.
    ///
    /// The last event is `Finished` or `Failed`. `Waiting` comes after every
    /// five seconds of silence. The next server in the list is asked only when
    /// one cannot be reached, is busy, fails or is silent for too long, and only
    /// while no text was delivered. When `cancel` fires or the receiver is
    /// dropped, the connection is closed at once and the channel ends without a
    /// last event.
    pub fn chat(
        &self,
        request: ModelRequest,
        options: ChatOptions,
        cancel: CancellationToken,
    ) -> mpsc::Receiver<ModelEvent> {
        let (tx, rx) = mpsc::channel(QUEUE);
        let models = self.clone();
        self.tasks.spawn(async move {
            let gone = tx.clone();
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = gone.closed() => {}
                () = models.run(&request, options, Outlet::new(tx)) => {}
            }
        });
        rx
    }

    /// Waits until all requests have ended; cancel them first.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Asks the local Ollama servers to load their models, so that the first
    /// question does not have to wait for it. Failures are logged only.
    pub async fn warm_up(&self) {
        for endpoint in self.allowed(ChatOptions::default()) {
            let Some(request) = crate::wire::warm_up(&endpoint.provider) else { continue };
            let limit = endpoint.provider.timeouts.first_token;
            match timeout(limit, endpoint.transport.send(request)).await {
                Ok(Ok(answer)) => {
                    log::info!("{}: warm-up ended with {}", endpoint.provider.name, answer.status)
                }
                Ok(Err(e)) => log::warn!("{}: warm-up failed: {e}", endpoint.provider.name),
                Err(_) => log::warn!("{}: warm-up took longer than {limit:?}", endpoint.provider.name),
            }
        }
    }

    async fn run(&self, request: &ModelRequest, options: ChatOptions, mut out: Outlet) {
        let allowed: Vec<&Endpoint> = self.allowed(options).collect();
        let mut last = None;
        for (i, endpoint) in allowed.iter().enumerate() {
            if endpoint.breaker(|b| b.permit(Instant::now())) == Permit::No {
                continue;
            }
            let others = allowed[i + 1..].iter().any(|e| e.breaker(|b| b.open_until()).is_none());
            match endpoint.ask(&fitted(request, &endpoint.provider), others, &mut out).await {
                Some(failure) => last = Some(failure),
                None => return,
            }
        }
        if last.is_none() {
            // All are resting: the one that is due first is tried anyway, since
            // a person waits for the answer.
            let next = allowed.iter().min_by_key(|e| e.breaker(|b| b.open_until()));
            match next {
                Some(endpoint) => {
                    match endpoint.ask(&fitted(request, &endpoint.provider), false, &mut out).await {
                        Some(failure) => last = Some(failure),
                        None => return,
                    }
                }
                None => {
                    let why = if self.endpoints.is_empty() {
                        "no model server is configured"
                    } else {
                        "this conversation stays in the home, and no model server there is configured"
                    };
                    last = Some(ModelFailure::Rejected(why.into()));
                }
            }
        }
        if let Some(failure) = last {
            out.send(ModelEvent::Failed(failure)).await;
        }
    }
}
