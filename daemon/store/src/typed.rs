//! Typed rows. Each change answers the mutations, so that one batch can hold
//! several rows and the audit entries that belong to them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::error::StoreError;
use crate::rows::{Table, Write};
use crate::store::Store;

/// Format of the values.
const FORMAT: u16 = 1;
/// Rows that one scan reads at most.
const SCAN_MAX: usize = 100_000;

#[derive(Serialize)]
struct Out<'a, T> {
    v: u16,
    row: &'a T,
}

#[derive(Deserialize)]
struct In<T> {
    v: u16,
    row: T,
}

fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    serde_json::to_vec(&Out { v: FORMAT, row }).expect("rows have string keys only")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    let damaged = |what: String| StoreError::damaged("store.redb", what);
    let read: In<T> =
        serde_json::from_slice(bytes).map_err(|e| damaged(format!("a row is malformed: {e}")))?;
    if read.v > FORMAT {
        return Err(StoreError::NewerFormat("store.redb".to_owned()));
    }
    Ok(read.row)
}

fn put<T: Serialize>(table: Table, partition: &[u8], ordinal: u64, row: &T) -> Write {
    Write { table, partition: partition.to_vec(), ordinal, value: Some(encode(row)) }
}

fn remove(table: Table, partition: &[u8], ordinal: u64) -> Write {
    Write { table, partition: partition.to_vec(), ordinal, value: None }
}

/// Where the row of an identity lies: ordered by time, to the millisecond and 20
/// more bits, which whoever makes identities keeps apart. An identity from a time
/// without a clock has a random place.
fn place(id: Ulid) -> u64 {
    let id = u128::from(id);
    if id >> 80 == 0 { id as u64 } else { (id >> 60) as u64 }
}

/// Rows of messages: what came in, and what became of it.
pub mod inbox {
    use super::{
        Deserialize, SCAN_MAX, Serialize, Store, StoreError, Table, Ulid, Write, decode, place, put, remove,
    };

    /// How far a message has come.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Stage {
        /// It is stored; nothing has acted on it.
        Received,
        /// A tool with an effect may have run: never run it again.
        Acting,
    }

    /// A message that is not finished.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Row {
        /// Identity of the message.
        pub id: Ulid,
        /// Channel.
        pub channel: String,
        /// The transport's identity of the message.
        pub external_id: String,
        /// Conversation.
        pub session: Ulid,
        /// Its name in the channel.
        pub conversation: String,
        /// Origin, as the channel's contract writes it.
        pub origin: serde_json::Value,
        /// What was said.
        pub text: String,
        /// Milliseconds since 1970, when the clock was set.
        pub received_ms: Option<u64>,
        /// How far it has come.
        pub stage: Stage,
    }

    const ALL: &[u8] = b"pending";

    fn seen(channel: &str, external_id: &str) -> Vec<u8> {
        // The separator cannot be in a channel name.
        format!("{channel}\n{external_id}").into_bytes()
    }

    /// Stores a new message and that its external identity was seen.
    pub fn accept(row: &Row) -> Vec<Write> {
        vec![
            put(Table::Inbox, ALL, place(row.id), row),
            put(Table::Seen, &seen(&row.channel, &row.external_id), 0, &row.id),
        ]
    }

    /// The message with this external identity, if it was ever accepted.
    pub fn find(store: &Store, channel: &str, external_id: &str) -> Result<Option<Ulid>, StoreError> {
        store.get(Table::Seen, &seen(channel, external_id), 0)?.map(|b| decode(&b)).transpose()
    }

    /// Marks that the message must not be run again.
    pub fn acting(row: &Row) -> Write {
        put(Table::Inbox, ALL, place(row.id), &Row { stage: Stage::Acting, ..row.clone() })
    }

    /// The message is finished; its external identity stays known.
    pub fn done(id: Ulid) -> Write {
        remove(Table::Inbox, ALL, place(id))
    }

    /// Forgets that a message was seen.
    pub(super) fn forget(channel: &str, external_id: &str) -> Write {
        remove(Table::Seen, &seen(channel, external_id), 0)
    }

    /// Messages that are not finished, oldest first. Of more than 100,000, those
    /// that came last are left for another time, and the log says so.
    pub fn pending(store: &Store) -> Result<Vec<Row>, StoreError> {
        let mut rows = store.scan(Table::Inbox, ALL, 0..=u64::MAX, SCAN_MAX + 1, false)?;
        if rows.len() > SCAN_MAX {
            rows.truncate(SCAN_MAX);
            log::warn!(
                "more than {SCAN_MAX} messages wait: those that came last are left for the next start"
            );
        }
        rows.iter().map(|(_, bytes)| decode(bytes)).collect()
    }
}

