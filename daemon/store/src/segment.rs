//! A journal segment: a header block, then records, then zeros.

use hearth_audit::{Certificate, EpochKeys};
use hearth_vault::{Aad, Domain, DomainKeys};
use zeroize::Zeroizing;

use crate::disk::{Disk, DiskFile, read_all};
use crate::error::StoreError;
use crate::rows::FORMAT;

/// Bytes before the first record.
pub(crate) const HEADER: usize = 4096;
/// Where the sealed keys lie in the header; a sector of their own, zeroed when
/// the segment is sealed.
const KEYS_AT: usize = 1024;
const KEYS_SECTOR: usize = 512;
const KEYS_PLAIN: usize = 64 + 32;
const KEYS_SEALED: usize = KEYS_PLAIN + hearth_vault::OVERHEAD;
const MAGIC: &[u8; 8] = b"HEARTHJ\0";
const FIXED: usize = 8 + 2 + 4 + 8 + 16 + 4 + 8 + 32 + 32 + 64;
/// Largest segment that is read, in bytes.
const SEGMENT_MAX: usize = 64 * 1024 * 1024;

/// Bytes in front of a record's sealed part.
pub(crate) const RECORD: usize = 24;
const RECORD_MAGIC: u16 = 0x4852;
const ALIGN: usize = 16;
/// Set on the last record of a batch: a batch counts as a whole or not at all.
pub(crate) const END: u8 = 1;

/// Name of a segment's file.
pub(crate) fn name(number: u32) -> String {
    format!("journal-{number:08}.seg")
}

/// Number of the segment in a file of that name.
pub(crate) fn number(file: &str) -> Option<u32> {
    let number = file.strip_prefix("journal-")?.strip_suffix(".seg")?.parse().ok()?;
    (name(number) == file).then_some(number)
}

/// True when the first segment is whole and nothing was ever written into it.
pub(crate) fn is_unused(disk: &dyn Disk) -> Result<bool, StoreError> {
    let name = name(0);
    let io = |e| StoreError::io(&name, &e);
    let bytes = read_all(&*disk.open(&name, false).map_err(io)?, SEGMENT_MAX).map_err(io)?;
    Ok(bytes.len() >= HEADER + RECORD && bytes.starts_with(MAGIC) && bytes[HEADER..].iter().all(|b| *b == 0))
}

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// An audit entry: MAC and line, sealed with the audit key.
    Audit = 1,
    /// Mutations of rows, sealed with the key of this segment.
    Writes = 2,
    /// A signed head, sealed with the audit key.
    Head = 3,
}

impl RecordKind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Audit, Self::Writes, Self::Head].into_iter().find(|k| *k as u8 == byte)
    }
}

/// What the header says, and the keys where they are still there.
pub(crate) struct Header {
    pub(crate) number: u32,
    pub(crate) first_ordinal: u64,
    pub(crate) certificate: Certificate,
    pub(crate) keys: Option<SegmentKeys>,
}

/// Keys that live only as long as their segment is the newest.
#[derive(Clone)]
pub(crate) struct SegmentKeys {
    pub(crate) epoch: EpochKeys,
    pub(crate) writes: DomainKeys,
    raw_writes: Zeroizing<[u8; 32]>,
}

impl SegmentKeys {
    pub(crate) fn new(epoch: EpochKeys, writes: [u8; 32]) -> Self {
        let raw_writes = Zeroizing::new(writes);
        Self { epoch, writes: DomainKeys::from_key(Domain::Journal, &raw_writes), raw_writes }
    }
}

impl Header {
    /// The header block.
    pub(crate) fn encode(&self, journal: &DomainKeys, nonce: [u8; 24]) -> Vec<u8> {
        let c = &self.certificate;
        let mut out = Vec::with_capacity(HEADER);
        out.extend(MAGIC);
        out.extend(FORMAT.to_be_bytes());
        out.extend(self.number.to_be_bytes());
        out.extend(self.first_ordinal.to_be_bytes());
        out.extend(c.store);
        out.extend(c.epoch.to_be_bytes());
        out.extend(c.first_seq.to_be_bytes());
        out.extend(c.prev);
        out.extend(c.public_key);
        out.extend(c.signature);
        debug_assert_eq!(out.len(), FIXED);
        if let Some(keys) = &self.keys {
            let mut plain = Zeroizing::new(Vec::with_capacity(KEYS_PLAIN));
            plain.extend(*keys.epoch.to_bytes());
            plain.extend(*keys.raw_writes);
            let sealed = journal.seal(nonce, &keys_place(&out), &plain);
            out.resize(KEYS_AT, 0);
            out.extend(sealed);
        }
        out.resize(HEADER, 0);
        out
    }

