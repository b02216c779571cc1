//! One server: a request with its time-outs and retries.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use hearth_egress::{Body, EgressError, Phase, Response};
use hearth_turn::{ModelEvent, ModelFailure, ModelRequest};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::breaker::Breaker;
use crate::driver::Transport;
use crate::failure::{Retry, classify};
use crate::provider::{Provider, Wire};
use crate::wire::{Decoder, HttpRequest, build_request};

/// Bytes of an error's body that are read.
const ERROR_BODY: usize = 64 * 1024;
/// Time for reading an error's body.
const ERROR_TIME: Duration = Duration::from_secs(10);
/// Further tries of a request that was refused for now.
const RETRIES: u32 = 2;

pub(crate) struct Endpoint {
    pub(crate) provider: Provider,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) breaker: Mutex<Breaker>,
}

impl Endpoint {
    pub(crate) fn breaker<T>(&self, act: impl FnOnce(&mut Breaker) -> T) -> T {
        act(&mut self.breaker.lock().unwrap_or_else(PoisonError::into_inner))
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
    pub(crate) async fn ask(
        &self,
        request: &ModelRequest,
        others: bool,
        out: &mut Outlet,
    ) -> Option<ModelFailure> {
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
pub(crate) struct Outlet {
    tx: mpsc::Sender<ModelEvent>,
    last: Instant,
}

impl Outlet {
    pub(crate) fn new(tx: mpsc::Sender<ModelEvent>) -> Self {
        Self { tx, last: Instant::now() }
    }

    pub(crate) async fn send(&mut self, event: ModelEvent) {
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
