//! The accept loop: who is let in, and how many.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hearth_contract::{Control, Gateway, Refusal, RefusalKind};
use hearth_scope::Origin;
use hearth_scope::classify::{ConnectionFacts, Refused, Socket, Verdict, classify};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::{self, Shared};
use crate::frame::{RESPONSE, encode};
use crate::protocol::FromServer;
use crate::socket::Listener;

/// The user id that the kernel shows for a user that it cannot map, unless
/// /proc/sys/kernel/overflowuid says otherwise.
pub const OVERFLOW_UID: u32 = 65_534;
/// Time between two lines of the log about connections that are refused.
const QUIET: Duration = Duration::from_secs(10);
/// Wait after an accept that failed, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whom the console serves, and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The user who is let in besides root.
    pub owner_uid: u32,
    /// The daemon's own user. It is refused unless it is the owner: a tool that
    /// breaks out must not become the owner.
    pub daemon_uid: u32,
    /// The user id that stands for users that the kernel cannot map; refused.
    pub overflow_uid: u32,
    /// Connections at once.
    pub connections: usize,
    /// Connections of one user at once.
    pub connections_per_uid: usize,
    /// Requests under way on one connection.
    pub requests: usize,
    /// Time for the rest of a frame once it has begun, and for the first one.
    pub frame: Duration,
    /// Silence on a connection that waits for nothing.
    pub idle: Duration,
    /// Time in which a client has to take a frame.
    pub write: Duration,
    /// Time for the daemon to accept a message or to answer a control request.
    pub request: Duration,
    /// Time for turns to end when the daemon stops.
    pub drain: Duration,
    /// Largest text of a message, in bytes.
    pub text_max: usize,
    /// Cancel the turns of a connection that ends.
    pub cancel_on_disconnect: bool,
    /// Name and version of the daemon.
    pub server: String,
}

