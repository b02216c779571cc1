//! URLs and host names. A text that different programs could read as different
//! hosts or paths is refused, not repaired.

use std::borrow::Cow;

use url::{Host, Url};

/// `scheme://host[:port]/path[?query]`, lower-case host in ASCII, no default
/// port, no trailing slashes, no fragment (it is never sent).
pub(super) fn canonical_url(text: &str) -> Result<String, &'static str> {
    if text.contains(|c: char| c.is_whitespace() || c == '\\') {
        return Err("a URL must not hold white space or backslashes");
    }
    let (_, rest) = text.split_once("://").ok_or("a URL starts with \"https://\"")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || authority.contains(['@', '%', '*']) {
        return Err("a URL's host must be plain: no user part, no encoding, no wildcard");
    }
    let raw_path = rest[authority.len()..].split(['?', '#']).next().unwrap_or_default();
    if raw_path.split('/').any(is_dot_segment) {
        return Err("a URL must not hold \".\" or \"..\" segments");
    }
    let url = Url::parse(text).map_err(|_| "it is not a valid URL")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("only http and https URLs are known");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL must not hold a user part");
    }
    let host = url.host().ok_or("a URL needs a host")?;
    if let Host::Domain(name) = host {
        check_labels(name)?;
    }
    let mut out = format!("{}://{host}", url.scheme());
    if let Some(port) = url.port() {
        out.push_str(&format!(":{port}"));
    }
    out.push_str(canonical_path(url.path())?.trim_end_matches('/'));
    if let Some(query) = url.query().filter(|query| !query.is_empty()) {
        out.push('?');
        out.push_str(query);
    }
    Ok(out)
}

/// Same origin, and `held`'s path is a prefix by segment; with a query, equal.
pub(super) fn url_contains(held: &str, needed: &str) -> bool {
    // Canonical texts: after the whole prefix only "/" or "?" can start something
    // that still belongs to the same host and the same segment.
    needed == held
        || (!held.contains('?') && needed.strip_prefix(held).is_some_and(|rest| rest.starts_with(['/', '?'])))
}

/// A host name in ASCII, optionally after `*.`.
pub(super) fn canonical_domain(text: &str) -> Result<String, &'static str> {
    let (star, name) = match text.strip_prefix("*.") {
        Some(name) => ("*.", name),
        None => ("", text),
    };
    if name.contains(['*', '%', '@', ':', '/']) {
        return Err("a host name is plain; \"*.\" may stand in front of it");
    }
    match Host::parse(name) {
        Ok(Host::Domain(name)) => {
            check_labels(&name)?;
            Ok(format!("{star}{name}"))
        }
        Ok(_) => Err("it is an address, not a host name"),
        Err(_) => Err("it is not a valid host name"),
    }
}

/// `*.a` stands for every name below `a`, not for `a`.
pub(super) fn domain_contains(held: &str, needed: &str) -> bool {
    held == needed
        || held
            .strip_prefix('*')
            .is_some_and(|suffix| needed.strip_prefix("*.").unwrap_or(needed).ends_with(suffix))
}

fn check_labels(name: &str) -> Result<(), &'static str> {
    if name.len() > 253 || name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Err("a host name must not have empty or long labels, nor a trailing dot");
    }
    Ok(())
}

/// `.` and `..`, also percent-encoded or with a `;parameter` behind.
fn is_dot_segment(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".").replace("%3b", ";");
    matches!(plain.split(';').next(), Some("." | ".."))
}

/// Decodes what needs no encoding, writes the rest in upper case, and refuses
/// encodings that some server would decode into structure.
fn canonical_path(path: &str) -> Result<Cow<'_, str>, &'static str> {
    if !path.contains('%') {
        return Ok(path.into());
    }
    let mut pieces = path.split('%');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        // A sign in place of the first digit gives a control character: refused below.
        let code = piece.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let code = code.ok_or("a stray \"%\" in the path")?;
        let byte = char::from(code);
        let tail = &piece[2..];
        let twice = tail
            .get(..2)
            .is_some_and(|t| matches!(t.to_ascii_lowercase().as_str(), "2e" | "2f" | "5c" | "25" | "00"));
        if byte.is_ascii_control() || matches!(byte, '/' | '\\') || (byte == '%' && twice) {
            return Err("the path encodes a separator, a control character, or an encoding");
        }
        if byte.is_ascii_alphanumeric() || "-._~".contains(byte) {
            out.push(byte);
        } else {
            out.push_str(&format!("%{code:02X}"));
        }
        out.push_str(tail);
    }
    Ok(out.into())
}
