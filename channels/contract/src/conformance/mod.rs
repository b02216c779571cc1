//! One suite for every adapter.
//!
//! An adapter's tests implement [`AdapterUnderTest`]: how to start it in front
//! of a gateway, and how a peer of its transport behaves. [`run`] then plays
//! every case through real peers and a scripted gateway, and reports each case
//! by name. The limits on waiting only bound a hang; no case sleeps.

mod cases;
mod gateway;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hearth_turn::TurnOutcome;

use crate::{BoxFuture, Gateway, RefusalKind};

pub use gateway::{Counts, FakeGateway, Step};

/// Longest run of one case.
pub const CASE_LIMIT: Duration = Duration::from_secs(20);

/// What differs between adapters.
#[derive(Debug, Clone, Default)]
pub struct Traits {
    /// Name of the channel that its messages carry.
    pub channel: String,
    /// Largest text that it passes on, in bytes.
    pub text_max: usize,
    /// Shows text piece by piece; otherwise only the outcome is seen.
    pub streams: bool,
    /// Cancels the turn when the peer that asked goes away.
    pub cancels_on_disconnect: bool,
    /// Raw bytes that no sound peer sends, each with a name.
    pub hostile: Vec<(String, Vec<u8>)>,
}

/// What a peer saw, stripped of the transport.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// The message was acknowledged.
    Accepted,
    /// A piece of answer text.
    Text(String),
    /// The outcome.
    Finished(TurnOutcome),
    /// The message was turned down, with the words that came along.
    Refused(RefusalKind, String),
    /// The message is kept and answered after a restart.
    Postponed,
    /// Anything else.
    Other,
}

/// One peer of the adapter. Errors are words for the report.
pub trait Peer: Send {
    /// Sends a message in conversation `default`.
    fn send<'a>(&'a mut self, external_id: &'a str, text: &'a str) -> BoxFuture<'a, Result<(), String>>;
    /// Asks for the message with this identifier to be cancelled.
    fn cancel<'a>(&'a mut self, external_id: &'a str) -> BoxFuture<'a, Result<(), String>>;
    /// Sends bytes as they are. Failing is fine: the adapter may have hung up.
    fn raw<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, ()>;
    /// The next thing that is shown for this message, or `None` when nothing
    /// can follow because the connection has ended.
    fn next<'a>(&'a mut self, external_id: &'a str) -> BoxFuture<'a, Option<Seen>>;
    /// What has arrived for this message and was not asked for yet. It is
    /// called after an answer that came later, so nothing can be under way.
    fn leftover(&mut self, external_id: &str) -> Vec<Seen>;
    /// Goes away without a word.
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// A started adapter; dropping it stops it.
pub trait Running: Send + Sync {
    /// A new peer.
    fn peer(&self) -> BoxFuture<'_, Result<Box<dyn Peer>, String>>;
}

/// How the suite starts an adapter.
pub trait AdapterUnderTest: Send + Sync {
    /// What is special about it.
    fn traits(&self) -> Traits;
    /// Starts it in front of `gateway`.
    fn start(&self, gateway: Arc<dyn Gateway>) -> BoxFuture<'_, Result<Box<dyn Running>, String>>;
}

/// The result of each case by name.
#[derive(Debug)]
pub struct Report(pub Vec<(&'static str, Result<(), String>)>);

impl Report {
    /// Names of the cases that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.0.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| *name).collect()
    }

    /// Panics with the report when a case failed.
    ///
    /// # Panics
    /// When a case failed: this is the assertion of a test.
    pub fn assert_passed(&self) {
        assert!(self.failed().is_empty(), "the adapter does not conform:\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, result) in &self.0 {
            match result {
                Ok(()) => writeln!(f, "ok      {name}")?,
                Err(why) => writeln!(f, "failed  {name}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Plays every case, each against a fresh adapter and gateway.
pub async fn run(adapter: &dyn AdapterUnderTest) -> Report {
    run_within(adapter, CASE_LIMIT).await
}

/// As [`run`], with another limit on each case.
pub async fn run_within(adapter: &dyn AdapterUnderTest, limit: Duration) -> Report {
    let mut report = Vec::new();
    for (name, case) in cases::ALL {
        let result = match cases::Stage::new(adapter).await {
            Ok(stage) => tokio::time::timeout(limit, case(stage))
                .await
                .unwrap_or_else(|_| Err(format!("nothing happened for {limit:?}"))),
            Err(why) => Err(format!("the adapter did not start: {why}")),
        };
        report.push((*name, result));
    }
    Report(report)
}
