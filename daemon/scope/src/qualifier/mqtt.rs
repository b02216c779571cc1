//! MQTT topic filters.

/// Checks the placement of `+` and `#`.
pub(super) fn canonical(filter: &str) -> Result<String, &'static str> {
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level == "#" && levels.peek().is_some() {
            return Err("\"#\" must be the last level of a topic filter");
        }
        if level.len() > 1 && level.contains(['+', '#']) {
            return Err("\"+\" and \"#\" must each be a whole level of a topic filter");
        }
    }
    Ok(filter.to_owned())
}

/// Every topic that `needed` matches, `held` matches. `#` includes its parent
/// level; a leading wildcard does not reach topics that start with `$`.
pub(super) fn contains(held: &str, needed: &str) -> bool {
    if needed.starts_with('$') && held.starts_with(['+', '#']) {
        return false;
    }
    let mut held = held.split('/');
    let mut needed = needed.split('/');
    loop {
        match (held.next(), needed.next()) {
            (Some("#"), _) | (None, None) => return true,
            (Some("+"), Some(level)) if level != "#" => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
    }
}
