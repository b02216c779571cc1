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
        .map(|candidate| (distance(&wrong.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(edits, _)| *edits <= allowed)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (mut older, mut old) = (vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<_>>());
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = old[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(old[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(older[j - 2] + 1);
            }
        }
        older = std::mem::replace(&mut old, row);
    }
    old[b.len()]
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
