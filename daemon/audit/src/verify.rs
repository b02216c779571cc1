//! The reading side: verifies an export line by line and names the first entry
//! that is not as it was written. Needs no secret; memory does not grow with the log.

use std::fmt;

use serde::Deserialize;

use crate::chain::link;
use crate::export::Line;
use crate::{Certificate, EpochKeys, Hash, Head, hex, unhex};

/// What is wrong, at the first place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The entry is not what was written.
    Edited {
        /// Its number.
        seq: u64,
    },
    /// Entries are missing.
    Deleted {
        /// The first that is missing.
        from: u64,
        /// The last that is missing.
        to: u64,
    },
    /// Two entries have changed places.
    Swapped {
        /// The one that should stand here.
        seq: u64,
        /// The one that does.
        with: u64,
    },
    /// The entry stands here a second time.
    Duplicated {
        /// Its number.
        seq: u64,
    },
    /// An entry that was never written stands here.
    Inserted {
        /// The number that it claims.
        seq: u64,
    },
    /// The end is missing.
    Truncated {
        /// Entries that are there.
        have: u64,
        /// Entries that there were, where a signed head says so.
        expected: Option<u64>,
    },
    /// This is an older or another copy than one that was seen before.
    RolledBack {
        /// Entries that are there.
        have: u64,
        /// Entries that the remembered head had.
        remembered: u64,
    },
    /// A head does not fit its entries, or its signature is wrong.
    BadHead {
        /// Entries before it.
        size: u64,
    },
    /// An epoch's certificate is wrong, missing, or not by the key before it.
    BadCertificate {
        /// The epoch that was expected.
        epoch: u32,
    },
    /// The log belongs to another box than the one that was named.
    OtherIdentity,
    /// A line is none of an export.
    Malformed {
        /// Its number, from 1.
        line: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edited { seq } => write!(f, "entry {seq} was edited"),
            Self::Deleted { from, to } if from == to => write!(f, "entry {from} was deleted"),
            Self::Deleted { from, to } => write!(f, "entries {from} to {to} were deleted"),
            Self::Swapped { seq, with } => write!(f, "entry {seq} was swapped with entry {with}"),
            Self::Duplicated { seq } => write!(f, "entry {seq} stands there twice"),
            Self::Inserted { seq } => write!(f, "an entry was inserted as number {seq}"),
            Self::Truncated { have, expected: Some(n) } => {
                write!(f, "the end was cut off: {have} of {n} entries are left")
            }
            Self::Truncated { have, expected: None } => write!(f, "the end was cut off after {have} entries"),
            Self::RolledBack { have, remembered } if have < remembered => {
                write!(
                    f,
                    "the end was cut off, or this is an older copy: {have} of {remembered} entries are left"
                )
            }
            Self::RolledBack { remembered, .. } => {
                write!(f, "this is another copy: it had other entries when there were {remembered}")
            }
            Self::BadHead { size } => write!(f, "the signed head after {size} entries is wrong"),
            Self::BadCertificate { epoch } => {
                write!(f, "the certificate of epoch {epoch} is wrong or missing")
            }
            Self::OtherIdentity => f.write_str("this is the log of another box"),
            Self::Malformed { line } => write!(f, "line {line} cannot be read"),
        }
    }
}

/// A head that somebody noted: `SIZE:HASH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// Entries.
    pub size: u64,
    /// Hash of the last.
    pub hash: Hash,
}

impl Remembered {
    /// Reads `SIZE:HASH`.
    pub fn parse(text: &str) -> Option<Self> {
        let (size, hash) = text.trim().split_once(':')?;
        Some(Self { size: size.parse().ok()?, hash: unhex(hash)? })
    }
}

impl fmt::Display for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.size, hex(&self.hash))
    }
}

/// What was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Entries that are proven.
    pub entries: u64,
    /// Epochs that were seen.
    pub epochs: u32,
    /// Heads that were checked.
    pub heads: u64,
    /// Identity of the log: the public key of its first epoch here.
    pub identity: Option<[u8; 32]>,
    /// Where the log ends.
    pub end: Remembered,
    /// The first thing that is wrong; `None` when all is well.
    pub finding: Option<Finding>,
}

#[derive(Deserialize)]
struct Link<'a> {
    seq: u64,
    prev: &'a str,
}

/// A link that does not fit; the next line tells whose fault it is.
enum Suspect {
    /// Entry `seq` names another predecessor than the one before it.
    Link { seq: u64, hash: Hash },
    /// Entry `got` stands where `expected` should.
    Order { expected: u64, got: u64 },
}

