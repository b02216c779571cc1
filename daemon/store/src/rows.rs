//! Rows: where they lie on disk, and the mutations that the journal carries.

use hearth_vault::{Aad, DataKey, Domain, DomainKeys};

/// Format of rows and of the journal.
pub(crate) const FORMAT: u16 = 1;
/// Bytes of a key on disk: table, keyed hash of the partition, ordinal.
pub(crate) const KEY: usize = 1 + 16 + 8;

/// A kind of row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Messages that came in.
    Inbox = 1,
    /// Which external identifiers were seen.
    Seen = 2,
    /// Answers on their way out.
    Outbox = 3,
    /// Conversations.
    Sessions = 4,
    /// Exchanges of a conversation.
    History = 5,
    /// What is remembered.
    Memory = 6,
}

impl Table {
    const ALL: [Self; 6] =
        [Self::Inbox, Self::Seen, Self::Outbox, Self::Sessions, Self::History, Self::Memory];

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u8 == byte)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Seen => "seen",
            Self::Outbox => "outbox",
            Self::Sessions => "sessions",
            Self::History => "history",
            Self::Memory => "memory",
        }
    }

    fn domain(self) -> Domain {
        match self {
            Self::Inbox | Self::Seen => Domain::ChannelState,
            Self::Outbox => Domain::Outbox,
            Self::Sessions | Self::History => Domain::Sessions,
            Self::Memory => Domain::Memory,
        }
    }
}

/// One mutation: a value to set, or a row to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Kind of row.
    pub table: Table,
    /// Group of rows that are scanned together; not readable on disk.
    pub partition: Vec<u8>,
    /// Place in the group; readable on disk, so it must say nothing.
    pub ordinal: u64,
    /// The value; `None` removes the row.
    pub value: Option<Vec<u8>>,
}

/// A key on disk.
pub(crate) type RowKey = [u8; KEY];

/// Seals and opens rows.
#[derive(Debug, Clone)]
pub(crate) struct RowKeys {
    domains: Vec<(Table, DomainKeys)>,
}

impl RowKeys {
    pub(crate) fn new(key: &DataKey) -> Self {
        Self { domains: Table::ALL.iter().map(|t| (*t, key.domain(t.domain()))).collect() }
    }

    fn keys(&self, table: Table) -> &DomainKeys {
        let found = self.domains.iter().find(|(t, _)| *t == table);
        &found.expect("every table has keys").1
    }

    pub(crate) fn key(&self, table: Table, partition: &[u8], ordinal: u64) -> RowKey {
        let mut key = [0; KEY];
        key[0] = table as u8;
        // The table is part of the name: the same partition in two tables differs.
        let name = [table.name().as_bytes(), b"/", partition].concat();
        key[1..17].copy_from_slice(&self.keys(table).index(&name));
        key[17..].copy_from_slice(&ordinal.to_be_bytes());
        key
    }

    pub(crate) fn seal(&self, key: &RowKey, nonce: [u8; 24], plain: &[u8]) -> Vec<u8> {
        let table = Table::from_byte(key[0]).expect("keys are made from tables");
        self.keys(table).seal(nonce, &Aad { table: table.name(), key, format: FORMAT }, plain)
    }

    pub(crate) fn open(&self, key: &RowKey, sealed: &[u8]) -> Option<Vec<u8>> {
        let table = Table::from_byte(key[0])?;
        let aad = Aad { table: table.name(), key, format: FORMAT };
        self.keys(table).open(&aad, sealed).ok().map(|plain| plain.to_vec())
    }
}

/// The ordinal of a row key.
pub(crate) fn ordinal(key: &RowKey) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&key[17..]);
    u64::from_be_bytes(bytes)
}

/// Mutations as the journal carries them.
pub(crate) fn encode(keys: &RowKeys, writes: &[Write]) -> Vec<u8> {
    let mut out = Vec::new();
    for write in writes {
        out.extend(keys.key(write.table, &write.partition, write.ordinal));
        match &write.value {
            None => out.extend(u32::MAX.to_be_bytes()),
            Some(value) => {
                out.extend((value.len() as u32).to_be_bytes());
                out.extend(value);
            }
        }
    }
    out
}

/// What [`encode`] wrote; `None` when it did not.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Vec<(RowKey, Option<Vec<u8>>)>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = bytes.split_at_checked(KEY)?;
        let (len, rest) = rest.split_at_checked(4)?;
        let len = u32::from_be_bytes(len.try_into().ok()?);
        let key: RowKey = key.try_into().ok()?;
        Table::from_byte(key[0])?;
        if len == u32::MAX {
            out.push((key, None));
            bytes = rest;
        } else {
            let (value, rest) = rest.split_at_checked(len as usize)?;
            out.push((key, Some(value.to_vec())));
            bytes = rest;
        }
    }
    Some(out)
}
