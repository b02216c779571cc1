//! Asks the servers in order and reports one stream of events.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use hearth_egress::{Body, Client, EgressError, Phase, Response};
use hearth_turn::{ModelEvent, ModelFailure, ModelRequest};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::breaker::{Breaker, Permit};
use crate::failure::{Retry, classify};
use crate::provider::{Place, Provider, Wire};
use crate::wire::{Decoder, HttpRequest, build_request};

/// Events that wait for a slow reader.
const QUEUE: usize = 64;
/// Bytes of an error's body that are read.
const ERROR_BODY: usize = 64 * 1024;
/// Time for reading an error's body.
const ERROR_TIME: Duration = Duration::from_secs(10);
/// Further tries of a request that was refused for now.
const RETRIES: u32 = 2;

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

pub(crate) struct Endpoint {
    pub(crate) provider: Provider,
    pub(crate) transport: Arc<dyn Transport>,
    breaker: Mutex<Breaker>,
}

impl Endpoint {
    fn breaker<T>(&self, act: impl FnOnce(&mut Breaker) -> T) -> T {
        act(&mut self.breaker.lock().unwrap_or_else(PoisonError::into_inner))
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
            match endpoint.ask(request, others, &mut out).await {
                Some(failure) => last = Some(failure),
                None => return,
            }
        }
        if last.is_none() {
            // All are resting: the one that is due first is tried anyway, since
            // a person waits for the answer.
            let next = allowed.iter().min_by_key(|e| e.breaker(|b| b.open_until()));
            match next {
                Some(endpoint) => match endpoint.ask(request, false, &mut out).await {
                    Some(failure) => last = Some(failure),
                    None => return,
                },
                None => {
                    let why = if self.endpoints.is_empty() {
                        "no model server is configured"
                    } else {
                        "this conversation stays in the household, and no local model server is configured"
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

/// How one request ended.
enum End {
    Answered,
    Failed { failure: ModelFailure, retry: Retry, delivered: bool },
}

impl Endpoint {
    /// Asks this server, with retries. `None`: the last event was sent. Else the
    /// failure with which the next server may be asked.
    async fn ask(&self, request: &ModelRequest, others: bool, out: &mut Outlet) -> Option<ModelFailure> {
        let http = build_request(&self.provider, request);
        let budget = Instant::now() + self.provider.timeouts.first_token;
        let (mut loads, mut retries) = (0, 0);
        loop {
            let (failure, retry, delivered) = match self.attempt(http.clone(), request, out).await {
                End::Answered => {
                    self.breaker(Breaker::success);
                    return None;
                }
                End::Failed { failure, retry, delivered } => (self.redact(failure), retry, delivered),
            };
            log::warn!("{}: {failure}", self.provider.name);
            let wait = match (&failure, retry) {
                _ if delivered => None,
                (_, Retry::Loading) => {
                    loads += 1;
                    Some(Duration::from_millis(500 * loads).min(Duration::from_secs(5)))
                }
                (ModelFailure::Busy { retry_after_s, .. }, Retry::Later) if !others && retries < RETRIES => {
                    retries += 1;
                    let least = Duration::from_secs(retry_after_s.unwrap_or(0));
                    Some(least + jitter(Duration::from_secs(1 << (retries - 1))))
                }
                _ => None,
            };
            if let Some(wait) = wait.filter(|w| Instant::now() + *w < budget) {
                out.send(ModelEvent::Waiting).await;
                sleep(wait).await;
                continue;
            }
            let servers_fault = matches!(
                failure,
                ModelFailure::Unreachable(_)
                    | ModelFailure::TimedOut(_)
                    | ModelFailure::Busy { .. }
                    | ModelFailure::Incomplete(_)
            );
            if servers_fault {
                self.breaker(|b| b.failure(Instant::now()));
            } else {
                self.breaker(Breaker::success);
            }
            if servers_fault && !delivered {
                return Some(failure);
            }
            out.send(ModelEvent::Failed(failure)).await;
            return None;
        }
    }

    async fn attempt(&self, http: HttpRequest, request: &ModelRequest, out: &mut Outlet) -> End {
        let times = &self.provider.timeouts;
        let failed = |failure, retry| End::Failed { failure, retry, delivered: false };
        let late = |what: &str, limit: Duration| {
            failed(ModelFailure::TimedOut(format!("{what} {} s", limit.as_secs())), Retry::Never)
        };
        let head = patient(self.transport.send(http), Instant::now() + times.first_token, times.waiting, out);
        let answer = match head.await {
            None => return late("no token within", times.first_token),
            Some(Err(e)) => return failed(unreachable(e), Retry::Never),
            Some(Ok(answer)) => answer,
        };
        if answer.status != 200 {
            return self.refused(answer).await;
        }
        if answer.header("content-type").is_some_and(|t| t.starts_with("text/html")) {
            let why = "a web page in place of an answer";
            return failed(ModelFailure::Malformed(why.into()), Retry::Never);
        }
        self.stream(answer.body, request, out).await
    }

    async fn refused(&self, answer: Response) -> End {
        let retry_after = answer.header("retry-after").and_then(|v| v.trim().parse().ok());
        let status = answer.status;
        let body = timeout(ERROR_TIME, answer.body.read(ERROR_BODY)).await;
        let body = body.ok().and_then(Result::ok).map(|(b, _)| b).unwrap_or_default();
        let refusal = classify(&self.provider.model, status, retry_after, &body);
        if let Some(id) = &refusal.request_id {
            log::warn!("{}: status {status} for request {id}", self.provider.name);
        }
        End::Failed { failure: refusal.failure, retry: refusal.retry, delivered: false }
    }

    async fn stream(&self, mut body: Body, request: &ModelRequest, out: &mut Outlet) -> End {
        let times = &self.provider.timeouts;
        let mut decoder = Decoder::new(self.provider.wire, &self.provider.model, &request.tools);
        let mut delivered = false;
        loop {
            let (what, limit) = match decoder.started() {
                false => ("no token within", times.first_token),
                true => ("silent for", times.between_tokens),
            };
            let next = patient(body.next(), Instant::now() + limit, times.waiting, out).await;
            let events = match next {
                None => {
                    let failure = ModelFailure::TimedOut(format!("{what} {} s", limit.as_secs()));
                    return End::Failed { failure, retry: Retry::Never, delivered };
                }
                Some(Some(Ok(bytes))) => decoder.push(&bytes),
                Some(Some(Err(e))) => decoder.finish_broken(&e.to_string()),
                Some(None) => decoder.finish(),
            };
            for event in events {
                match event {
                    ModelEvent::Failed(failure) => {
                        let retry = match failure {
                            ModelFailure::Busy { .. } => Retry::Later,
                            _ => Retry::Never,
                        };
                        return End::Failed { failure, retry, delivered };
                    }
                    ModelEvent::Finished { usage, .. } => {
                        self.warn_if_cut(usage.prompt_tokens);
                        out.send(event).await;
                        return End::Answered;
                    }
                    ModelEvent::Waiting => out.waiting(times.waiting).await,
                    _ => {
                        delivered |= matches!(event, ModelEvent::Text(_) | ModelEvent::Call { .. });
                        out.send(event).await;
                    }
                }
            }
        }
    }

    /// An old Ollama ignores that the prompt must not be cut; a full context is the only trace.
    fn warn_if_cut(&self, prompt_tokens: u64) {
        let Provider { name, wire, context_tokens, .. } = &self.provider;
        if *wire == Wire::Ollama && prompt_tokens >= u64::from(*context_tokens) {
            log::warn!(
                "{name}: the prompt fills all {context_tokens} tokens of the context, so the server cut it"
            );
        }
    }

    /// A server may repeat the key in its answer; nobody is to read it.
    pub(crate) fn redact(&self, failure: ModelFailure) -> ModelFailure {
        let Some(key) = &self.provider.api_key else { return failure };
        use ModelFailure as F;
        match failure {
            F::Unreachable(t) => F::Unreachable(key.redact(&t)),
            F::TimedOut(t) => F::TimedOut(key.redact(&t)),
            F::Busy { message, retry_after_s } => F::Busy { message: key.redact(&message), retry_after_s },
            F::Unauthorised(t) => F::Unauthorised(key.redact(&t)),
            F::Rejected(t) => F::Rejected(key.redact(&t)),
            F::Incomplete(t) => F::Incomplete(key.redact(&t)),
            F::Malformed(t) => F::Malformed(key.redact(&t)),
            other @ (F::ContextOverflow { .. } | F::ModelNotFound(_) | F::ToolsUnsupported(_)) => other,
        }
    }
}

/// Where events go; knows since when it has been silent.
struct Outlet {
    tx: mpsc::Sender<ModelEvent>,
    last: Instant,
}

impl Outlet {
    fn new(tx: mpsc::Sender<ModelEvent>) -> Self {
        Self { tx, last: Instant::now() }
    }

    async fn send(&mut self, event: ModelEvent) {
        // A reader that is gone ends the whole task; nothing is to be done here.
        let _ = self.tx.send(event).await;
        self.last = Instant::now();
    }

    /// Says "waiting" unless something was said a moment ago.
    async fn waiting(&mut self, pause: Duration) {
        if self.last.elapsed() >= pause {
            self.send(ModelEvent::Waiting).await;
        }
    }
}

/// Waits for `work` until `deadline` and says so while it takes.
async fn patient<F: Future>(
    work: F,
    deadline: Instant,
    pause: Duration,
    out: &mut Outlet,
) -> Option<F::Output> {
    let mut work = std::pin::pin!(work);
    loop {
        let next = (out.last + pause).min(deadline);
        if let Ok(done) = timeout_at(next, work.as_mut()).await {
            return Some(done);
        }
        if Instant::now() >= deadline {
            return None;
        }
        out.waiting(pause).await;
    }
}

pub(crate) fn unreachable(error: EgressError) -> ModelFailure {
    match error {
        EgressError::TimedOut { phase: phase @ (Phase::Connect | Phase::Resolve), limit } => {
            ModelFailure::TimedOut(format!("{phase} took more than {} s", limit.as_secs()))
        }
        EgressError::Protocol(_) | EgressError::BadUrl(_) | EgressError::Refused(_) => {
            ModelFailure::Malformed(error.to_string())
        }
        other => ModelFailure::Unreachable(other.to_string()),
    }
}

/// Between one and one and a half times `base`, so that clients do not return in step.
fn jitter(base: Duration) -> Duration {
    let part = RandomState::new().hash_one(0) % 512;
    base + base * u32::try_from(part).unwrap_or(0) / 1024
}
