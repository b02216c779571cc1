//! The client side, as the verbs of `hearth` use it.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hearth_contract::{ChannelEvent, ControlRequest, Refusal, RefusalKind};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::connection::Frames;
use crate::frame::{FrameError, REQUEST, RESPONSE, encode, parse};
use crate::protocol::{FromClient, FromServer, NEWEST, OLDEST};

/// Longest wait for the connection and the greeting.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a control request; the daemon gives up first.
pub const CONTROL_LIMIT: Duration = Duration::from_secs(90);
/// Longest silence in a turn; longer than any budget that can be set.
pub const EVENT_LIMIT: Duration = Duration::from_secs(8_000);
/// Frames of other requests that are kept while one is waited for.
const KEPT_MAX: usize = 4_096;

/// Why the daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("the daemon is not running (nobody listens on {0})")]
    NotRunning(PathBuf),
    /// The socket is not ours to use.
    #[error("this user may not use the console ({0})")]
    PermissionDenied(String),
    /// The versions do not fit.
    #[error("{}", .0.what)]
    Protocol(Refusal),
    /// The daemon turned the request or the connection down.
    #[error("{}", .0.what)]
    Refused(Refusal),
    /// The daemon went away.
    #[error("the daemon closed the connection")]
    Closed,
    /// The daemon sent what the protocol does not allow.
    #[error("the daemon sent {0}")]
    Malformed(#[from] FrameError),
    /// The daemon did not answer.
    #[error("the daemon did not answer within {0:?}")]
    TimedOut(Duration),
    /// The system refused.
    #[error("the console socket failed: {0}")]
    Io(#[source] io::Error),
}

impl ClientError {
    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            Self::NotRunning(_) => {
                "Start it with `hearth serve`, or `systemctl start hearth` where it is installed as a service."
                    .into()
            }
            Self::PermissionDenied(_) => {
                "Use the owner's account or sudo; console.owner_uid in the configuration names the owner.".into()
            }
            Self::Protocol(refusal) | Self::Refused(refusal) => refusal.remedy.clone(),
            Self::Closed => "Look into its log (`journalctl -u hearth`), then try again.".into(),
            Self::Malformed(FrameError::TooLarge { .. }) => "Send less at once.".into(),
            Self::Malformed(_) => {
                "Use the `hearth` program that was installed together with the daemon.".into()
            }
            Self::TimedOut(_) => "Look into its log (`journalctl -u hearth`); restart it if it hangs.".into(),
            Self::Io(_) => "Check console.socket in the configuration.".into(),
        }
    }
}

/// A connection to the daemon.
pub struct Client {
    frames: Frames<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next_id: u64,
    kept: VecDeque<FromServer>,
    protocol: u32,
    server: String,
}

