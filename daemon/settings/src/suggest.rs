//! "Did you mean": the nearest known name.

/// The candidate with the fewest edits, when few enough that it is a likely
/// misspelling; ties go to the first.
pub(crate) fn closest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if wrong.len() > 64 {
        return None;
    }
    let allowed = match wrong.len() {
        0..=2 => 0,
        3..=5 => 1,
        6..=11 => 2,
        _ => 3,
    };
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&wrong.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_find_their_word_and_strangers_do_not() {
        let words = ["max_steps", "max_calls_per_step", "url", "model", "remote"];
        let table = [
            ("max_step", Some("max_steps")),
            ("max-steps", Some("max_steps")),
            ("maxsteps", Some("max_steps")),
            ("Max_Steps", Some("max_steps")),
            ("mdoel", Some("model")),
            ("ulr", Some("url")),
            ("rmeote", Some("remote")),
            ("boiler", None),
            ("", None),
            ("xx", None),
        ];
        for (wrong, right) in table {
            assert_eq!(closest(wrong, words), right, "{wrong}");
        }
        assert_eq!(closest(&"x".repeat(1 << 20), words), None);
    }
}
