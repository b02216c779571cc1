//! Beginning and end of a stream of any length, in bounded memory.

use std::collections::VecDeque;

use crate::text;

/// Keeps the first and the last bytes of what is pushed.
pub(crate) struct Clip {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_max: usize,
    tail_max: usize,
    total: u64,
}

impl Clip {
    /// Three quarters of `max` for the beginning, one for the end.
    pub(crate) fn new(max: usize) -> Self {
        let tail_max = max / 4;
        Self { head: Vec::new(), tail: VecDeque::new(), head_max: max - tail_max, tail_max, total: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_max - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(&rest[rest.len().saturating_sub(self.tail_max)..]);
        self.tail.drain(..self.tail.len().saturating_sub(self.tail_max));
    }

    /// Bytes pushed so far.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The text without control characters, with a mark where bytes are
    /// missing; the flag says whether there are any.
    pub(crate) fn finish(mut self) -> (String, bool) {
        let kept = (self.head.len() + self.tail.len()) as u64;
        let left_out = self.total - kept;
        if left_out == 0 {
            self.head.extend(self.tail);
            return (text::readable(&self.head), false);
        }
        let tail: Vec<u8> = self.tail.into();
        let mark = text::mark(left_out);
        (format!("{}{mark}{}", text::readable(&self.head), text::readable(&tail)), true)
    }
}
