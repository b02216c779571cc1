//! Globs, lists of programs, and `group/member` pairs.

use super::path;

/// `**` means the same as `*`.
pub(super) fn collapse_stars(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if !(c == '*' && out.ends_with('*')) {
            out.push(c);
        }
    }
    out
}

/// `*` in `held` covers any run of characters, stars included; a star in
/// `needed` is covered by nothing else. That is exactly containment of the two
/// sets of texts. Each piece is searched once, left to right: linear time.
pub(super) fn glob_contains(held: &str, needed: &str) -> bool {
    let Some((prefix, rest)) = held.split_once('*') else {
        return held == needed;
    };
    let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = needed.strip_prefix(prefix).and_then(|text| text.strip_suffix(suffix)) else {
        return false;
    };
    middle.split('*').all(|piece| match text.find(piece) {
        Some(at) => {
            text = &text[at + piece.len()..];
            true
        }
        None => false,
    })
}

/// Sorted, no duplicates; each item a plain program name or an absolute path.
pub(super) fn canonical_commands(list: &str) -> Result<String, &'static str> {
    let mut items = Vec::new();
    for item in list.split(',') {
        let plain = item.chars().all(|c| c.is_ascii_alphanumeric() || "._+-/".contains(c));
        if item.is_empty() || item.starts_with(['-', '.']) || !plain {
            return Err("a program is a plain name or an absolute path, without arguments");
        }
        if item.contains('/') && path::canonical(item)? != item {
            return Err("a program's path must be in canonical form");
        }
        items.push(item);
    }
    items.sort_unstable();
    items.dedup();
    Ok(items.join(","))
}

/// Superset of programs.
pub(super) fn commands_contain(held: &str, needed: &str) -> bool {
    needed.split(',').all(|item| held.split(',').any(|h| h == item))
}

/// The programs of both lists; empty when there are none.
pub(super) fn commands_in_both(a: &str, b: &str) -> String {
    let both: Vec<_> = a.split(',').filter(|item| b.split(',').any(|o| o == *item)).collect();
    both.join(",")
}

/// One or two segments of letters, digits and `_ . - *`.
pub(super) fn canonical_pair(text: &str) -> Result<String, &'static str> {
    let word = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_alphanumeric() || "_.-*".contains(c));
    let text = collapse_stars(text);
    if text.split('/').count() > 2 || !text.split('/').all(word) {
        return Err("expected \"group\" or \"group/member\" of letters, digits, \"_\", \".\", \"-\", \"*\"");
    }
    Ok(text)
}