/// Verifies an export, line by line.
pub struct Verifier {
    identity: Option<[u8; 32]>,
    remembered: Option<Remembered>,
    macs: Option<(u32, EpochKeys)>,
    store: Option<[u8; 16]>,
    epoch: Option<(u32, [u8; 32])>,
    first_key: Option<[u8; 32]>,
    next_seq: u64,
    last_hash: Hash,
    last_line_hash: Hash,
    epochs: u32,
    heads: u64,
    lines: u64,
    closed: bool,
    suspect: Option<Suspect>,
    finding: Option<Finding>,
}

impl Verifier {
    /// `identity`: the key that the log must belong to; without it the log's own
    /// is believed. `remembered`: a head that was noted earlier.
    pub fn new(identity: Option<[u8; 32]>, remembered: Option<Remembered>) -> Self {
        Self {
            identity,
            remembered,
            macs: None,
            store: None,
            epoch: None,
            first_key: None,
            next_seq: 0,
            last_hash: [0; 32],
            last_line_hash: [0; 32],
            epochs: 0,
            heads: 0,
            lines: 0,
            closed: false,
            suspect: None,
            finding: None,
        }
    }

    /// Also checks the MACs of one epoch, whose keys are still there.
    pub fn with_macs(mut self, epoch: u32, keys: EpochKeys) -> Self {
        self.macs = Some((epoch, keys));
        self
    }

    /// True once something was found that no later line can explain.
    pub fn is_decided(&self) -> bool {
        self.finding.is_some()
    }

    fn found(&mut self, finding: Finding) {
        self.finding.get_or_insert(finding);
    }

    /// Takes the next line of an export, without its line feed.
    pub fn push(&mut self, line: &[u8]) {
        self.lines += 1;
        if self.finding.is_some() {
            return;
        }
        let parsed = std::str::from_utf8(line).ok().and_then(Line::parse);
        match parsed {
            None => self.unreadable(line),
            Some(Line::Epoch(c)) => self.certificate(&c),
            Some(Line::Entry { line, mac }) => self.entry(line, mac),
            Some(Line::Head(h)) => self.head(&h),
        }
    }

    /// Feeds parts of the store directly, without the text form.
    pub fn push_line(&mut self, line: &Line<'_>) {
        self.lines += 1;
        if self.finding.is_some() {
            return;
        }
        match line {
            Line::Epoch(c) => self.certificate(c),
            Line::Entry { line, mac } => self.entry(line, *mac),
            Line::Head(h) => self.head(h),
        }
    }

    fn unreadable(&mut self, line: &[u8]) {
        // What stands where an entry should is that entry, edited.
        let finding = if self.epoch.is_some() && line.starts_with(b"{\"e") && !line.starts_with(b"{\"epoch") {
            Finding::Edited { seq: self.next_seq }
        } else if line.starts_with(b"{\"head") {
            Finding::BadHead { size: self.next_seq }
        } else if line.starts_with(b"{\"epoch") {
            Finding::BadCertificate { epoch: self.epochs }
        } else if self.epoch.is_some() && line.len() > 64 {
            Finding::Edited { seq: self.next_seq }
        } else {
            Finding::Malformed { line: self.lines }
        };
        self.settle(None);
        self.found(finding);
    }

    fn certificate(&mut self, c: &Certificate) {
        if matches!(self.suspect, Some(Suspect::Order { .. })) {
            return;
        }
        self.settle(Some(&c.prev));
        let signer = self.epoch.map_or(c.public_key, |(_, key)| key);
        let expected = self.epoch.map_or(c.epoch, |(n, _)| n + 1);
        if self.store.is_some_and(|s| s != c.store) || c.epoch != expected {
            return self.found(Finding::BadCertificate { epoch: expected });
        }
        // A log that does not begin at its first epoch begins with a certificate
        // that somebody else has to vouch for: the named identity is its key.
        let vouched = self.epoch.is_some() || c.epoch == 0;
        if vouched && !c.verify(&signer) {
            return self.found(Finding::BadCertificate { epoch: expected });
        }
        if self.epoch.is_none() {
            if self.identity.is_some_and(|key| key != c.public_key) {
                return self.found(Finding::OtherIdentity);
            }
            if c.epoch == 0 && (c.first_seq != 0 || c.prev != [0; 32]) {
                return self.found(Finding::BadCertificate { epoch: 0 });
            }
            self.first_key = Some(c.public_key);
            (self.next_seq, self.last_hash) = (c.first_seq, c.prev);
        } else if c.first_seq > self.next_seq {
            return self.found(Finding::Deleted { from: self.next_seq, to: c.first_seq - 1 });
        } else if c.first_seq != self.next_seq || c.prev != self.last_hash {
            let finding = match self.next_seq.checked_sub(1) {
                Some(seq) if c.first_seq == self.next_seq => Finding::Edited { seq },
                _ => Finding::BadCertificate { epoch: expected },
            };
            return self.found(finding);
        }
        self.store = Some(c.store);
        self.epoch = Some((c.epoch, c.public_key));
        self.epochs += 1;
        self.closed = false;
    }

