//! Reading the audit log from its segments. Takes no lock and writes nothing,
//! so that it works with and without a running daemon.

use hearth_audit::{
    Chain, ChainState, EpochKeys, Finding, Line, Remembered, Report, Verifier, entry_line, epoch_line,
    head_line,
};
use hearth_vault::{DataKey, Domain, DomainKeys};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::index::peek_checkpoint;
use crate::open::{open_segment, parse_entry, segments};
use crate::segment::{self, END, HEADER, NoRecord, RecordKind, Segment};
use crate::writer::parse_head;

/// The audit log of a store.
pub struct AuditLog<'a> {
    disk: &'a dyn Disk,
    journal: DomainKeys,
    audit: DomainKeys,
}

/// Why reading ended.
enum Stop {
    /// At zeros.
    End,
    /// At something that is no whole record, or no whole batch.
    Bad,
    /// The visitor had enough.
    Asked,
}

/// A segment that was read.
struct Read {
    segment: Segment,
    stop: Stop,
    /// Where reading ended.
    at: usize,
    /// Entries behind the last whole batch: they do not count.
    unfinished: u64,
}

impl<'a> AuditLog<'a> {
    /// The log of the store on `disk`.
    pub fn new(disk: &'a dyn Disk, data_key: &DataKey) -> Self {
        Self { disk, journal: data_key.domain(Domain::Journal), audit: data_key.domain(Domain::Audit) }
    }

    /// Hands the lines of one segment to `visit` until it answers `false`. Of a
    /// batch that is not whole it hands out nothing.
    fn visit_segment(
        &self,
        number: u32,
        visit: &mut dyn FnMut(Line<'_>) -> Result<bool, StoreError>,
    ) -> Result<Read, StoreError> {
        let file = open_segment(self.disk, number)?;
        let segment = Segment::read(&*file, number, &self.journal)?;
        let certificate = segment.header.certificate.clone();
        let store = certificate.store;
        let mut batch = Vec::new();
        let mut at = HEADER;
        let mut go_on = visit(Line::Epoch(certificate))?;
        let stop = loop {
            if !go_on {
                break Stop::Asked;
            }
            let (head, plain, next) = match segment.record_at(at, &self.audit) {
                Ok(found) => found,
                Err(NoRecord::End) if segment.used() <= at && batch.is_empty() => break Stop::End,
                Err(_) => break Stop::Bad,
            };
            batch.push((head.kind, plain));
            at = next;
            if head.flags & END == 0 {
                continue;
            }
            for (kind, plain) in batch.drain(..) {
                let line = match kind {
                    RecordKind::Writes => continue,
                    RecordKind::Audit => {
                        plain.split_first_chunk().map(|(mac, line)| Line::Entry { line, mac: *mac })
                    }
                    RecordKind::Head => parse_head(&plain, store, number).map(Line::Head),
                };
                let line = line.ok_or_else(|| altered(number, "a record is malformed"))?;
                go_on = go_on && visit(line)?;
            }
        };
        let unfinished = batch.iter().filter(|(kind, _)| *kind == RecordKind::Audit).count() as u64;
        Ok(Read { segment, stop, at, unfinished })
    }

    /// Hands every line of the log to `visit` and verifies it on the way: chain,
    /// certificates, heads, and the MACs of the newest epoch. Stops at the first
    /// finding. Answers the keys of the newest epoch with the report.
    fn walk(
        &self,
        mut verifier: Verifier,
        visit: &mut dyn FnMut(&Line<'_>) -> Result<(), StoreError>,
    ) -> Result<(Report, Option<EpochKeys>), StoreError> {
        let numbers = segments(self.disk)?;
        let (mut broken, mut newest) = (None, None);
        for (i, number) in numbers.iter().enumerate() {
            let last = i + 1 == numbers.len();
            if last {
                let file = open_segment(self.disk, *number)?;
                let keys = Segment::read(&*file, *number, &self.journal)?.header.keys;
                newest = keys.map(|keys| keys.epoch);
                if let Some(keys) = &newest {
                    verifier = verifier.with_macs(*number, keys.clone());
                }
            }
            let mut count = 0;
            let read = self.visit_segment(*number, &mut |line| {
                count += u64::from(matches!(line, Line::Entry { .. }));
                verifier.push_line(&line);
                if verifier.is_decided() {
                    return Ok(false);
                }
                visit(&line).map(|()| true)
            })?;
            // In the newest segment a torn end is no tampering; a running daemon may be writing it.
            if matches!(read.stop, Stop::Bad) && (!last || read.segment.later_witness(read.at, &self.audit)) {
                let first = read.segment.header.certificate.first_seq;
                broken = Some(first + count + read.unfinished);
                break;
            }
            if matches!(read.stop, Stop::Asked) {
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
        Ok((report, newest))
    }

    /// Verifies the whole log: chain, certificates, heads, and the MACs of the
    /// newest epoch. `remembered` is a head that was noted earlier. What is wrong
    /// is in the report; an error says that the log cannot be read.
    pub fn verify(
        &self,
        identity: Option<[u8; 32]>,
        remembered: Option<Remembered>,
    ) -> Result<Report, StoreError> {
        Ok(self.walk(Verifier::new(identity, remembered), &mut |_| Ok(()))?.0)
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

    /// Hands every line of an export to `write`. The last one is a closing head,
    /// signed now with the key of the newest epoch. Nothing is signed for a log
    /// that is not as it was written, or that does not reach to `remembered`: the
    /// error names the place.
    pub fn export(
        &self,
        remembered: Option<Remembered>,
        write: &mut dyn FnMut(&str) -> std::io::Result<()>,
    ) -> Result<(), StoreError> {
        let mut write = |text: &str| write(text).map_err(|e| StoreError::io("export", &e));
        let mut place = None;
        let (report, keys) = self.walk(Verifier::new(None, remembered), &mut |line| {
            write(&match line {
                Line::Epoch(c) => {
                    place = Some((c.epoch, c.store));
                    epoch_line(c)
                }
                Line::Head(h) => head_line(h),
                Line::Entry { line, mac } => {
                    let plain = [&mac[..], line].concat();
                    let malformed = || altered(place.map_or(0, |p| p.0), "an audit entry is malformed");
                    entry_line(&parse_entry(&plain).ok_or_else(malformed)?)
                }
            })
        })?;
        let (number, store) = place.unwrap_or_default();
        if let Some(finding) = report.finding {
            return Err(altered(number, &finding.to_string()));
        }
        let keys = keys.ok_or_else(|| StoreError::Missing(segment::name(number + 1)))?;
        let end = ChainState { next_seq: report.end.size, last_hash: report.end.hash };
        let chain = Chain::resume(store, number, keys, Default::default(), end);
        write(&head_line(&chain.head(true)))
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
