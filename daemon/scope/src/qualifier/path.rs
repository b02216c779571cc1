//! Absolute paths by segment.

use super::text::glob_contains;

/// Any number of segments, none included.
const DEEP: &str = "**";

/// One leading slash, no empty, `.` or `..` segment, no trailing slash; `**` is
/// a segment of its own, and at the end means "everything below" (as `*` does).
pub(super) fn canonical(text: &str) -> Result<String, &'static str> {
    let rest = text.strip_prefix('/').ok_or("a path must start with \"/\"")?;
    if rest.is_empty() {
        return Ok("/".to_owned());
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in rest.strip_suffix('/').unwrap_or(rest).split('/') {
        match segment {
            "" => return Err("a path must not hold \"//\""),
            "." | ".." => return Err("a path must not hold \".\" or \"..\" segments"),
            DEEP if segments.last() == Some(&DEEP) => {}
            DEEP => segments.push(segment),
            _ if segment.contains(DEEP) => return Err("\"**\" must be a whole segment"),
            _ => segments.push(segment),
        }
    }
    if let Some(last) = segments.last_mut().filter(|last| **last == DEEP) {
        *last = "*";
    }
    Ok(format!("/{}", segments.join("/")))
}

/// A path stands for itself and everything below it, by segment.
pub(super) fn contains(held: &str, needed: &str) -> bool {
    fn split(path: &str) -> impl Iterator<Item = &str> {
        path.split('/').filter(|segment| !segment.is_empty())
    }
    segments_contain(split(held), split(needed))
}

/// Lays the pattern `held` over the pattern `needed`, segment by segment; what
/// is left of `needed` lies below. A wildcard of `needed` is covered only by an
/// equal or wider one, so the relation is transitive. Costs held × needed steps.
pub(super) fn segments_contain<'a>(
    held: impl Iterator<Item = &'a str>,
    needed: impl Iterator<Item = &'a str>,
) -> bool {
    let needed: Vec<&str> = needed.collect();
    // reach[n]: the held segments so far can cover exactly the first n needed ones.
    let mut reach = vec![false; needed.len() + 1];
    reach[0] = true;
    for pattern in held {
        if pattern == DEEP {
            let mut any = false;
            for slot in &mut reach {
                any |= *slot;
                *slot = any;
            }
        } else {
            for n in (0..needed.len()).rev() {
                reach[n + 1] = reach[n] && needed[n] != DEEP && glob_contains(pattern, needed[n]);
            }
            reach[0] = false;
        }
    }
    reach.contains(&true)
}