/// Rows of answers on their way out.
pub mod outbox {
    use super::{Deserialize, Serialize, Store, StoreError, Table, Ulid, Write, decode, place, put, remove};

    /// An answer. Its message's identity is its idempotency key.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Row {
        /// The message that it answers.
        pub message: Ulid,
        /// Channel.
        pub channel: String,
        /// The transport's identity of the message.
        pub external_id: String,
        /// Conversation.
        pub session: Ulid,
        /// The outcome, as the turn's contract writes it.
        pub outcome: serde_json::Value,
    }

    const ALL: &[u8] = b"answers";

    fn waiting(channel: &str) -> Vec<u8> {
        format!("waiting/{channel}").into_bytes()
    }

    /// Stores an answer: on its way, and for whoever asks again.
    pub fn add(row: &Row) -> Vec<Write> {
        let at = place(row.message);
        vec![put(Table::Outbox, &waiting(&row.channel), at, row), put(Table::Outbox, ALL, at, row)]
    }

    /// The answer to a message, delivered or not.
    pub fn find(store: &Store, message: Ulid) -> Result<Option<Row>, StoreError> {
        let row: Option<Row> =
            store.get(Table::Outbox, ALL, place(message))?.map(|b| decode(&b)).transpose()?;
        Ok(row.filter(|r| r.message == message))
    }

    /// Answers of a channel that were not delivered, oldest first, at most `limit`.
    pub fn pending(store: &Store, channel: &str, limit: usize) -> Result<Vec<Row>, StoreError> {
        let rows = store.scan(Table::Outbox, &waiting(channel), 0..=u64::MAX, limit, false)?;
        rows.iter().map(|(_, bytes)| decode(bytes)).collect()
    }

    /// The answer has reached its channel.
    pub fn delivered(channel: &str, message: Ulid) -> Write {
        remove(Table::Outbox, &waiting(channel), place(message))
    }

    /// Forgets at most `limit` of the answers to messages from before
    /// `before_ms` (milliseconds since 1970), oldest first, delivered or not,
    /// and with each that its message was seen. Empty when there are none.
    pub fn prune(store: &Store, before_ms: u64, limit: usize) -> Result<Vec<Write>, StoreError> {
        let until = place(Ulid::from_parts(before_ms, 0));
        let rows = store.scan(Table::Outbox, ALL, 0..=until.saturating_sub(1), limit, false)?;
        let mut writes = Vec::with_capacity(3 * rows.len());
        for (at, bytes) in rows {
            let row: Row = decode(&bytes)?;
            writes.push(remove(Table::Outbox, ALL, at));
            writes.push(delivered(&row.channel, row.message));
            writes.push(super::inbox::forget(&row.channel, &row.external_id));
        }
        Ok(writes)
    }
}

/// Rows of conversations and their exchanges.
pub mod sessions {
    use super::{Deserialize, Serialize, Store, StoreError, Table, Ulid, Write, decode, put};

