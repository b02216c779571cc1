//! What becomes of the model's final text before a person reads it.

use serde_json::Value;

/// Shown when a model said nothing.
pub(crate) const EMPTY: &str = "The model gave no answer. Please ask again, or in other words.";

/// Appended when the text claims an action and none was taken.
pub(crate) const NO_ACTION: &str = "\n\n(No action was taken: nothing but this text was produced.)";

/// Makes a final text readable. `acted` says whether any call changed
/// something in this turn; reading and fetching do not.
pub(crate) fn finish(text: &str, acted: bool) -> String {
    let text = text.trim();
    if text.is_empty() {
        return EMPTY.to_owned();
    }
    let text = from_json(text).unwrap_or_else(|| text.to_owned());
    if !acted && claims_action(&text) {
        return format!("{text}{NO_ACTION}");
    }
    text
}

/// A bare JSON object becomes lines of words; anything else is left alone.
fn from_json(text: &str) -> Option<String> {
    if !text.starts_with('{') || !text.ends_with('}') {
        return None;
    }
    let object = serde_json::from_str::<serde_json::Map<String, Value>>(text).ok()?;
    let say = |value: &Value| match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    match object.len() {
        0 => Some(EMPTY.to_owned()),
        1 => object.values().next().map(say),
        _ => Some(object.iter().map(|(k, v)| format!("{k}: {}", say(v))).collect::<Vec<_>>().join("\n")),
    }
}

/// First-person claims of a finished action, lower case. Questions, offers and
/// reports about others do not match.
const CLAIMS: &[&str] = &[
    "i've turned ",
    "i have turned ",
    "i turned ",
    "i've set ",
    "i have set ",
    "i've switched ",
    "i have switched ",
    "i've sent ",
    "i have sent ",
    "i sent ",
    "i've deleted ",
    "i have deleted ",
    "i deleted ",
    "i've saved ",
    "i have saved ",
    "i've written ",
    "i have written ",
    "i've created ",
    "i have created ",
    "i've updated ",
    "i have updated ",
    "i've removed ",
    "i have removed ",
    "i've locked ",
    "i have locked ",
    "i've unlocked ",
    "i have unlocked ",
    "i've opened ",
    "i have opened ",
    "i've closed ",
    "i have closed ",
    "i've scheduled ",
    "i have scheduled ",
    "i've remembered ",
    "i have remembered ",
    "i've noted ",
    "i have noted ",
    "i've stored ",
    "i have stored ",
    "is now on.",
    "is now off.",
    "are now on.",
    "are now off.",
    "is now locked",
    "is now unlocked",
    "has been turned ",
    "has been sent",
    "has been deleted",
    "has been saved",
    "ich habe das licht",
    "habe ich erledigt",
    "ist jetzt an.",
    "ist jetzt aus.",
    "ist erledigt",
];

/// Openings that claim by themselves, lower case.
const OPENINGS: &[&str] = &["done,", "done.", "done!", "done:", "erledigt", "all done"];

fn claims_action(text: &str) -> bool {
    let lower = text.to_lowercase().replace('\u{2019}', "'");
    if lower == "done" {
        return true;
    }
    OPENINGS.iter().any(|o| lower.starts_with(o)) || CLAIMS.iter().any(|c| lower.contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_texts() {
        #[track_caller]
        fn check(text: &str, acted: bool, expect: &str) {
            assert_eq!(finish(text, acted), expect);
        }
        check("\n ", false, EMPTY);
        check("Hello.", false, "Hello.");
        check("{\"answer\":\"It is noon.\"}", false, "It is noon.");
        check("{\"a\":1,\"b\":\"two\"}", false, "a: 1\nb: two");
        check("{}", false, EMPTY);
        check("{not json}", false, "{not json}");
        check("Done, light is off.", false, &format!("Done, light is off.{NO_ACTION}"));
        check(
            "I\u{2019}ve turned off the heater.",
            false,
            &format!("I\u{2019}ve turned off the heater.{NO_ACTION}"),
        );
        check("Done, light is off.", true, "Done, light is off.");
        check("Shall I turn it off?", false, "Shall I turn it off?");
        check("The well-done steak rests now.", false, "The well-done steak rests now.");
        check("You turned it off yesterday.", false, "You turned it off yesterday.");
    }
}
