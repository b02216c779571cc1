//! "Remember that ..." is understood without asking the model.

/// Openings that mark the rest of the message as something to remember, lower case.
const OPENINGS: &[&str] = &[
    "please remember that ",
    "please remember: ",
    "remember that ",
    "remember: ",
    "merk dir, dass ",
    "merk dir dass ",
    "merke dir, dass ",
    "merke dir dass ",
    "merk dir: ",
    "bitte merk dir, dass ",
    "bitte merke dir, dass ",
];

/// Longest text that is captured, in bytes; longer messages go to the model.
const CAPTURE_MAX: usize = 4096;

/// The text to remember, when the whole message is such a request.
pub(crate) fn remember(text: &str) -> Option<&str> {
    let text = text.trim();
    if text.len() > CAPTURE_MAX || text.ends_with('?') {
        return None;
    }
    let lower = text.to_lowercase();
    // Lower-casing must not have moved the cut.
    let opening = OPENINGS.iter().find(|o| lower.starts_with(**o))?;
    let rest = text.get(opening.len()..)?.trim();
    (rest.len() > 2).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::remember;

    #[test]
    fn captures_whole_requests_only() {
        #[track_caller]
        fn check(text: &str, expect: Option<&str>) {
            assert_eq!(remember(text), expect, "{text}");
        }
        check("Remember that the boiler was serviced in March.", Some("the boiler was serviced in March."));
        check("  remember: milk ", Some("milk"));
        check("Merk dir, dass Ümit am Freitag kommt", Some("Ümit am Freitag kommt"));
        check("Do you remember that film?", None);
        check("Remember that film?", None);
        check("remember that ", None);
        check("What should I remember that for", None);
        check("İremember that x y z", None);
        check(&format!("remember that {}", "x".repeat(5000)), None);
    }
}
