//! One connection: requests in, answers out.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hearth_contract::{
    ChannelEvent, ChannelName, Control, ControlRequest, Gateway, Inbound, Refusal, RefusalKind, Ticket,
};
use hearth_scope::Origin;
use hearth_turn::TurnOutcome;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::frame::{Decoder, FrameError, REQUEST, RESPONSE, encode, parse};
use crate::protocol::{FromClient, FromServer, NEWEST, OLDEST, negotiate};
use crate::server::Policy;

/// Frames that wait for a client to take them.
const QUEUE: usize = 16;
/// Bytes that are read at once.
const CHUNK: usize = 16 * 1024;

/// Time for a client to read that the daemon stops.
const PARTING: Duration = Duration::from_secs(1);

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) gateway: Arc<dyn Gateway>,
    pub(crate) control: Arc<dyn Control>,
    pub(crate) policy: Policy,
    pub(crate) shutdown: CancellationToken,
}

/// Why a connection ends.
enum End {
    /// The client went away, or does not read.
    Left,
    /// We end it and say why.
    Refused(Refusal),
    /// The daemon stops: nothing is under way any more, or the time for it is over.
    Stopped,
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        let kind = match error {
            FrameError::TooLarge { .. } => RefusalKind::TooLarge,
            _ => RefusalKind::Malformed,
        };
        let remedy = "Use the `hearth` program that was installed together with the daemon.";
        Self::Refused(Refusal::new(kind, format!("the console received {error}"), remedy))
    }
}

/// Serves one client to the end.
pub(crate) async fn run<S>(stream: S, uid: u32, origin: Origin, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(stream);
    let (out, queue) = mpsc::channel(QUEUE);
    let gone = CancellationToken::new();
    let mut writing = JoinSet::new();
    writing.spawn(write(writer, queue, shared.policy.write, gone.clone()));

    let mut connection = Connection {
        uid,
        origin,
        out,
        gone,
        greeted: false,
        open: HashMap::new(),
        tasks: JoinSet::new(),
        shared: shared.clone(),
    };
    let end = connection.serve(reader).await;
    if shared.policy.cancel_on_disconnect || matches!(end, End::Stopped) {
        connection.open.values().for_each(CancellationToken::cancel);
    }
    // Who still forwards events stops here; the turns go on or end on their own.
    connection.tasks.shutdown().await;
    let parting = match end {
        // Nobody is there to read what is still in the queue.
        End::Left => {
            log::debug!("console connection of user id {uid} ended");
            return;
        }
        End::Refused(refusal) => {
            log::warn!("console connection of user id {uid} closed: {}", refusal.what);
            (refusal, shared.policy.write)
        }
        End::Stopped => (stopping(), PARTING),
    };
    let (refusal, limit) = parting;
    let _ = timeout(limit, async {
        let _ = connection.out.send(FromServer::Refused { id: None, refusal }).await;
        // The writer ends when the last sender is gone.
        drop(connection);
        while writing.join_next().await.is_some() {}
    })
    .await;
}

/// Writes frames until there are no more, or the client does not take one.
async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<FromServer>,
    limit: Duration,
    gone: CancellationToken,
) {
    while let Some(message) = queue.recv().await {
        let frame = match (encode(&message, RESPONSE.bytes), &message) {
            (Ok(frame), _) => Ok(frame),
            (Err(error), FromServer::Result { id, .. }) => {
                let remedy = "Ask for fewer rows.";
                let refusal = Refusal::new(RefusalKind::TooLarge, format!("the answer is {error}"), remedy);
                encode(&FromServer::Refused { id: Some(*id), refusal }, RESPONSE.bytes)
            }
            (Err(error), _) => Err(error),
        };
        let written = match frame {
            Ok(frame) => timeout(limit, writer.write_all(&frame)).await,
            Err(_) => break,
        };
        if !matches!(written, Ok(Ok(()))) {
            break;
        }
    }
    let _ = timeout(limit, writer.shutdown()).await;
    gone.cancel();
}

struct Connection {
    uid: u32,
    origin: Origin,
    out: mpsc::Sender<FromServer>,
    /// Cancelled when nothing can be written any more.
    gone: CancellationToken,
    greeted: bool,
    /// Requests under way, with what cancels them.
    open: HashMap<u64, CancellationToken>,
    /// One task per request; each returns its number.
    tasks: JoinSet<u64>,
    shared: Arc<Shared>,
}