    /// Reads the header block of the segment `number`.
    pub(crate) fn decode(bytes: &[u8], number: u32, journal: &DomainKeys) -> Result<Self, StoreError> {
        let file = name(number);
        let damaged = |what: &str| StoreError::damaged(&file, what);
        if bytes.len() < HEADER || !bytes.starts_with(MAGIC) {
            return Err(damaged("this is no journal segment, or its beginning is gone"));
        }
        let mut rest = &bytes[MAGIC.len()..];
        let format = u16::from_be_bytes(take(&mut rest));
        if format != FORMAT {
            return Err(StoreError::NewerFormat(file.clone()));
        }
        let named = u32::from_be_bytes(take(&mut rest));
        let first_ordinal = u64::from_be_bytes(take(&mut rest));
        let certificate = Certificate {
            store: take(&mut rest),
            epoch: u32::from_be_bytes(take(&mut rest)),
            first_seq: u64::from_be_bytes(take(&mut rest)),
            prev: take(&mut rest),
            public_key: take(&mut rest),
            signature: take(&mut rest),
        };
        if named != number || certificate.epoch != number {
            return Err(damaged("it is another segment than its name says"));
        }
        let sector = &bytes[KEYS_AT..KEYS_AT + KEYS_SECTOR];
        let keys = if sector.iter().all(|b| *b == 0) {
            None
        } else {
            let plain = journal
                .open(&keys_place(&bytes[..FIXED]), &sector[..KEYS_SEALED])
                .map_err(|_| damaged("its keys do not open; its header was changed, or the key is wrong"))?;
            let mut plain = &plain[..];
            let epoch = EpochKeys::from_bytes(&take(&mut plain));
            Some(SegmentKeys::new(epoch, take(&mut plain)))
        };
        Ok(Self { number, first_ordinal, certificate, keys })
    }

    /// Destroys the keys of a segment that is not the newest any more.
    pub(crate) fn erase_keys(file: &dyn DiskFile) -> std::io::Result<()> {
        file.write_at(&[0; KEYS_SECTOR], KEYS_AT as u64)?;
        file.sync()
    }
}

/// The keys are bound to the whole fixed part of the header.
fn keys_place(fixed: &[u8]) -> Aad<'_> {
    Aad { table: "segment-keys", key: fixed, format: FORMAT }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (head, rest) = bytes.split_at(N);
    *bytes = rest;
    let mut out = [0; N];
    out.copy_from_slice(head);
    out
}

/// A record's clear part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordHead {
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    pub(crate) ordinal: u64,
    /// Bytes of the segment that were durable when this was written.
    pub(crate) durable_to: u32,
    length: u32,
}

/// Bytes that a record of `plain` bytes takes.
pub(crate) fn record_size(plain: usize) -> usize {
    (RECORD + plain + hearth_vault::OVERHEAD).next_multiple_of(ALIGN)
}

/// Appends a record to `out`, which must be aligned.
pub(crate) fn push_record(
    out: &mut Vec<u8>,
    (segment, keys): (u32, &DomainKeys),
    (kind, flags, ordinal, durable_to): (RecordKind, u8, u64, u32),
    nonce: [u8; 24],
    plain: &[u8],
) {
    let at = out.len();
    let length = (plain.len() + hearth_vault::OVERHEAD) as u32;
    out.extend(RECORD_MAGIC.to_be_bytes());
    out.push(kind as u8);
    out.push(flags);
    out.extend(length.to_be_bytes());
    out.extend(ordinal.to_be_bytes());
    out.extend(durable_to.to_be_bytes());
    out.extend([0; 4]);
    let place = record_place(segment, &out[at..]);
    let sealed = keys.seal(nonce, &Aad { table: "record", key: &place, format: FORMAT }, plain);
    out.extend(sealed);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

fn record_place(segment: u32, head: &[u8]) -> Vec<u8> {
    [&segment.to_be_bytes()[..], head].concat()
}

/// A whole segment in memory, for reading.
pub(crate) struct Segment {
    pub(crate) header: Header,
    bytes: Vec<u8>,
}

/// Why there is no record at a place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRecord {
    /// Zeros: the end.
    End,
    /// Something that is no whole record.
    Bad,
}