impl Client {
    /// Connects and agrees on a version; `client` is name and version of the
    /// caller, for the daemon's log.
    pub async fn connect(socket: &Path, client: &str) -> Result<Self, ClientError> {
        let connecting = async {
            let stream = UnixStream::connect(socket).await.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::NotRunning(socket.to_owned())
                }
                io::ErrorKind::PermissionDenied => {
                    ClientError::PermissionDenied(socket.display().to_string())
                }
                _ => ClientError::Io(error),
            })?;
            let (reader, writer) = stream.into_split();
            let frames = Frames::new(reader, RESPONSE.bytes);
            let (protocol, server) = (NEWEST, String::new());
            let mut connection = Self { frames, writer, next_id: 1, kept: VecDeque::new(), protocol, server };
            let hello =
                FromClient::Hello { protocol: NEWEST, oldest: Some(OLDEST), client: client.to_owned() };
            // A daemon that turns us away may have closed already: its words can
            // still be read, so a failed write is not the answer.
            let written = connection.send(&hello).await;
            match connection.receive().await {
                Ok(FromServer::Hello { protocol, server }) if (OLDEST..=NEWEST).contains(&protocol) => {
                    (connection.protocol, connection.server) = (protocol, server);
                    Ok(connection)
                }
                Ok(_) => Err(FrameError::NotAMessage { column: 0 }.into()),
                Err(ClientError::Refused(refusal)) => Err(match refusal.kind {
                    RefusalKind::Unsupported => ClientError::Protocol(refusal),
                    RefusalKind::NotPermitted => ClientError::PermissionDenied(refusal.what),
                    _ => ClientError::Refused(refusal),
                }),
                Err(error) => Err(written.err().unwrap_or(error)),
            }
        };
        timeout(CONNECT_LIMIT, connecting).await.unwrap_or(Err(ClientError::TimedOut(CONNECT_LIMIT)))
    }

    /// Name and version of the daemon.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The version of the protocol that is spoken.
    pub fn protocol(&self) -> u32 {
        self.protocol
    }

    /// Sends a message. `external_id` identifies it: after a lost connection,
    /// the same one asks for the answer of the same turn.
    pub async fn ask(
        &mut self,
        conversation: &str,
        text: &str,
        external_id: &str,
    ) -> Result<Answer<'_>, ClientError> {
        let id = self.start_ask(conversation, text, external_id).await?;
        Ok(Answer { client: self, id, ended: false })
    }

    /// Asks for something that needs no turn.
    pub async fn control(&mut self, request: ControlRequest) -> Result<Value, ClientError> {
        let id = self.take_id();
        self.send(&FromClient::Control { id, request }).await?;
        let answer = timeout(CONTROL_LIMIT, self.receive_for(id)).await;
        match answer.map_err(|_| ClientError::TimedOut(CONTROL_LIMIT))?? {
            FromServer::Result { value, .. } => Ok(value),
            FromServer::Refused { refusal, .. } => Err(ClientError::Refused(refusal)),
            _ => Err(FrameError::NotAMessage { column: 0 }.into()),
        }
    }

    /// Sends a message and returns its number, for callers that have several
    /// under way; see [`Client::next_event`].
    pub async fn start_ask(
        &mut self,
        conversation: &str,
        text: &str,
        external_id: &str,
    ) -> Result<u64, ClientError> {
        let id = self.take_id();
        let (conversation, text) = (conversation.to_owned(), text.to_owned());
        let ask = FromClient::Ask { id, conversation, text, external_id: external_id.to_owned() };
        self.send(&ask).await?;
        Ok(id)
    }

    /// The next event of the message with this number. A refusal is an error.
    /// Dropping the pending future loses nothing.
    pub async fn next_event(&mut self, id: u64) -> Result<ChannelEvent, ClientError> {
        let frame = timeout(EVENT_LIMIT, self.receive_for(id)).await;
        match frame.map_err(|_| ClientError::TimedOut(EVENT_LIMIT))?? {
            FromServer::Accepted { message, duplicate, .. } => {
                Ok(ChannelEvent::Accepted { message, duplicate })
            }
            FromServer::Event { event, .. } => Ok(ChannelEvent::Stream(event)),
            FromServer::Finished { outcome, .. } => Ok(ChannelEvent::Finished(outcome)),
            FromServer::Refused { refusal, .. } => Err(ClientError::Refused(refusal)),
            FromServer::Hello { .. } | FromServer::Result { .. } => {
                Err(FrameError::NotAMessage { column: 0 }.into())
            }
        }
    }

    /// Asks for the turn of the message with this number to be cancelled.
    pub async fn cancel(&mut self, id: u64) -> Result<(), ClientError> {
        self.send(&FromClient::Cancel { id }).await
    }

    /// True when a frame for this number has been read already.
    pub fn has_kept(&self, id: u64) -> bool {
        self.kept.iter().any(|frame| frame.id() == Some(id))
    }

    /// Waits until the connection ends and says why, for a client that has
    /// nothing under way. Dropping the pending future loses nothing.
    pub async fn ended(&mut self) -> ClientError {
        loop {
            match self.receive().await {
                Ok(frame) => self.kept.push_back(frame),
                Err(error) => return error,
            }
            if self.kept.len() > KEPT_MAX {
                return FrameError::TooManyNodes(KEPT_MAX).into();
            }
        }
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    async fn send(&mut self, message: &FromClient) -> Result<(), ClientError> {
        let frame = encode(message, REQUEST.bytes)?;
        let written = timeout(CONTROL_LIMIT, self.writer.write_all(&frame)).await;
        written.map_err(|_| ClientError::TimedOut(CONTROL_LIMIT))?.map_err(closed)
    }

    async fn receive_for(&mut self, id: u64) -> Result<FromServer, ClientError> {
        if let Some(at) = self.kept.iter().position(|frame| frame.id() == Some(id)) {
            return Ok(self.kept.remove(at).expect("the position was found just now"));
        }
        loop {
            let frame = self.receive().await?;
            if frame.id() == Some(id) {
                return Ok(frame);
            }
            if self.kept.len() >= KEPT_MAX {
                return Err(FrameError::TooManyNodes(KEPT_MAX).into());
            }
            self.kept.push_back(frame);
        }
    }

    /// The next frame. A refusal of the whole connection is an error.
    async fn receive(&mut self) -> Result<FromServer, ClientError> {
        loop {
            if let Some(frame) = self.frames.decoder.next_frame()? {
                return match parse(frame, RESPONSE)? {
                    FromServer::Refused { id: None, refusal } => Err(ClientError::Refused(refusal)),
                    frame => Ok(frame),
                };
            }
            if !self.frames.fill().await.map_err(closed)? {
                return Err(match self.frames.decoder.has_begun() {
                    true => FrameError::Truncated.into(),
                    false => ClientError::Closed,
                });
            }
        }
    }
}

fn closed(error: io::Error) -> ClientError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => {
            ClientError::Closed
        }
        _ => ClientError::Io(error),
    }
}

/// The answer to one message, as it comes.
pub struct Answer<'a> {
    client: &'a mut Client,
    id: u64,
    ended: bool,
}

impl Answer<'_> {
    /// The next event; `None` after the outcome. May be used in a `select!`:
    /// dropping the pending future loses nothing.
    pub async fn next(&mut self) -> Result<Option<ChannelEvent>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        let event = self.client.next_event(self.id).await;
        self.ended = matches!(event, Ok(ChannelEvent::Finished(_)) | Err(_));
        event.map(Some)
    }

    /// Asks for the turn to be cancelled; its outcome still comes.
    pub async fn cancel(&mut self) -> Result<(), ClientError> {
        self.client.cancel(self.id).await
    }
}
