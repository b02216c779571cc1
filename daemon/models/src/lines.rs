//! Bytes to lines, whatever the network did to them.

/// Longest line, in bytes.
pub(crate) const LINE_MAX: usize = 256 * 1024;
/// Longest answer, in bytes as they come over the wire.
pub(crate) const TOTAL_MAX: usize = 4 * 1024 * 1024;

/// Why a stream was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooLong {
    #[error("a line of more than 256 KiB")]
    Line,
    #[error("an answer of more than 4 MiB")]
    Total,
}

/// Collects bytes to a line feed; a carriage return in front of it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    part: Vec<u8>,
}

impl Lines {
    /// Hands each whole line to `each` until that says stop.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), TooLong> {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (head, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.part.len() + head.len() > LINE_MAX {
                return Err(TooLong::Line);
            }
            bytes = rest;
            let more = if self.part.is_empty() {
                each(trim(head))
            } else {
                self.part.extend_from_slice(head);
                let more = each(trim(&self.part));
                self.part.clear();
                more
            };
            if !more {
                return Ok(());
            }
        }
        if self.part.len() + bytes.len() > LINE_MAX {
            return Err(TooLong::Line);
        }
        self.part.extend_from_slice(bytes);
        Ok(())
    }

    /// The last line, when the stream ended without a line feed.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let part = std::mem::take(&mut self.part);
        trim(&part).to_vec()
    }
}

fn trim(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests;