impl Segment {
    pub(crate) fn read(file: &dyn DiskFile, number: u32, journal: &DomainKeys) -> Result<Self, StoreError> {
        let bytes = read_all(file, SEGMENT_MAX).map_err(|e| StoreError::io(&name(number), &e))?;
        Ok(Self { header: Header::decode(&bytes, number, journal)?, bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The clear part of the record at `at` and where the next one begins.
    fn head_at(&self, at: usize) -> Result<(RecordHead, usize), NoRecord> {
        let Some(head) = self.bytes.get(at..at + RECORD) else { return Err(NoRecord::End) };
        if head.iter().all(|b| *b == 0) {
            return Err(NoRecord::End);
        }
        let mut rest = head;
        let magic = u16::from_be_bytes(take(&mut rest));
        let [kind, flags] = take(&mut rest);
        let length = u32::from_be_bytes(take(&mut rest));
        let ordinal = u64::from_be_bytes(take(&mut rest));
        let durable_to = u32::from_be_bytes(take(&mut rest));
        let kind = RecordKind::from_byte(kind).filter(|_| magic == RECORD_MAGIC).ok_or(NoRecord::Bad)?;
        let next = (at + RECORD + length as usize).next_multiple_of(ALIGN);
        if (length as usize) < hearth_vault::OVERHEAD || next > self.bytes.len() {
            return Err(NoRecord::Bad);
        }
        Ok((RecordHead { kind, flags, ordinal, durable_to, length }, next))
    }

    /// The record at `at`, opened, and where the next one begins. A record of
    /// rows whose key was destroyed is skipped as an empty one.
    pub(crate) fn record_at(
        &self,
        at: usize,
        audit: &DomainKeys,
    ) -> Result<(RecordHead, Zeroizing<Vec<u8>>, usize), NoRecord> {
        let (head, next) = self.head_at(at)?;
        let keys = match head.kind {
            RecordKind::Audit | RecordKind::Head => audit,
            RecordKind::Writes => match &self.header.keys {
                Some(keys) => &keys.writes,
                None => return Ok((head, Zeroizing::default(), next)),
            },
        };
        let place = record_place(self.header.number, &self.bytes[at..at + RECORD]);
        let sealed = &self.bytes[at + RECORD..at + RECORD + head.length as usize];
        let plain = keys
            .open(&Aad { table: "record", key: &place, format: FORMAT }, sealed)
            .map_err(|_| NoRecord::Bad)?;
        Ok((head, plain, next))
    }

    /// True when whole records lead from `at` exactly to `end`.
    pub(crate) fn reaches(&self, mut at: usize, end: usize, audit: &DomainKeys) -> bool {
        while at < end {
            match self.record_at(at, audit) {
                Ok((_, _, next)) => at = next,
                Err(_) => return false,
            }
        }
        at == end
    }

    /// True when a whole record lies behind `at` that was written after `at` was
    /// durable: then what is bad at `at` is no torn end.
    pub(crate) fn later_witness(&self, at: usize, audit: &DomainKeys) -> bool {
        let mut look = at + ALIGN;
        while look + RECORD <= self.bytes.len() {
            if self.bytes[look..look + 2] == RECORD_MAGIC.to_be_bytes()
                && let Ok((head, plain, _)) = self.record_at(look, audit)
                && head.durable_to as usize > at
                && !plain.is_empty()
            {
                return true;
            }
            look += ALIGN;
        }
        false
    }

    /// Where the zeros begin that reach to the end.
    pub(crate) fn used(&self) -> usize {
        self.bytes.iter().rposition(|b| *b != 0).map_or(HEADER, |at| (at + 1).max(HEADER))
    }
}