impl Connection {
    async fn serve(&mut self, mut reader: impl AsyncRead + Unpin) -> End {
        let shared = self.shared.clone();
        let policy = &shared.policy;
        let mut decoder = Decoder::new(REQUEST.bytes);
        let mut chunk = vec![0; CHUNK];
        let mut quiet_since = Instant::now();
        let mut begun = Some(quiet_since);
        let mut drained_at = None;
        loop {
            if drained_at.is_some() && self.open.is_empty() {
                return End::Stopped;
            }
            // The first frame counts as begun from the start.
            let deadline = match (begun, drained_at) {
                (_, Some(drained)) => Some(drained),
                (Some(begun), _) => Some(begun + policy.frame),
                (None, _) if self.open.is_empty() => Some(quiet_since + policy.idle),
                (None, _) => None,
            };
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return End::Left,
                () = shared.shutdown.cancelled(), if drained_at.is_none() => {
                    drained_at = Some(Instant::now() + policy.drain);
                }
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Ok(id) = ended {
                        self.open.remove(&id);
                    }
                    quiet_since = Instant::now();
                }
                () = until(deadline), if deadline.is_some() => {
                    return if drained_at.is_some() { End::Stopped } else { timed_out(begun.is_some()) };
                }
                read = reader.read(&mut chunk) => match read {
                    Ok(0) | Err(_) => return End::Left,
                    Ok(length) => {
                        decoder.push(&chunk[..length]);
                        let mut whole = false;
                        loop {
                            let message = match decoder.next_frame() {
                                Ok(Some(frame)) => parse(frame, REQUEST),
                                Ok(None) => break,
                                Err(error) => Err(error),
                            };
                            let handled = match message {
                                Ok(message) => self.handle(message).await,
                                Err(error) => Err(error.into()),
                            };
                            if let Err(end) = handled {
                                return end;
                            }
                            whole = true;
                        }
                        if whole {
                            quiet_since = Instant::now();
                            begun = None;
                        }
                        if decoder.has_begun() {
                            begun = begun.or_else(|| Some(Instant::now()));
                        }
                    }
                },
            }
        }
    }

    async fn handle(&mut self, message: FromClient) -> Result<(), End> {
        match message {
            FromClient::Hello { protocol, oldest, client } if !self.greeted => {
                let theirs = (oldest.unwrap_or(protocol), protocol);
                let protocol = negotiate((OLDEST, NEWEST), theirs).map_err(End::Refused)?;
                self.greeted = true;
                let client: String = client.chars().filter(|c| !c.is_control()).take(64).collect();
                log::debug!("console connection of user id {} by {client}", self.uid);
                let server = self.shared.policy.server.clone();
                self.send(FromServer::Hello { protocol, server }).await
            }
            _ if !self.greeted => Err(End::Refused(malformed("a request before hello"))),
            FromClient::Hello { .. } => Err(End::Refused(malformed("a second hello"))),
            FromClient::Cancel { id } => {
                if let Some(cancel) = self.open.get(&id) {
                    cancel.cancel();
                }
                Ok(())
            }
            FromClient::Ask { id, .. } | FromClient::Control { id, .. } => {
                // A number in use would mix two answers up.
                if self.open.contains_key(&id) {
                    return Err(End::Refused(malformed("a request number that is in use")));
                }
                match self.start(message).await {
                    Ok(()) => Ok(()),
                    Err(refusal) => self.send(FromServer::Refused { id: Some(id), refusal }).await,
                }
            }
        }
    }

    /// Starts a request, or says why not.
    async fn start(&mut self, message: FromClient) -> Result<(), Refusal> {
        let shared = self.shared.clone();
        if shared.shutdown.is_cancelled() {
            return Err(stopping());
        }
        if self.open.len() >= shared.policy.requests {
            let what = format!("{} requests are under way on this connection", self.open.len());
            return Err(Refusal::new(RefusalKind::Busy, what, "Wait for one of them."));
        }
        let origin = self.origin.clone();
        let out = self.out.clone();
        match message {
            FromClient::Ask { id, conversation, text, external_id } => {
                let channel = ChannelName::console();
                let inbound = Inbound { origin, channel, external_id, conversation, text };
                inbound.check(shared.policy.text_max)?;
                // Awaited here and not in the task, so that messages keep their order.
                let ticket = timeout(shared.policy.request, shared.gateway.submit(inbound))
                    .await
                    .map_err(|_| too_slow())??;
                self.open.insert(id, ticket.cancel.clone());
                self.tasks.spawn(forward(id, ticket, out));
            }
            FromClient::Control { id, request } => {
                request.check()?;
                self.open.insert(id, CancellationToken::new());
                self.tasks.spawn(answer(id, origin, request, shared, out));
            }
            FromClient::Hello { .. } | FromClient::Cancel { .. } => {}
        }
        Ok(())
    }

    async fn send(&self, message: FromServer) -> Result<(), End> {
        self.out.send(message).await.map_err(|_| End::Left)
    }
}

