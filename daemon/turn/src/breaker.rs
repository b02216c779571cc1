//! Stops a model that goes in circles.

use hearth_scope::ToolName;

/// Identical consecutive calls that trip the breaker.
const SAME: usize = 3;
/// Longest cycle that is looked for.
const CYCLE: usize = 4;
/// How often a cycle must have been seen.
const ROUNDS: usize = 3;

/// A call as the breaker compares it, whether it can run or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The tool; `None` when there is none of the name that the model gave.
    pub(crate) tool: Option<ToolName>,
    /// Name and canonical arguments, or the arguments as written when they
    /// cannot be read.
    pub(crate) call: String,
}

/// Remembers the latest calls of a turn.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    seen: Vec<Attempt>,
}

impl Breaker {
    /// Notes a call of the model. Answers what was tried when the same call came
    /// three times in a row, or a cycle of up to four calls three times.
    pub(crate) fn note(&mut self, attempt: Attempt) -> Option<String> {
        if self.seen.len() == CYCLE * ROUNDS {
            self.seen.remove(0);
        }
        self.seen.push(attempt);
        let tail = |n: usize| self.seen.len().checked_sub(n).map(|from| &self.seen[from..]);
        if let Some(t) = tail(SAME).filter(|t| t.iter().all(|c| *c == t[0])) {
            return Some(format!("the same call {SAME} times: {}", shown(&t[0])));
        }
        (2..=CYCLE).find_map(|len| {
            let t = tail(len * ROUNDS)?;
            let repeats = t.iter().zip(t.iter().skip(len)).all(|(a, b)| a == b);
            repeats.then(|| {
                let cycle: Vec<_> = t[..len].iter().map(shown).collect();
                format!("the same {len} calls {ROUNDS} times: {}", cycle.join(", "))
            })
        })
    }
}

/// Only the name of a tool that exists: arguments may be private, other names
/// are the model's text, and outcomes are shown widely.
fn shown(attempt: &Attempt) -> &str {
    attempt.tool.as_ref().map_or("a tool that does not exist", ToolName::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trips_on_repeats_and_cycles_only() {
        #[track_caller]
        fn check(calls: &str, trips_at: Option<usize>) {
            let mut breaker = Breaker::default();
            let attempt = |c: char| Attempt { tool: None, call: c.to_string() };
            let at = calls.chars().position(|c| breaker.note(attempt(c)).is_some());
            assert_eq!(at, trips_at, "{calls}");
        }
        check("aa", None);
        check("aaa", Some(2));
        check("aabaa", None);
        check("abababa", Some(5));
        check("abcabcabc", Some(8));
        check("abcdabcdabcd", Some(11));
        check("abcdeabcdeabcde", None);
        check("abacadaeaf", None);
        check("abcdefghijklmnopqrstuvwxyzz", None);
        check("abcdefghijklmnopqrstuvwxyzxyzxyz", Some(31));
    }
}
