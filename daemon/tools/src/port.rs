//! What tools need from the rest of the daemon, as traits.

use std::future::Future;
use std::pin::Pin;

use hearth_scope::Integrity;
use hearth_turn::{ToolError, TurnId};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use ulid::Ulid;

/// A future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the clock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The wall clock.
    pub wall: Timestamp,
    /// False until the clock was set from the network or a battery-backed clock.
    pub synchronised: bool,
}

/// The clock and the zone of the household.
pub trait Clock: Send + Sync {
    /// Reads the clock.
    fn now(&self) -> Reading;
    /// The household's time zone.
    fn zone(&self) -> TimeZone;
}

/// An entry to be remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMemory {
    /// What to remember, at most 16 KiB.
    pub text: String,
    /// A short heading, at most 64 bytes.
    pub topic: Option<String>,
    /// Who could have written it.
    pub label: Integrity,
    /// Where it comes from, in words.
    pub source: String,
    /// The turn that wrote it.
    pub turn: TurnId,
}

/// A remembered entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryEntry {
    /// Identity.
    pub id: Ulid,
    /// What is remembered.
    pub text: String,
    /// Heading.
    pub topic: Option<String>,
    /// Who could have written it.
    pub label: Integrity,
    /// Where it comes from, in words.
    pub source: String,
    /// Milliseconds since 1970 (UTC), or `None` when the clock was not set.
    pub created_ms: Option<u64>,
}

/// The memory of the household.
pub trait MemoryPort: Send + Sync {
    /// A number that changes with every change of the memory.
    fn version(&self) -> u64;
    /// Every entry, in any order.
    fn all(&self) -> BoxFuture<'_, Result<Vec<MemoryEntry>, ToolError>>;
    /// One entry, read from the store and not from a cache.
    fn get(&self, id: Ulid) -> BoxFuture<'_, Result<Option<MemoryEntry>, ToolError>>;
    /// Stores an entry durably; returns its identity.
    fn put(&self, entry: NewMemory) -> BoxFuture<'_, Result<Ulid, ToolError>>;
    /// Removes entries durably; identities that are not there are skipped.
    fn forget(&self, ids: Vec<Ulid>) -> BoxFuture<'_, Result<(), ToolError>>;
}

/// The audit log.
pub trait AuditPort: Send + Sync {
    /// The latest entries, newest first, at most `limit`; of one kind when given.
    fn recent<'a>(
        &'a self,
        kind: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Value>, ToolError>>;
}

/// A setting, as far as it may be shown.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Its value.
    Value(Value),
    /// A secret: the value never reaches this crate.
    Secret {
        /// True when it has a value.
        set: bool,
    },
}

/// The settings in effect.
pub trait ConfigPort: Send + Sync {
    /// One setting; `None` when there is no such key.
    fn setting<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Setting>, ToolError>>;
}