    /// A conversation.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Row {
        /// Identity.
        pub id: Ulid,
        /// Its name in the channels.
        pub name: String,
        /// Milliseconds since 1970, when the clock was set.
        pub created_ms: Option<u64>,
    }

    fn named(name: &str) -> Vec<u8> {
        format!("name/{name}").into_bytes()
    }

    fn exchanges(id: Ulid) -> Vec<u8> {
        format!("exchanges/{id}").into_bytes()
    }

    /// Stores a conversation.
    pub fn create(row: &Row) -> Write {
        put(Table::Sessions, &named(&row.name), 0, row)
    }

    /// The conversation of that name.
    pub fn find(store: &Store, name: &str) -> Result<Option<Row>, StoreError> {
        store.get(Table::Sessions, &named(name), 0)?.map(|b| decode(&b)).transpose()
    }

    /// Number of exchanges so far.
    pub fn count(store: &Store, id: Ulid) -> Result<u64, StoreError> {
        let newest = store.scan(Table::History, &exchanges(id), 0..=u64::MAX, 1, true)?;
        Ok(newest.first().map_or(0, |(ordinal, _)| ordinal + 1))
    }

    /// Stores exchange number `ordinal`.
    pub fn append<T: Serialize>(id: Ulid, ordinal: u64, exchange: &T) -> Write {
        put(Table::History, &exchanges(id), ordinal, exchange)
    }

    /// The newest exchanges, each with its number, oldest first: not before number
    /// `from`, and no more than `bytes` and 100,000 in all.
    pub fn history<T: serde::de::DeserializeOwned>(
        store: &Store,
        id: Ulid,
        from: u64,
        bytes: usize,
    ) -> Result<Vec<(u64, T)>, StoreError> {
        let rows = store.scan(Table::History, &exchanges(id), from..=u64::MAX, super::SCAN_MAX, true)?;
        let mut left = bytes;
        let mut out = Vec::new();
        for (ordinal, row) in rows {
            left = match left.checked_sub(row.len()) {
                Some(left) => left,
                None => break,
            };
            out.push((ordinal, decode(&row)?));
        }
        out.reverse();
        Ok(out)
    }
}

/// Rows of what is remembered.
pub mod memory {
    use super::{
        Deserialize, SCAN_MAX, Serialize, Store, StoreError, Table, Ulid, Write, decode, place, put, remove,
    };

    /// Who could have written it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Label {
        /// The owner.
        Owner,
        /// The daemon, in a turn that read nothing from outside.
        Household,
        /// Anyone.
        World,
    }

    /// An entry.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Row {
        /// Identity.
        pub id: Ulid,
        /// What is remembered.
        pub text: String,
        /// Heading.
        pub topic: Option<String>,
        /// Who could have written it.
        pub label: Label,
        /// Where it comes from.
        pub source: String,
        /// The turn that wrote it.
        pub turn: Option<Ulid>,
        /// Milliseconds since 1970, when the clock was set.
        pub created_ms: Option<u64>,
    }

    const ALL: &[u8] = b"entries";

    /// Stores an entry.
    pub fn store(row: &Row) -> Write {
        put(Table::Memory, ALL, place(row.id), row)
    }

    /// One entry.
    pub fn get(from: &Store, id: Ulid) -> Result<Option<Row>, StoreError> {
        let row: Option<Row> = from.get(Table::Memory, ALL, place(id))?.map(|b| decode(&b)).transpose()?;
        Ok(row.filter(|r| r.id == id))
    }

    /// Forgets an entry. Copies in the journal die with the key of their segment.
    pub fn forget(id: Ulid) -> Write {
        remove(Table::Memory, ALL, place(id))
    }

    /// All entries, oldest first; [`StoreError::TooMany`] when there are more than
    /// 100,000.
    pub fn all(from: &Store) -> Result<Vec<Row>, StoreError> {
        at_most(from, SCAN_MAX)
    }

    /// All entries, oldest first; [`StoreError::TooMany`] when there are more than
    /// `limit`.
    pub fn at_most(from: &Store, limit: usize) -> Result<Vec<Row>, StoreError> {
        let mut rows = newest(from, limit.saturating_add(1))?;
        if rows.len() > limit {
            return Err(StoreError::TooMany { what: "memory entries", limit });
        }
        rows.reverse();
        Ok(rows)
    }

    /// The newest entries, newest first, at most `limit`.
    pub fn newest(from: &Store, limit: usize) -> Result<Vec<Row>, StoreError> {
        let rows = from.scan(Table::Memory, ALL, 0..=u64::MAX, limit, true)?;
        rows.iter().map(|(_, bytes)| decode(bytes)).collect()
    }
}
