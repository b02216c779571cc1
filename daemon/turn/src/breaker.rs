//! Stops a model that goes in circles.

/// Identical consecutive calls that trip the breaker.
const SAME: usize = 3;
/// Longest cycle that is looked for.
const CYCLE: usize = 4;
/// How often a cycle must have been seen.
const ROUNDS: usize = 3;

/// Remembers the calls of a turn by tool and canonical arguments.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    seen: Vec<String>,
}

impl Breaker {
    /// Notes a call that is about to be checked. Answers what was tried when
    /// the same call came three times in a row, or a cycle of up to four calls
    /// three times.
    pub(crate) fn note(&mut self, tool: &str, canonical: &[u8]) -> Option<String> {
        self.seen.push(format!("{tool} {}", String::from_utf8_lossy(canonical)));
        let tail = |n: usize| self.seen.len().checked_sub(n).map(|from| &self.seen[from..]);
        if tail(SAME).is_some_and(|t| t.iter().all(|c| *c == t[0])) {
            return Some(format!("the same call {SAME} times: {}", short(&self.seen[self.seen.len() - 1])));
        }
        (2..=CYCLE).find_map(|len| {
            let t = tail(len * ROUNDS)?;
            let repeats = t.iter().zip(t.iter().skip(len)).all(|(a, b)| a == b);
            repeats.then(|| {
                let cycle: Vec<_> = t[..len].iter().map(|c| short(c)).collect();
                format!("the same {len} calls {ROUNDS} times: {}", cycle.join(", "))
            })
        })
    }
}

/// Only the tool's name: arguments may be private and outcomes are shown widely.
fn short(call: &str) -> String {
    call.split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trips_on_repeats_and_cycles_only() {
        #[track_caller]
        fn check(calls: &str, trips_at: Option<usize>) {
            let mut breaker = Breaker::default();
            let at = calls.chars().position(|c| breaker.note("t", &[c as u8]).is_some());
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
    }
}
