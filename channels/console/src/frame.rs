//! Frames: four bytes of big-endian length, then so many bytes of JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the length in front of each frame.
pub const HEADER: usize = 4;

/// What a side reads at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of JSON in one frame.
    pub bytes: usize,
    /// Nesting of arrays and objects.
    pub depth: usize,
    /// Values in one frame, containers included.
    pub nodes: usize,
}

/// What the daemon reads from a client: 1 MiB.
pub const REQUEST: Limits = Limits { bytes: 1 << 20, depth: 32, nodes: 10_000 };
/// What a client reads from the daemon: long lists, up to the absolute limit
/// of 16 MiB.
pub const RESPONSE: Limits = Limits { bytes: 16 << 20, depth: 32, nodes: 400_000 };

/// Why bytes are not a frame, or a frame not a message. Quotes none of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is zero.
    #[error("an empty frame")]
    Empty,
    /// The length is above the limit; nothing was read into memory for it.
    #[error("a frame of {length} bytes, and {limit} are allowed")]
    TooLarge {
        /// What the header says, or what would have been sent.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The connection ended inside of a frame.
    #[error("the connection ended inside of a frame")]
    Truncated,
    /// Nested too deeply.
    #[error("JSON nested more than {0} deep")]
    TooDeep(usize),
    /// Too many values.
    #[error("more than {0} values in one frame")]
    TooManyNodes(usize),
    /// Not JSON, or not one of the messages.
    #[error("not a known message (byte {column})")]
    NotAMessage {
        /// Where it stopped making sense.
        column: usize,
    },
}

/// One message as a whole frame. Refuses what is larger than `limit` bytes.
pub fn encode(message: &impl Serialize, limit: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER];
    serde_json::to_writer(&mut frame, message).map_err(|_| FrameError::NotAMessage { column: 0 })?;
    let length = frame.len() - HEADER;
    match u32::try_from(length) {
        Ok(header) if length <= limit => {
            frame[..HEADER].copy_from_slice(&header.to_be_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLarge { length, limit }),
    }
}

/// The message in the JSON of one frame, checked against depth and count first.
pub fn parse<T: DeserializeOwned>(json: &[u8], limits: Limits) -> Result<T, FrameError> {
    measure(json, limits)?;
    serde_json::from_slice(json).map_err(|e| FrameError::NotAMessage { column: e.column() })
}

/// Counts containers and separators outside of strings. Unsound JSON may be
/// counted wrongly; the parser refuses it afterwards.
fn measure(json: &[u8], limits: Limits) -> Result<(), FrameError> {
    let (mut depth, mut nodes, mut in_string, mut escaped) = (0_usize, 1_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'[' | b'{' => {
                depth += 1;
                nodes += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => nodes += 1,
            _ => {}
        }
        if depth > limits.depth {
            return Err(FrameError::TooDeep(limits.depth));
        }
        if nodes > limits.nodes {
            return Err(FrameError::TooManyNodes(limits.nodes));
        }
    }
    Ok(())
}

/// Cuts a stream of bytes into frames. Holds at most one frame and what was
/// pushed last.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: usize,
    limit: usize,
}

impl Decoder {
    /// A decoder for frames of at most `limit` bytes of JSON.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, limit }
    }

    /// Takes bytes as they come. Call [`Decoder::next_frame`] until it has no
    /// more before pushing again.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The JSON of the next whole frame, if it has arrived.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header) as usize;
        if length == 0 {
            return Err(FrameError::Empty);
        }
        if length > self.limit {
            return Err(FrameError::TooLarge { length, limit: self.limit });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let begin = self.start + HEADER;
        self.start = begin + length;
        Ok(Some(&self.bytes[begin..self.start]))
    }

    /// True when a frame has begun and not ended.
    pub fn has_begun(&self) -> bool {
        self.start < self.bytes.len()
    }
}

#[cfg(test)]
mod tests;