    fn entry(&mut self, line: &[u8], mac: Hash) {
        let Some((epoch, _)) = self.epoch else { return self.found(Finding::BadCertificate { epoch: 0 }) };
        self.closed = false;
        let expected = self.next_seq;
        let hash = link(line, &mac);
        let Ok(Link { seq, prev }) = serde_json::from_slice::<Link<'_>>(line) else {
            self.settle(None);
            return self.found(Finding::Edited { seq: expected });
        };
        let prev: Option<Hash> = unhex(prev);
        if let Some(Suspect::Order { expected: missing, got }) = self.suspect {
            // Only the place of the missing entry matters any more.
            if seq == missing {
                self.suspect = None;
                self.found(Finding::Swapped { seq: missing, with: got });
            }
            return;
        }
        self.settle(prev.as_ref());
        if self.finding.is_some() {
            return;
        }
        if seq != expected {
            if prev == Some(self.last_hash) {
                self.found(Finding::Edited { seq: expected });
            } else if seq > expected {
                self.suspect = Some(Suspect::Order { expected, got: seq });
            } else if hash == self.last_line_hash {
                self.found(Finding::Duplicated { seq });
            } else if seq + 1 == expected {
                self.found(Finding::Inserted { seq });
            } else {
                self.found(Finding::Duplicated { seq });
            }
            return;
        }
        if let Some((n, keys)) = &self.macs
            && *n == epoch
            && keys.mac(line) != mac
        {
            return self.found(Finding::Edited { seq });
        }
        if prev != Some(self.last_hash) {
            self.suspect = Some(Suspect::Link { seq, hash });
        }
        self.next_seq = seq + 1;
        self.last_hash = hash;
        self.last_line_hash = hash;
        if let Some(r) = self.remembered.filter(|r| r.size == self.next_seq && r.hash != hash)
            && self.suspect.is_none()
        {
            self.found(Finding::RolledBack { have: self.next_seq, remembered: r.size });
        }
    }

    /// Decides a suspected link by what the next line names as its predecessor.
    fn settle(&mut self, next_prev: Option<&Hash>) {
        match self.suspect.take() {
            None => {}
            Some(Suspect::Link { seq, hash }) => {
                // When the next line knows this entry as it is, the one before it was edited.
                let known = next_prev == Some(&hash);
                let bad = if known && seq > 0 { seq - 1 } else { seq };
                self.found(Finding::Edited { seq: bad });
            }
            Some(Suspect::Order { expected, got }) => {
                self.found(Finding::Deleted { from: expected, to: got - 1 })
            }
        }
    }

    fn head(&mut self, h: &Head) {
        let Some((epoch, key)) = self.epoch else { return self.found(Finding::BadCertificate { epoch: 0 }) };
        if matches!(self.suspect, Some(Suspect::Order { .. })) && !h.closing {
            return;
        }
        if let Some(Suspect::Link { .. }) = self.suspect {
            self.settle(Some(&h.hash));
            return;
        }
        self.settle(None);
        if self.finding.is_some() {
            return;
        }
        let signed = h.epoch == epoch && self.store == Some(h.store) && h.verify(&key);
        let finding = match (signed, h.size.cmp(&self.next_seq)) {
            (true, std::cmp::Ordering::Equal) if h.hash == self.last_hash => {
                self.heads += 1;
                self.closed = h.closing;
                return;
            }
            (true, std::cmp::Ordering::Equal) if h.size > 0 => Finding::Edited { seq: h.size - 1 },
            (true, std::cmp::Ordering::Greater) => Finding::Deleted { from: self.next_seq, to: h.size - 1 },
            _ => Finding::BadHead { size: self.next_seq },
        };
        self.found(finding);
    }

    /// The result, after the last line. `closing` says whether the log has to
    /// end with a closing head, as an export has.
    pub fn finish(mut self, closing: bool) -> Report {
        self.settle(None);
        if self.finding.is_none() && self.epoch.is_none() {
            self.found(Finding::Truncated { have: 0, expected: None });
        }
        if self.finding.is_none() && closing && !self.closed {
            let expected = self.remembered.map(|r| r.size).filter(|n| *n > self.next_seq);
            self.found(Finding::Truncated { have: self.next_seq, expected });
        }
        if let Some(r) = self.remembered.filter(|r| r.size > self.next_seq) {
            self.found(Finding::RolledBack { have: self.next_seq, remembered: r.size });
        }
        Report {
            entries: self.next_seq,
            epochs: self.epochs,
            heads: self.heads,
            identity: self.first_key,
            end: Remembered { size: self.next_seq, hash: self.last_hash },
            finding: self.finding,
        }
    }
}