/// Shows the events of a turn up to its outcome. What a faulty gateway sends
/// after that is not shown, and where it sends none, one is made.
async fn forward(id: u64, mut ticket: Ticket, out: mpsc::Sender<FromServer>) -> u64 {
    loop {
        let (message, last) = match ticket.events.recv().await {
            Some(ChannelEvent::Accepted { message, duplicate }) => {
                (FromServer::Accepted { id, message, duplicate }, false)
            }
            Some(ChannelEvent::Stream(event)) => (FromServer::Event { id, event }, false),
            Some(ChannelEvent::Finished(outcome)) => (FromServer::Finished { id, outcome }, true),
            Some(ChannelEvent::Postponed) => {
                (FromServer::Refused { id: Some(id), refusal: postponed() }, true)
            }
            None => {
                log::error!("the turn of message {} ended without an outcome", ticket.message);
                let outcome = TurnOutcome::Failed {
                    error: "The turn ended without an outcome.".to_owned(),
                    remedy: "Ask again; `hearth audit tail` shows what was done.".to_owned(),
                    tool_calls: 0,
                };
                (FromServer::Finished { id, outcome }, true)
            }
        };
        if out.send(message).await.is_err() || last {
            return id;
        }
    }
}

fn postponed() -> Refusal {
    Refusal::new(
        RefusalKind::ShuttingDown,
        "the daemon is stopping; this message is kept and answered when it is back",
        "Do not send it again: `hearth chat` shows the answer then.",
    )
}

async fn answer(
    id: u64,
    origin: Origin,
    request: ControlRequest,
    shared: Arc<Shared>,
    out: mpsc::Sender<FromServer>,
) -> u64 {
    let result = timeout(shared.policy.request, shared.control.request(&origin, request)).await;
    let message = match result.unwrap_or_else(|_| Err(too_slow())) {
        Ok(value) => FromServer::Result { id, value },
        Err(refusal) => FromServer::Refused { id: Some(id), refusal },
    };
    let _ = out.send(message).await;
    id
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn timed_out(begun: bool) -> End {
    let what = if begun { "a frame did not arrive in time" } else { "nothing was asked for a long time" };
    End::Refused(Refusal::new(RefusalKind::TimedOut, what, "Connect again."))
}

fn stopping() -> Refusal {
    Refusal::new(RefusalKind::ShuttingDown, "the daemon is stopping", "Ask again when it is back.")
}

fn too_slow() -> Refusal {
    let remedy = "Try again; `hearth doctor` shows what is slow.";
    Refusal::new(RefusalKind::TimedOut, "the daemon did not answer in time", remedy)
}

fn malformed(what: &str) -> Refusal {
    let remedy = "Use the `hearth` program that was installed together with the daemon.";
    Refusal::new(RefusalKind::Malformed, format!("the console received {what}"), remedy)
}

/// Reads frames of the other side; used by the client. Dropping a pending
/// [`Frames::fill`] loses nothing.
pub(crate) struct Frames<R> {
    reader: R,
    pub(crate) decoder: Decoder,
    chunk: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R, limit: usize) -> Self {
        Self { reader, decoder: Decoder::new(limit), chunk: vec![0; CHUNK] }
    }

    /// Reads once; false at the end of the stream.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        let length = self.reader.read(&mut self.chunk).await?;
        self.decoder.push(&self.chunk[..length]);
        Ok(length > 0)
    }
}

#[cfg(test)]
mod tests;
