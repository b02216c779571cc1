use super::*;
use proptest::prelude::*;

fn names() -> Names {
    let tool = |name: &str| hearth_turn::ToolSpec {
        name: hearth_scope::ToolName::parse(name).unwrap(),
        version: 1,
        description: String::new(),
        schema: Value::Null,
        effect: hearth_scope::EffectClass::Read,
        timeout: std::time::Duration::ZERO,
    };
    Names::of(&[tool("light.on"), tool("read_file")])
}

/// The outcome with neighbours joined: text as `T`, thinking as `K`, a call as `C name arguments`.
fn sorted(pieces: &[&str]) -> String {
    let mut filter = TextFilter::new(names());
    let mut all: Vec<Piece> = pieces.iter().flat_map(|p| filter.push(p)).collect();
    all.extend(filter.finish());
    let mut out: Vec<(char, String)> = Vec::new();
    for piece in all {
        let (kind, text) = match piece {
            Piece::Text(t) => ('T', t),
            Piece::Thinking(t) => ('K', t),
            Piece::Call { name, arguments: Ok(map) } => ('C', format!("{name} {}", Value::Object(map))),
            Piece::Call { name, arguments: Err(text) } => ('E', format!("{name} {text}")),
        };
        match out.last_mut() {
            Some((last, all)) if *last == kind && kind != 'C' => all.push_str(&text),
            _ => out.push((kind, text)),
        }
    }
    out.iter().map(|(kind, text)| format!("{kind}[{text}]")).collect()
}

fn check(text: &str, expected: &str) {
    assert_eq!(sorted(&[text]), expected, "whole: {text}");
    let letters: Vec<String> = text.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(sorted(&letters), expected, "letter by letter: {text}");
}

#[test]
fn plain_text_passes() {
    for text in
        ["hello", " no", "a < b", "a <thin", "x {\"name\": \"light_on\", \"arguments\": {}}", "`code`"]
    {
        check(text, &format!("T[{text}]"));
    }
    check("", "");
    check("  \n", "");
}

#[test]
fn thinking_is_kept_apart() {
    check("<think>a</think>ok", "K[a]T[ok]");
    check("\n<think>\nlong < thought\n</think>\n\nok", "K[\nlong < thought\n]T[\n\nok]");
    check("<think>never ends", "K[never ends]");
    check("<think></think>ok", "T[ok]");
    check("say <think> twice", "T[say <think> twice]");
    check(r#"<think>a</think>{"name":"light_on","arguments":{}}"#, "K[a]C[light.on {}]");
}

#[test]
fn calls_written_as_text_are_calls() {
    let call = r#"C[light.on {"room":"kitchen"}]"#;
    for text in [
        r#"{"name": "light_on", "arguments": {"room": "kitchen"}}"#,
        r#" {"name": "light.on", "arguments": {"room": "kitchen"}} "#,
        r#"{"arguments": {"room": "kitchen"}, "name": "light_on"}"#,
        r#"{"type": "function", "name": "light_on", "parameters": {"room": "kitchen"}}"#,
        r#"{"name": "light_on", "arguments": "{\"room\": \"kitchen\"}"}"#,
        "```json\n{\"name\": \"light_on\", \"arguments\": {\"room\": \"kitchen\"}}\n```",
        "```\n{\"name\": \"light_on\", \"arguments\": {\"room\": \"kitchen\"}}```\n",
        "```json\n{\"name\": \"light_on\", \"arguments\": {\"room\": \"kitchen\"}}",
        "<tool_call>\n{\"name\": \"light_on\", \"arguments\": {\"room\": \"kitchen\"}}\n</tool_call>",
        "<tool_call>{\"name\": \"light_on\", \"arguments\": {\"room\": \"kitchen\"}}",
    ] {
        check(text, call);
    }
}

#[test]
fn tagged_calls_anywhere_and_several() {
    let call = r#"<tool_call>{"name":"light_on","arguments":{}}</tool_call>"#;
    check(&format!("I do it.\n{call}\n{call}"), "T[I do it.\n]C[light.on {}]C[light.on {}]");
    check(&format!("{call}done"), "C[light.on {}]T[done]");
    check("<tool_call>{room: kitchen}</tool_call>", "E[ {room: kitchen}]");
    check(r#"<tool_call>{"name":"lock_open","arguments":{}}</tool_call>"#, "C[lock_open {}]");
    check(r#"<tool_call>{"name":"light_on"}</tool_call>"#, r#"E[light.on {"name":"light_on"}]"#);
}

#[test]
fn malformed_calls_of_known_tools_are_not_shown() {
    check(r#"{"name": "light_on", "arguments": "kitchen"}"#, "E[light.on kitchen]");
    check(
        r#"{"name": "light_on", "arguments": {room: 1}}"#,
        r#"E[light.on {"name": "light_on", "arguments": {room: 1}}]"#,
    );
    check(r#"{"name": "light_on", "argum"#, r#"E[light.on {"name": "light_on", "argum]"#);
}

#[test]
fn other_json_and_other_names_are_text() {
    for text in [
        r#"{"city": "Paris", "n": 1}"#,
        r#"{"name": "Peter", "arguments": {}}"#,
        r#"{"name": "light_on"}"#,
        r#"{"name": "light_on", "arguments": {}} and more"#,
        r#"{"arguments": {"name": "light_on"}}"#,
        r#"{"name": "light_on", "arguments": {}, "parameters": {}}"#,
        "{}",
        "{",
        "{room: kitchen}",
        "```rust\nfn main() {}\n```",
        "```json\n[1]\n```",
        "```",
        "[1, 2]",
    ] {
        check(text, &format!("T[{text}]"));
    }
}

#[test]
fn text_is_let_go_as_soon_as_it_cannot_be_a_call() {
    for (text, held) in [
        ("hello", false),
        ("{\"ci", true),
        ("{\"city\"", false),
        ("{\"name\": \"Pet", true),
        ("{\"name\": \"Peter\"", false),
        ("``", true),
        ("```json\n", true),
        ("```json\nx", false),
        ("```a long line that is no language name", false),
        ("ok <tool", false),
    ] {
        let out = TextFilter::new(names()).push(text);
        assert_eq!(out.is_empty(), held, "{text}: {out:?}");
    }
}

#[test]
fn what_is_held_is_bounded() {
    let mut filter = TextFilter::new(names());
    let mut shown = 0;
    let long = format!("{{\"name\": \"light_on\", \"arguments\": {{\"a\": \"{}", "x".repeat(HELD_MAX));
    for piece in filter.push(&long) {
        assert!(matches!(piece, Piece::Text(_)));
        shown += 1;
    }
    assert_eq!(shown, 1);
    let mut filter = TextFilter::new(names());
    let deep = "[".repeat(100);
    assert!(!filter.push(&format!("{{\"arguments\": {deep}")).is_empty());
}

proptest! {
    #[test]
    fn cuts_do_not_matter(text in r#"(\{|\}|"|name|arguments|light_on|:|,| |\n|```|json|<think>|</think>|<tool_call>|</tool_call>|<|ü|a){0,40}"#, cuts in prop::collection::vec(0usize..200, 0..6)) {
        let mut at: Vec<usize> = cuts.into_iter().filter(|c| text.is_char_boundary(*c)).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(sorted(&pieces), sorted(&[&text]));
    }
}