impl Policy {
    /// The usual limits for this owner.
    pub fn for_owner(owner_uid: u32) -> Self {
        Self {
            owner_uid,
            daemon_uid: rustix::process::geteuid().as_raw(),
            overflow_uid: OVERFLOW_UID,
            connections: 16,
            connections_per_uid: 4,
            requests: 8,
            frame: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            write: Duration::from_secs(30),
            request: Duration::from_secs(60),
            drain: Duration::from_secs(5),
            text_max: hearth_contract::inbound::TEXT_MAX,
            cancel_on_disconnect: true,
            server: concat!("hearth ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// The origin of a peer with this user id, by the one table that decides it.
    fn origin(&self, peer: u32) -> Result<Origin, Refused> {
        let (owner, daemon, overflow) = (self.owner_uid, self.daemon_uid, self.overflow_uid);
        match classify(&ConnectionFacts::Socket(Socket { peer, owner, daemon, overflow })) {
            Verdict::Accept(origin) => Ok(origin),
            Verdict::Refuse(why) => Err(why),
        }
    }
}

/// Answers on the socket until `shutdown`, then lets running turns end for the
/// time that the policy gives them.
pub async fn serve(
    listener: Listener,
    gateway: Arc<dyn Gateway>,
    control: Arc<dyn Control>,
    policy: Policy,
    shutdown: CancellationToken,
) {
    let doors = Doors::default();
    let shared = Arc::new(Shared { gateway, control, policy, shutdown: shutdown.clone() });
    let mut connections = JoinSet::new();
    let mut refusals = Seldom::default();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok(stream) => match doors.admit(&stream, &shared.policy) {
                    Ok(guest) => {
                        let shared = shared.clone();
                        connections.spawn(async move {
                            // The whole guest moves in: it counts until the end of the task.
                            let inside = guest;
                            connection::run(stream, inside.uid, inside.origin.clone(), shared).await;
                            drop(inside);
                        });
                    }
                    Err(refusal) => {
                        if let Some(unsaid) = refusals.note(Instant::now()) {
                            log::warn!("console connection refused: {} ({unsaid} more were)", refusal.what);
                        }
                        turn_away(&stream, refusal);
                    }
                },
                Err(error) => {
                    log::warn!("the console cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Nobody new from here on; each connection watches the clock itself.
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        // The error is not shown: it quotes the message of a panic.
        if error.is_panic() {
            log::error!("a bug ended a console connection");
        }
    }
}

/// Lets one of many alike events be told in a while, so that nobody can fill the
/// log by causing them.
#[derive(Debug, Default)]
struct Seldom {
    told: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// Counts an event; when it is to be told, the number of those before it that
    /// were not.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + QUIET) {
            self.unsaid += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Says why, without waiting: the buffer of a new connection is empty.
fn turn_away(stream: &UnixStream, refusal: Refusal) {
    if let Ok(frame) = encode(&FromServer::Refused { id: None, refusal }, RESPONSE.bytes) {
        let _ = stream.try_write(&frame);
    }
}

/// Counts who is inside.
#[derive(Debug, Default, Clone)]
struct Doors(Arc<Mutex<HashMap<u32, usize>>>);

/// A connection that counts until it is dropped.
#[derive(Debug)]
struct Guest {
    uid: u32,
    origin: Origin,
    doors: Doors,
}

impl Doors {
    /// Decides by the peer's user id as the kernel reports it, before a single
    /// byte is read.
    fn admit(&self, stream: &UnixStream, policy: &Policy) -> Result<Guest, Refusal> {
        let uid = stream.peer_cred().map_err(|e| stranger("unknown", e))?.uid();
        self.enter(uid, policy)
    }

    fn enter(&self, uid: u32, policy: &Policy) -> Result<Guest, Refusal> {
        let origin = policy.origin(uid).map_err(|why| stranger(uid, why))?;
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (inside.values().sum::<usize>(), inside.get(&uid).copied().unwrap_or(0));
        if all >= policy.connections || own >= policy.connections_per_uid {
            return Err(Refusal::new(
                RefusalKind::Busy,
                format!("{all} console connections are open, {own} of them by this user"),
                "Close one and try again.",
            ));
        }
        inside.insert(uid, own + 1);
        Ok(Guest { uid, origin, doors: self.clone() })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut inside = self.doors.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = inside.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.uid);
            }
        }
    }
}

fn stranger(uid: impl Display, why: impl Display) -> Refusal {
    Refusal::new(
        RefusalKind::NotPermitted,
        format!("the console does not serve user id {uid}: {why}"),
        "Use the owner's account or root; console.owner_uid names the owner.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_and_root_are_admitted() {
        // owner, daemon, peer, admitted
        let table = [
            (1000, 990, 1000, true),
            (1000, 990, 0, true),
            (1000, 990, 1001, false),
            (1000, 990, 990, false),
            (1000, 1000, 1000, true),
            (1000, 0, 0, false),
            (1000, 990, OVERFLOW_UID, false),
            (OVERFLOW_UID, 990, OVERFLOW_UID, false),
            (1000, 990, u32::MAX, false),
            (0, 0, 0, true),
            (0, 0, 1000, false),
        ];
        for (owner, daemon, peer, admitted) in table {
            let policy = Policy { daemon_uid: daemon, ..Policy::for_owner(owner) };
            let entered = Doors::default().enter(peer, &policy).map(|g| g.origin.clone()).map_err(|r| r.kind);
            let expected =
                if admitted { Ok(Origin::Console { uid: peer }) } else { Err(RefusalKind::NotPermitted) };
            assert_eq!(entered, expected, "owner {owner}, daemon {daemon}, peer {peer}");
        }
    }

    #[test]
    fn guests_are_counted_until_they_leave() {
        let (doors, policy) =
            (Doors::default(), Policy { connections: 5, daemon_uid: 990, ..Policy::for_owner(1000) });
        let mut owners: Vec<_> = (0..4).map(|_| doors.enter(1000, &policy).unwrap()).collect();
        assert_eq!(doors.enter(1000, &policy).unwrap_err().kind, RefusalKind::Busy);
        let root = doors.enter(0, &policy).unwrap();
        assert_eq!(doors.enter(0, &policy).unwrap_err().kind, RefusalKind::Busy);
        owners.pop();
        drop(root);
        assert!(doors.enter(0, &policy).is_ok());
        owners.push(doors.enter(1000, &policy).unwrap());
        drop(owners);
        assert!(doors.0.lock().unwrap().is_empty());
    }
}
