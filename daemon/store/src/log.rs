//! Reading the audit log from its segments. Takes no lock and writes nothing,
//! so that it works with and without a running daemon.

use hearth_audit::{Finding, Line, Remembered, Report, Sealed, Verifier, entry_line, epoch_line, head_line};
use hearth_vault::{DataKey, Domain, DomainKeys};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::index::peek_checkpoint;
use crate::open::{open_segment, parse_entry, segments};
use crate::segment::{self, HEADER, NoRecord, RecordKind, Segment};
use crate::writer::parse_head;

/// The audit log of a store.
pub struct AuditLog<'a> {
    disk: &'a dyn Disk,
    journal: DomainKeys,
    audit: DomainKeys,
}

/// Where reading ended.
enum Stop {
    /// At zeros.
    End,
    /// At something that is no whole record.
    Bad,
    /// The visitor had enough.
    Asked,
}

impl<'a> AuditLog<'a> {
    /// The log of the store on `disk`.
    pub fn new(disk: &'a dyn Disk, data_key: &DataKey) -> Self {
        Self { disk, journal: data_key.domain(Domain::Journal), audit: data_key.domain(Domain::Audit) }
    }

    /// Hands the lines of one segment to `visit` until it answers `false`.
    fn visit_segment(
        &self,
        number: u32,
        visit: &mut dyn FnMut(Line<'_>) -> Result<bool, StoreError>,
    ) -> Result<(Segment, Stop), StoreError> {
        let file = open_segment(self.disk, number)?;
        let read = Segment::read(&*file, number, &self.journal)?;
        let certificate = read.header.certificate.clone();
        let store = certificate.store;
        if !visit(Line::Epoch(certificate))? {
            return Ok((read, Stop::Asked));
        }
        let mut at = HEADER;
        let stop = loop {
            let (head, plain, next) = match read.record_at(at, &self.audit) {
                Ok(found) => found,
                Err(NoRecord::End) => break if read.used() > at { Stop::Bad } else { Stop::End },
                Err(NoRecord::Bad) => break Stop::Bad,
            };
            let go_on = match head.kind {
                RecordKind::Writes => true,
                RecordKind::Audit => match plain.split_first_chunk::<32>() {
                    Some((mac, line)) => visit(Line::Entry { line, mac: *mac })?,
                    None => break Stop::Bad,
                },
                RecordKind::Head => match parse_head(&plain, store, number) {
                    Some(head) => visit(Line::Head(head))?,
                    None => break Stop::Bad,
                },
            };
            if !go_on {
                break Stop::Asked;
            }
            at = next;
        };
        Ok((read, stop))
    }

    /// Verifies the whole log: chain, certificates, heads, and the MACs of the
    /// newest epoch. `remembered` is a head that was noted earlier.
    pub fn verify(
        &self,
        identity: Option<[u8; 32]>,
        remembered: Option<Remembered>,
    ) -> Result<Report, StoreError> {
        let numbers = segments(self.disk)?;
        let mut verifier = Verifier::new(identity, remembered);
        let mut broken = None;
        for (i, number) in numbers.iter().enumerate() {
            let last = i + 1 == numbers.len();
            if last {
                let file = open_segment(self.disk, *number)?;
                let read = Segment::read(&*file, *number, &self.journal)?;
                if let Some(keys) = read.header.keys {
                    verifier = verifier.with_macs(*number, keys.epoch);
                }
            }
            let mut count = 0;
            let (read, stop) = self.visit_segment(*number, &mut |line| {
                count += usize::from(matches!(line, Line::Entry { .. }));
                verifier.push_line(&line);
                Ok(!verifier.is_decided())
            })?;
            // In the newest segment a torn end is no tampering; a running daemon may be writing it.
            if matches!(stop, Stop::Bad) && (!last || read.later_witness(self.bad_at(&read), &self.audit)) {
                broken = Some(read.header.certificate.first_seq + count as u64);
                break;
            }
        }
        let mut report = verifier.finish(false);
        // That the rest is missing follows from the record that cannot be read.
        let follows = match report.finding {
            None => true,
            Some(Finding::RolledBack { have, remembered }) => have < remembered,
            Some(_) => false,
        };
        if let (true, Some(seq)) = (follows, broken) {
            report.finding = Some(Finding::Edited { seq });
        }
        Ok(report)
    }

    /// The head that the index remembers, so that a log whose end was cut off is
    /// found out. `None` while a daemon has the store open: then it knows the head.
    pub fn remembered(&self) -> Result<Option<Remembered>, StoreError> {
        if !self.disk.lock().map_err(|e| StoreError::io("lock", &e))? {
            return Ok(None);
        }
        let checkpoint = peek_checkpoint(self.disk, &self.journal);
        self.disk.unlock();
        checkpoint.map(|c| Some(Remembered { size: c.next_seq, hash: c.last_hash }))
    }

    fn bad_at(&self, read: &Segment) -> usize {
        let mut at = HEADER;
        while let Ok((_, _, next)) = read.record_at(at, &self.audit) {
            at = next;
        }
        at
    }

    /// Hands every line of an export to `write`. The last one is a closing head,
    /// signed now with the key of the newest epoch. Nothing is signed for a log
    /// that cannot be read to its end, or that does not reach to `remembered`.
    pub fn export(
        &self,
        remembered: Option<Remembered>,
        write: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let io = |e| StoreError::io("export", &e);
        let numbers = segments(self.disk)?;
        let mut last: Option<Sealed> = None;
        let mut size = 0;
        let mut reached = remembered.is_none_or(|r| r.size == 0);
        for number in &numbers {
            let newest = Some(number) == numbers.last();
            let (read, stop) = self.visit_segment(*number, &mut |line| {
                let text = match &line {
                    Line::Epoch(c) => epoch_line(c),
                    Line::Head(h) => head_line(h),
                    Line::Entry { line, mac } => {
                        let plain = [&mac[..], line].concat();
                        let sealed = parse_entry(&plain).ok_or_else(|| {
                            StoreError::damaged(&segment::name(*number), "an audit entry is malformed")
                        })?;
                        size = sealed.seq + 1;
                        let text = entry_line(&sealed);
                        reached |= remembered.is_some_and(|r| r.size == size && r.hash == sealed.hash());
                        last = Some(sealed);
                        text
                    }
                };
                write(&text).map_err(io)?;
                Ok(true)
            })?;
            // In the newest segment a torn end is no tampering, see `verify`.
            if matches!(stop, Stop::Bad) && (!newest || read.later_witness(self.bad_at(&read), &self.audit)) {
                return Err(altered(*number, "an entry is not as it was written"));
            }
            if newest {
                if !reached {
                    return Err(altered(*number, "the end of the audit log is missing or another one"));
                }
                let keys = read
                    .header
                    .keys
                    .as_ref()
                    .ok_or_else(|| StoreError::Missing(segment::name(number + 1)))?;
                let store = read.header.certificate.store;
                let hash = last.as_ref().map_or(read.header.certificate.prev, Sealed::hash);
                let state = hearth_audit::ChainState { next_seq: size, last_hash: hash };
                let chain = hearth_audit::Chain::resume(
                    store,
                    *number,
                    keys.epoch.clone(),
                    Default::default(),
                    state,
                );
                write(&head_line(&chain.head(true))).map_err(io)?;
            }
        }
        Ok(())
    }

    /// The newest entries as canonical JSON, newest first, of those that `keep`
    /// wants; at most `limit`. Looks at no more segments than it needs.
    pub fn newest(&self, limit: usize, keep: &dyn Fn(&[u8]) -> bool) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut out = Vec::new();
        for number in segments(self.disk)?.into_iter().rev() {
            let mut found = Vec::new();
            self.visit_segment(number, &mut |line| {
                if let Line::Entry { line, .. } = line
                    && keep(line)
                {
                    found.push(line.to_vec());
                }
                Ok(true)
            })?;
            out.extend(found.into_iter().rev());
            if out.len() >= limit {
                break;
            }
        }
        out.truncate(limit);
        Ok(out)
    }

    /// The identity of the log: the public key of its first epoch.
    pub fn identity(&self) -> Result<[u8; 32], StoreError> {
        let first = *segments(self.disk)?.first().ok_or_else(|| StoreError::Missing(segment::name(0)))?;
        let file = open_segment(self.disk, first)?;
        let mut block = vec![0; HEADER];
        file.read_at(&mut block, 0).map_err(|e| StoreError::io(&segment::name(first), &e))?;
        Ok(segment::Header::decode(&block, first, &self.journal)?.certificate.public_key)
    }
}

/// A log that is not as it was written: nothing may vouch for it.
fn altered(segment: u32, what: &str) -> StoreError {
    StoreError::damaged(&segment::name(segment), format!("{what}; `hearth audit verify` says where"))
}
