//! The exported form: one JSON object a line.
//!
//! `{"epoch":{...}}`, `{"entry":<canonical entry>,"mac":"<hex>"}`, `{"head":{...}}`.

use serde_json::{Value, json};

use crate::signed::{Certificate, Head};
use crate::{Hash, Sealed, hex, unhex};

/// Longest line that is read, in bytes.
pub(crate) const LINE_MAX: usize = 256 * 1024;

const ENTRY: &str = "{\"entry\":";
const MAC: &str = ",\"mac\":\"";
const END: &str = "\"}";

/// The line of an epoch.
pub fn epoch_line(c: &Certificate) -> String {
    json!({"epoch": {
        "store": hex(&c.store), "epoch": c.epoch, "first_seq": c.first_seq, "prev": hex(&c.prev),
        "public_key": hex(&c.public_key), "signature": hex(&c.signature),
    }})
    .to_string()
}

/// The line of an entry. The entry stands in it byte for byte.
pub fn entry_line(sealed: &Sealed) -> String {
    let entry = String::from_utf8_lossy(&sealed.line);
    format!("{ENTRY}{entry}{MAC}{}{END}", hex(&sealed.mac))
}

/// The line of a head.
pub fn head_line(h: &Head) -> String {
    json!({"head": {
        "store": hex(&h.store), "epoch": h.epoch, "size": h.size, "hash": hex(&h.hash),
        "closing": h.closing, "signature": hex(&h.signature),
    }})
    .to_string()
}

/// A line of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    /// An epoch begins.
    Epoch(Certificate),
    /// An entry.
    Entry {
        /// Its canonical bytes.
        line: &'a [u8],
        /// Its MAC.
        mac: Hash,
    },
    /// A signed head.
    Head(Head),
}

impl<'a> Line<'a> {
    /// Reads a line; `None` when it is none of the three.
    pub fn parse(text: &'a str) -> Option<Self> {
        if text.len() > LINE_MAX {
            return None;
        }
        if let Some(rest) = text.strip_prefix(ENTRY) {
            let (line, mac) = rest.strip_suffix(END)?.rsplit_once(MAC)?;
            return Some(Self::Entry { line: line.as_bytes(), mac: unhex(mac)? });
        }
        let value: Value = serde_json::from_str(text).ok()?;
        let object = value.as_object().filter(|o| o.len() == 1)?;
        let (name, body) = object.iter().next()?;
        let string = |key: &str| body.get(key)?.as_str();
        let number = |key: &str| body.get(key)?.as_u64();
        let line = match name.as_str() {
            "epoch" => Self::Epoch(Certificate {
                store: unhex(string("store")?)?,
                epoch: u32::try_from(number("epoch")?).ok()?,
                first_seq: number("first_seq")?,
                prev: unhex(string("prev")?)?,
                public_key: unhex(string("public_key")?)?,
                signature: unhex(string("signature")?)?,
            }),
            "head" => Self::Head(Head {
                store: unhex(string("store")?)?,
                epoch: u32::try_from(number("epoch")?).ok()?,
                size: number("size")?,
                hash: unhex(string("hash")?)?,
                closing: body.get("closing")?.as_bool()?,
                signature: unhex(string("signature")?)?,
            }),
            _ => return None,
        };
        // What was read must be what would be written: no room for surplus fields.
        let again = match &line {
            Self::Epoch(c) => epoch_line(c),
            Self::Head(h) => head_line(h),
            Self::Entry { .. } => return None,
        };
        (again == text).then_some(line)
    }
}
