//! Properties of the decoders and of the requests.

#![allow(clippy::unwrap_used)]

mod replay;

use hearth_egress::Url;
use hearth_models::{Decoder, Wire, build_request};
use hearth_turn::{ChatMessage, ModelEvent, ModelRequest, PastCall};
use proptest::prelude::*;
use replay::{capture, decode, provider, request, tools};

const WIRES: [Wire; 3] = [Wire::Ollama, Wire::OpenAi, Wire::Anthropic];

fn bodies() -> Vec<(Wire, Vec<u8>)> {
    [
        (Wire::Ollama, "ollama-06"),
        (Wire::Ollama, "ollama-30"),
        (Wire::Ollama, "ollama-50"),
        (Wire::Ollama, "ollama-73"),
        (Wire::OpenAi, "llamasrv-02"),
        (Wire::OpenAi, "llamasrv-06"),
        (Wire::OpenAi, "llamasrv-31"),
        (Wire::OpenAi, "ollama-33"),
        (Wire::OpenAi, "handmade-openai-odd"),
        (Wire::Anthropic, "ollama-41"),
        (Wire::Anthropic, "llamasrv-11"),
        (Wire::Anthropic, "handmade-anthropic-ping"),
    ]
    .into_iter()
    .filter_map(|(wire, name)| Some((wire, capture(name)?.body)))
    .collect()
}

fn in_pieces(wire: Wire, body: &[u8], cuts: &[usize]) -> Vec<ModelEvent> {
    let mut decoder = Decoder::new(wire, "smollm2:135m", &tools());
    let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (body.len() + 1)).collect();
    cuts.extend([0, body.len()]);
    cuts.sort_unstable();
    let mut events: Vec<ModelEvent> = cuts.windows(2).flat_map(|w| decoder.push(&body[w[0]..w[1]])).collect();
    events.extend(decoder.finish());
    events
}

fn ends(events: &[ModelEvent]) -> usize {
    events.iter().filter(|e| matches!(e, ModelEvent::Finished { .. } | ModelEvent::Failed(_))).count()
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_events(cuts in prop::collection::vec(any::<usize>(), 0..20)) {
        for (wire, body) in bodies() {
            prop_assert_eq!(in_pieces(wire, &body, &cuts), decode(wire, &body, usize::MAX));
        }
    }

    #[test]
    fn arbitrary_bytes_end_once(bytes in prop::collection::vec(any::<u8>(), 0..400), cuts in prop::collection::vec(any::<usize>(), 0..4)) {
        for wire in WIRES {
            let events = in_pieces(wire, &bytes, &cuts);
            prop_assert_eq!(ends(&events), 1);
            let failed = matches!(events.last(), Some(ModelEvent::Failed(_)));
            prop_assert!(failed);
        }
    }

    /// A capture with one byte changed, cut off or followed by more: one end,
    /// and calls only in front of `Finished`.
    #[test]
    fn damaged_captures_end_once(at in any::<usize>(), byte in any::<u8>(), cut in any::<bool>()) {
        for (wire, mut body) in bodies() {
            let at = at % body.len();
            body[at] = byte;
            if cut {
                body.truncate(at);
            }
            let events = decode(wire, &body, 64);
            prop_assert_eq!(ends(&events), 1);
            let finished = matches!(events.last(), Some(ModelEvent::Finished { .. }));
            let called = events.iter().any(|e| matches!(e, ModelEvent::Call { .. }));
            prop_assert!(finished || !called);
        }
    }

    /// Any text at all: whatever JSON of strings and objects, nothing panics.
    #[test]
    fn odd_json_ends_once(lines in prop::collection::vec(r#"(data: )?\{("(message|content|choices|delta|tool_calls|function|arguments|error|type|index|usage|done)":(null|1|-1|"x"|\[\]|\{\}|\[null\]|\[\{\}\]|true),?){0,4}\}"#, 0..8)) {
        let body = lines.join("\n").replace(",}", "}");
        for wire in WIRES {
            prop_assert_eq!(ends(&decode(wire, body.as_bytes(), 9)), 1);
        }
    }
}

#[test]
fn limits_of_lines_and_of_the_whole() {
    for wire in WIRES {
        let long = vec![b'x'; 300 * 1024];
        let events = decode(wire, &long, 4096);
        assert!(format!("{events:?}").contains("256 KiB"), "{wire}");
        let mut decoder = Decoder::new(wire, "m", &[]);
        let line = format!("{}\n", ":".repeat(200 * 1024));
        let prefix: &[u8] = if wire == Wire::Ollama { b"\n" } else { line.as_bytes() };
        let padded = prefix.repeat(if wire == Wire::Ollama { 200 * 1024 } else { 1 });
        let events: Vec<ModelEvent> = (0..30).flat_map(|_| decoder.push(&padded)).collect();
        assert!(format!("{events:?}").contains("4 MiB"), "{wire}");
        assert_eq!(ends(&events), 1);
    }
}

/// INV-12: a conversation grows at its end only: all bytes of a request up to the end of
/// its messages are the beginning of the next one.
#[test]
fn the_prefix_is_stable() {
    let call = PastCall { id: "c1".into(), name: "get.weather".into(), arguments: Default::default() };
    let more = [
        ChatMessage::Assistant { text: String::new(), calls: vec![call] },
        ChatMessage::Tool {
            call_id: "c1".into(),
            name: "get.weather".into(),
            text: "18".into(),
            is_error: false,
        },
        ChatMessage::Assistant { text: "18 degrees.".into(), calls: vec![] },
        ChatMessage::User { text: "And \"Rome\"?".into() },
        ChatMessage::Assistant { text: "20.".into(), calls: vec![] },
        ChatMessage::User { text: "Thanks".into() },
    ];
    for wire in WIRES {
        let provider = provider(wire, Url::parse("http://127.0.0.1:1").unwrap());
        let mut request: ModelRequest = request();
        let mut last = build_request(&provider, &request).body;
        for message in &more {
            request.messages.push(message.clone());
            let next = build_request(&provider, &request).body;
            let end = last.strip_suffix(b"]}").expect("messages are the last field");
            // Anthropic joins neighbours of one role: then the last message stays open.
            let end = end.strip_suffix(b"]}").filter(|_| wire == Wire::Anthropic).unwrap_or(end);
            assert!(next.starts_with(end), "{wire}: {}", String::from_utf8_lossy(&next));
            last = next;
        }
        assert_eq!(build_request(&provider, &request), build_request(&provider, &request.clone()));
    }
}
