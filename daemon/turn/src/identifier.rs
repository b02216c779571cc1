//! Identifiers that a model copied with a slip: an entry's name, an address, a
//! time that is nearly, but not exactly, what a tool said.

use std::collections::BTreeSet;

use crate::message::ChatMessage;

/// Shorter words are no identifiers; one edit would find too many others.
const SHORTEST: usize = 6;
/// Longer ones are not looked at.
const LONGEST: usize = 128;
/// Most identifiers of the tools, and of an answer, that are compared.
const KNOWN_MAX: usize = 4_096;
const SAID_MAX: usize = 64;

/// The first identifier of `answer` that is one edit away from one in the
/// results of tools, and that no message of the exchange holds as it is:
/// what was said, and what the tool said.
pub(crate) fn altered(answer: &str, messages: &[ChatMessage]) -> Option<(String, String)> {
    let (mut known, mut results) = (BTreeSet::new(), BTreeSet::new());
    for message in messages {
        match message {
            ChatMessage::User { text } => known.extend(identifiers(text)),
            ChatMessage::Assistant { .. } => {}
            ChatMessage::Tool { text, .. } => results.extend(identifiers(text).take(KNOWN_MAX)),
        }
    }
    let said =
        identifiers(answer).take(SAID_MAX).filter(|word| !known.contains(word) && !results.contains(word));
    for word in said {
        let near =
            |other: &&&str| word.len().abs_diff(other.len()) <= 1 && strsim::osa_distance(word, other) == 1;
        if let Some(meant) = results.iter().take(KNOWN_MAX).find(near) {
            return Some((word.to_owned(), (*meant).to_owned()));
        }
    }
    None
}

/// Words with a digit, as names of entries, addresses, dates and times are.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let inner = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@');
    text.split(move |c: char| !inner(c)).map(|word| word.trim_matches(|c: char| !c.is_alphanumeric())).filter(
        |word| (SHORTEST..=LONGEST).contains(&word.len()) && word.contains(|c: char| c.is_ascii_digit()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_nothing_else() {
        #[track_caller]
        fn check(answer: &str, expected: Option<(&str, &str)>) {
            let result =
                r#"{"id":"01KBD7Q3M9V5","host":"192.168.1.20","local":"2026-05-02 21:05:00","size":118}"#;
            let messages = [
                ChatMessage::User { text: "Is lamp-1234 at 10.0.0.17?".to_owned() },
                ChatMessage::Tool {
                    call_id: "1".to_owned(),
                    name: "x".to_owned(),
                    text: result.to_owned(),
                    is_error: false,
                },
            ];
            let found = altered(answer, &messages);
            assert_eq!(found.as_ref().map(|(said, meant)| (&**said, &**meant)), expected, "{answer}");
        }
        check("It is 01KBD7Q3M9V5.", None);
        check("It is 01KBD7Q3M9V6.", Some(("01KBD7Q3M9V6", "01KBD7Q3M9V5")));
        check("It is (01KBD7Q3MV5), I think.", Some(("01KBD7Q3MV5", "01KBD7Q3M9V5")));
        check("It is 01KBD7Q39MV5!", Some(("01KBD7Q39MV5", "01KBD7Q3M9V5")));
        check("It is 01KBD7Q300V5.", None);
        check("The host is 192.168.1.2.", Some(("192.168.1.2", "192.168.1.20")));
        check("At 21:05:01 on 2026-05-02.", Some(("21:05:01", "21:05:00")));
        check("At 21:05 on May 2nd.", None);
        check("The size is 119.", None);
        // The person's own words are not the model's slip.
        check("lamp-1234 is at 10.0.0.17, not at 10.0.0.17.", None);
        check("", None);
        check(&"x1".repeat(500), None);
    }
}
