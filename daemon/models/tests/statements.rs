//! One test for each statement that the clients must satisfy about real servers,
//! numbered as in the list of the models documentation. Statements about time
//! and choice of servers (29, 30) are in `driver.rs`, about pooled connections
//! (51) in the tests of the HTTP client. 37 is about embeddings, which this crate does not use.

#![allow(clippy::unwrap_used)]

mod replay;

use hearth_egress::Url;
use hearth_models::{
    ChatOptions, HttpRequest, Models, Provider, Retry, ServerKind, Wire, build_request, classify, remedy,
};
use hearth_turn::{ChatMessage, ModelEvent, ModelFailure, ModelRequest, PastCall, StopReason, Usage};
use replay::{Capture, Server, Style, Told, ask, capture, decode, drain, provider, request, told};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use Wire::{Anthropic, Ollama, OpenAi};

const PARIS: &str = r#"{"city":"Paris"}"#;

/// Replays a capture with status 200 over HTTP and checks that the decoder says
/// the same however the bytes are cut.
async fn play(name: &str, wire: Wire) -> Option<Told> {
    let capture = capture(name)?;
    assert_eq!(capture.status, 200, "{name}");
    let whole = decode(wire, &capture.body, usize::MAX);
    for size in [1, 2, 7, 61] {
        assert_eq!(decode(wire, &capture.body, size), whole, "{name} in pieces of {size}");
    }
    let (mut heard, _server) = ask(wire, vec![(capture, Style::default())]).await;
    let pure = told(whole);
    heard.waiting = pure.waiting;
    assert_eq!(heard, pure, "{name} over HTTP");
    Some(heard)
}

/// What a capture with another status means.
fn refusal(name: &str) -> Option<(ModelFailure, Retry)> {
    let capture = capture(name)?;
    assert_ne!(capture.status, 200, "{name}");
    let after = capture.headers.iter().find(|(n, _)| n == "retry-after").map(|(_, v)| v.parse().unwrap());
    let refusal = classify("smollm2:135m", capture.status, after, &capture.body);
    Some((refusal.failure, refusal.retry))
}

type Fits = fn(&ModelFailure) -> bool;

fn check_refusals(table: &[(&str, Fits, Retry)]) {
    for (name, fits, expected) in table {
        if let Some((failure, retry)) = refusal(name) {
            assert!(fits(&failure), "{name}: {failure:?}");
            assert_eq!(retry, *expected, "{name}");
        }
    }
}

fn is_rejected(failure: &ModelFailure) -> bool {
    matches!(failure, ModelFailure::Rejected(_))
}

fn is_busy(failure: &ModelFailure) -> bool {
    matches!(failure, ModelFailure::Busy { .. })
}

fn is_missing(failure: &ModelFailure) -> bool {
    matches!(failure, ModelFailure::ModelNotFound(m) if m == "smollm2:135m")
}

fn is_denied(failure: &ModelFailure) -> bool {
    matches!(failure, ModelFailure::Unauthorised(_))
}

fn done(prompt: u64, cached: u64, completion: u64, model: &str) -> Option<ModelEvent> {
    ended(StopReason::Done, prompt, cached, completion, model)
}

fn ended(reason: StopReason, prompt: u64, cached: u64, completion: u64, model: &str) -> Option<ModelEvent> {
    let usage = Usage { prompt_tokens: prompt, cached_tokens: cached, completion_tokens: completion };
    Some(ModelEvent::Finished { reason, usage, model: model.into() })
}

fn called(id: &str) -> Vec<(String, String, Result<String, String>)> {
    vec![(id.into(), "get.weather".into(), Ok(PARIS.into()))]
}

fn broken(told: &Told) -> &str {
    match &told.end {
        Some(ModelEvent::Failed(ModelFailure::Incomplete(why))) => why,
        other => panic!("{other:?}"),
    }
}

/// A request with a call and its result in the history, as `wire` sends it.
fn body(wire: Wire) -> (HttpRequest, Value) {
    let call = PastCall {
        id: "call_1".into(),
        name: "get.weather".into(),
        arguments: json!({"city": "Rome"}).as_object().unwrap().clone(),
    };
    let result = |id: &str, is_error| ChatMessage::Tool {
        call_id: id.into(),
        name: "get.weather".into(),
        text: "25".into(),
        is_error,
    };
    let two = vec![call.clone(), PastCall { id: "call_2".into(), ..call }];
    let mut request = request();
    request.messages = vec![
        ChatMessage::User { text: "Rome?".into() },
        ChatMessage::Assistant { text: String::new(), calls: two },
        result("call_1", false),
        result("call_2", true),
        ChatMessage::Assistant { text: "25.".into(), calls: vec![] },
        ChatMessage::User { text: "Paris?".into() },
    ];
    sent(wire, &request)
}

fn sent(wire: Wire, request: &ModelRequest) -> (HttpRequest, Value) {
    let mut provider = provider(wire, Url::parse("http://127.0.0.1:1/").unwrap());
    provider.temperature = Some(0.2);
    let http = build_request(&provider, request);
    let value = serde_json::from_slice(&http.body).unwrap();
    (http, value)
}

#[tokio::test]
async fn statement_01_streams_unless_told_otherwise() {
    assert_eq!(body(Ollama).1["stream"], true);
    if let Some(told) = play("ollama-06", Ollama).await {
        assert_eq!(told.text, "Awesome, welcome to the world of the sea!");
    }
    if let Some(told) = play("ollama-07", Ollama).await {
        assert_eq!(told.text, "Awesome, welcome");
    }
}

#[tokio::test]
async fn statement_02_lines_are_split_and_joined_anyhow() {
    let Some(capture) = capture("ollama-06") else { return };
    assert!(capture.headers.contains(&("content-type".into(), "application/x-ndjson".into())));
    for pieces in [vec![1], vec![100_000], vec![129, 1, 128, 2]] {
        let style = Style { pieces, ..Style::default() };
        let (told, _) = ask(Ollama, vec![(capture.clone(), style)]).await;
        assert_eq!(told.end, done(15, 0, 13, "smollm2:135m"));
    }
}

#[test]
fn statement_03_chunk_fields() {
    let Some(capture) = capture("ollama-06") else { return };
    for line in String::from_utf8(capture.body).unwrap().lines().filter(|l| !l.is_empty()) {
        let value: Value = serde_json::from_str(line).unwrap();
        assert!(value["model"].is_string() && value["message"]["content"].is_string());
        assert!(value["created_at"].is_string() && value["done"].is_boolean());
    }
}

#[tokio::test]
async fn statement_04_last_line_has_the_counts() {
    if let Some(told) = play("ollama-06", Ollama).await {
        assert_eq!(told.end, done(15, 0, 13, "smollm2:135m"));
    }
}

#[tokio::test]
async fn statement_05_absent_metrics_are_zero() {
    if let Some(told) = play("ollama-15", Ollama).await {
        assert_eq!(told.end, done(0, 0, 0, "smollm2:135m"));
    }
}

#[tokio::test]
async fn statement_06_done_reasons() {
    for (name, reason) in [
        ("ollama-06", StopReason::Done),
        ("ollama-07", StopReason::Length),
        ("ollama-15", StopReason::Done),
        ("ollama-16", StopReason::Done),
    ] {
        if let Some(told) = play(name, Ollama).await {
            assert!(
                matches!(told.end, Some(ModelEvent::Finished { reason: r, .. }) if r == reason),
                "{name}"
            );
        }
    }
    let absent = br#"{"message":{"content":"x"},"done":true}"#;
    assert_eq!(told(decode(Ollama, absent, 1)).end, done(0, 0, 0, "smollm2:135m"));
}

#[tokio::test]
async fn statement_07_a_call_comes_whole() {
    if let Some(told) = play("ollama-30", Ollama).await {
        assert_eq!((told.text.as_str(), told.calls), ("", called("call_bw4b62td")));
    }
}

#[tokio::test]
async fn statement_08_calls_are_seen_by_the_field_not_the_reason() {
    for name in ["ollama-30", "ollama-31"] {
        if let Some(told) = play(name, Ollama).await {
            assert_eq!(told.end, done(304, 0, 30, "smollm2-tools"));
            assert_eq!(told.calls.len(), 1);
        }
    }
}

#[test]
fn statement_09_history_arguments_are_an_object() {
    check_refusals(&[("ollama-23", is_rejected, Retry::Never)]);
    let call = &body(Ollama).1["messages"][2]["tool_calls"][0];
    assert_eq!(
        *call,
        json!({"id": "call_1", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}})
    );
}

#[tokio::test]
async fn statement_10_tool_results_name_the_tool() {
    let result = &body(Ollama).1["messages"][3];
    assert_eq!(
        *result,
        json!({"role": "tool", "tool_name": "get_weather", "tool_call_id": "call_1", "content": "25"})
    );
    if let Some(told) = play("ollama-32", Ollama).await {
        assert_eq!(told.text, "It is 18 degrees in Paris.");
    }
}

#[test]
fn statement_11_content_is_a_text() {
    check_refusals(&[("ollama-25", is_rejected, Retry::Never)]);
    let messages = body(Ollama).1["messages"].as_array().unwrap().clone();
    assert!(messages.len() == 7 && messages.iter().all(|m| m["content"].is_string()));
}

#[test]
fn statement_12_tools_unsupported() {
    let unsupported = |f: &ModelFailure| *f == ModelFailure::ToolsUnsupported("smollm2:135m".into());
    check_refusals(&[("ollama-09", unsupported, Retry::Never), ("ollama-36", unsupported, Retry::Never)]);
}

#[tokio::test]
async fn statement_13_think_false_is_always_accepted() {
    check_refusals(&[("ollama-10", is_rejected, Retry::Never)]);
    assert!(play("ollama-11", Ollama).await.is_none_or(|t| t.text == "The phrase \""));
    assert_eq!(body(Ollama).1["think"], false);
}

#[test]
fn statement_14_think_is_never_a_text() {
    check_refusals(&[("ollama-59", is_rejected, Retry::Never)]);
    assert!(body(Ollama).1["think"].is_boolean());
}

#[tokio::test]
async fn statement_15_thinking_is_on_unless_told_otherwise() {
    for (name, thinking, text) in [("ollama-57", "seven", "no"), ("ollama-58", "", " no")] {
        if let Some(told) = play(name, Ollama).await {
            assert_eq!((told.thinking.as_str(), told.text.as_str()), (thinking, text));
        }
    }
}

#[test]
fn statement_16_thinking_comes_first_and_apart() {
    let Some(capture) = capture("ollama-50") else { return };
    let events = decode(Ollama, &capture.body, 5);
    assert_eq!(events[..2], [ModelEvent::Thinking("seven".into()), ModelEvent::Text("no".into())]);
}

#[test]
fn statement_17_unknown_model() {
    check_refusals(&[
        ("ollama-00-chat-404", is_missing, Retry::Never),
        ("ollama-56", is_missing, Retry::Never),
    ]);
    let provider = provider(Ollama, Url::parse("http://pi.lan:11434").unwrap());
    let advice = remedy(&provider, &ModelFailure::ModelNotFound("smollm2:135m".into()));
    assert_eq!(advice, "Run `ollama pull smollm2:135m` on pi.lan.");
}

#[test]
fn statement_18_errors_may_be_json_in_a_text() {
    let overflow =
        |f: &ModelFailure| *f == ModelFailure::ContextOverflow { prompt_tokens: 3502, context_tokens: 512 };
    check_refusals(&[("ollama-54", overflow, Retry::Never)]);
}

#[test]
fn statement_19_an_unknown_route_is_no_missing_model() {
    check_refusals(&[("ollama-18", is_rejected, Retry::Never)]);
}

#[tokio::test]
async fn statement_20_errors_before_and_inside_of_the_stream() {
    check_refusals(&[("ollama-71", is_busy, Retry::Later)]);
    if let Some(capture) = capture("ollama-00-error-inside") {
        let end = decode(Ollama, &capture.body, 9).pop();
        assert!(matches!(&end, Some(ModelEvent::Failed(f)) if is_busy(f)), "{end:?}");
    }
    if let Some(told) = play("ollama-73", Ollama).await {
        assert_eq!(told.text, "Once upon a time, in");
        assert_eq!(broken(&told), "an error was encountered while running the model: unexpected EOF");
    }
}

#[tokio::test]
async fn statement_21_neither_done_nor_error_is_incomplete() {
    let Some(capture) = capture("ollama-06") else { return };
    let last = capture.body.windows(11).rposition(|w| w == b"\"done\":true").unwrap();
    for cut in (0..last).step_by(53) {
        let events = decode(Ollama, &capture.body[..cut], 100);
        assert!(matches!(events.last(), Some(ModelEvent::Failed(_))), "cut at {cut}");
    }
    let (told, _) = ask(Ollama, vec![(capture, Style::cut(400))]).await;
    assert!(told.text.starts_with('A') && !broken(&told).is_empty());
}

#[test]
fn statement_22_queue_full() {
    check_refusals(&[("ollama-70", is_busy, Retry::Later)]);
}

#[test]
fn statement_23_the_context_size_is_always_sent() {
    assert_eq!(body(Ollama).1["options"]["num_ctx"], 4096);
}

#[tokio::test]
async fn statement_24_a_silent_cut_shows_in_the_count_only() {
    for (name, tokens) in [("ollama-52", 27), ("ollama-53", 258)] {
        if let Some(told) = play(name, Ollama).await {
            assert_eq!(told.end, ended(StopReason::Length, tokens, 0, 4, "smollm2:135m"), "{name}");
        }
    }
}

#[test]
fn statement_25_no_silent_cut() {
    assert_eq!(body(Ollama).1["truncate"], false);
}

#[test]
fn statement_26_the_context_size_does_not_change() {
    let mut long = request();
    long.messages.push(ChatMessage::User { text: "x".repeat(100_000) });
    assert_eq!(sent(Ollama, &long).1["options"]["num_ctx"], sent(Ollama, &request()).1["options"]["num_ctx"]);
}

#[test]
fn statement_27_keep_alive_in_seconds() {
    assert_eq!(body(Ollama).1["keep_alive"], 1800);
}

#[tokio::test]
async fn statement_28_empty_messages_load_the_model() {
    let Some(capture) = capture("ollama-15") else { return };
    assert!(capture.headers.iter().any(|(n, v)| n == "content-type" && v.starts_with("application/json")));
    let server = Server::start(vec![(capture, Style::default())]).await;
    Models::new(vec![provider(Ollama, server.url())]).unwrap().warm_up().await;
    let sent: Value = serde_json::from_slice(&server.request(0).1).unwrap();
    assert_eq!(sent["messages"], json!([]));
    assert_eq!((&sent["keep_alive"], &sent["options"]["num_ctx"]), (&json!(1800), &json!(4096)));
}

#[tokio::test]
async fn statement_31_unknown_options_are_ignored() {
    assert!(play("ollama-24", Ollama).await.is_none_or(|t| t.text == "The original"));
}

#[tokio::test]
async fn statement_32_the_host_is_the_configured_one() {
    check_refusals(&[("ollama-19", is_rejected, Retry::Never)]);
    let Some(capture) = capture("ollama-06") else { return };
    let (_, server) = ask(Ollama, vec![(capture, Style::default())]).await;
    assert!(server.request(0).0.contains(&format!("host: {}", server.address)));
}

#[tokio::test]
async fn statement_33_no_origin_is_sent() {
    check_refusals(&[("ollama-20", is_rejected, Retry::Never)]);
    let Some(capture) = capture("ollama-06") else { return };
    let (_, server) = ask(Ollama, vec![(capture, Style::default())]).await;
    let head = server.request(0).0;
    assert!(head.starts_with("post /api/chat http/1.1"), "{head}");
    assert!(!head.contains("origin:") && !head.contains("referer:"), "{head}");
}

async fn probe(model: &str, wire: Wire, answers: &[&str]) -> Option<hearth_models::ProbeReport> {
    let answers: Option<Vec<(Capture, Style)>> =
        answers.iter().map(|n| Some((capture(n)?, Style::default()))).collect();
    let server = Server::start(answers?).await;
    let models = Models::new(vec![Provider { model: model.into(), ..provider(wire, server.url()) }]).unwrap();
    models.probe().await.pop()
}

#[tokio::test]
async fn statement_34_tags_tell_what_a_model_can() {
    let Some(report) = probe("smollm2:135m", Ollama, &["ollama-03", "ollama-02"]).await else { return };
    assert_eq!(
        (report.model_present, report.context_tokens, report.tools),
        (Some(true), Some(8192), Some(false))
    );
}

#[tokio::test]
async fn statement_35_version_marks_ollama() {
    let Some(report) = probe("smollm2:135m", OpenAi, &["ollama-03", "ollama-02"]).await else { return };
    assert_eq!(report.server, Ok(ServerKind::Ollama("0.0.0-fb30760".into())));
}

#[tokio::test]
async fn statement_36_names_carry_a_tag() {
    let Some(report) = probe("smollm2", Ollama, &["ollama-03", "ollama-02"]).await else { return };
    assert_eq!(report.model_present, Some(false));
    let list = br#"{"models":[{"name":"smollm2-tools:latest","capabilities":["completion","tools"]}]}"#;
    let list = Capture { status: 200, headers: vec![], body: list.to_vec() };
    let Some(version) = capture("ollama-03") else { return };
    let server = Server::start(vec![(version, Style::default()), (list, Style::default())]).await;
    let with = Provider { model: "smollm2-tools".into(), ..provider(Ollama, server.url()) };
    let report = Models::new(vec![with]).unwrap().probe().await.pop().unwrap();
    assert_eq!((report.model_present, report.tools), (Some(true), Some(true)));
}

#[test]
fn statement_38_wrong_kind_of_model() {
    check_refusals(&[("ollama-64", is_rejected, Retry::Never), ("ollama-55", is_rejected, Retry::Never)]);
}

#[tokio::test]
async fn statement_39_json_answers_are_text() {
    if let Some(told) = play("ollama-51", Ollama).await {
        assert_eq!(told.text, "{\n  \"city\": \"New York\",\n  \"n\": 12345\n}");
        assert!(told.calls.is_empty());
    }
}

#[tokio::test]
async fn statement_40_comments_are_signs_of_life() {
    if let Some(told) = play("llamasrv-25", OpenAi).await {
        assert_eq!(told.waiting, 63);
        assert_eq!(told.end, ended(StopReason::Length, 4899, 0, 2, "smollm2"));
        assert_eq!(told.text, "The original");
    }
}

#[tokio::test]
async fn statement_41_usage_comes_last_and_choices_may_lack() {
    if let Some(told) = play("llamasrv-02", OpenAi).await {
        assert_eq!(told.end, done(36, 35, 12, "smollm2"));
    }
    let Some(odd) = capture("handmade-openai-odd") else { return };
    let unix = String::from_utf8(odd.body).unwrap();
    for body in [unix.clone(), unix.replace('\n', "\r\n"), unix.replace("[DONE]", "[DONE]\n\n")] {
        for size in [1, 3, 1000] {
            let told = told(decode(OpenAi, body.as_bytes(), size));
            assert_eq!((told.text.as_str(), told.thinking.as_str(), told.waiting), ("ü – ok", "hmma", 1));
            assert_eq!(told.end, ended(StopReason::Filtered, 5, 0, 2, "m"));
        }
    }
    let (request, _) = body(OpenAi);
    let text = String::from_utf8(request.body).unwrap();
    assert!(text.contains(r#""stream_options":{"include_usage":true}"#));
}

#[tokio::test]
async fn statement_42_first_delta_may_be_empty() {
    for (name, text) in
        [("llamasrv-02", "Hello, welcome to my little corner of the world."), ("ollama-34", "Hello there. I")]
    {
        assert!(play(name, OpenAi).await.is_none_or(|t| t.text == text), "{name}");
    }
}

#[tokio::test]
async fn statement_43_call_deltas_are_joined_by_index() {
    for (name, id) in [("llamasrv-06", "A2On4WqGWYk0APOXeAXSlavXWsi7AZq3"), ("ollama-33", "call_zs9gw8f6")] {
        assert!(play(name, OpenAi).await.is_none_or(|t| t.calls == called(id)), "{name}");
    }
    if let Some(told) = play("llamasrv-08", OpenAi).await {
        assert_eq!((told.calls.len(), told.calls[0].2.as_deref()), (1, Ok(PARIS)));
    }
}

#[tokio::test]
async fn statement_44_finish_reasons_and_whole_answers() {
    if let Some(told) = play("llamasrv-07", OpenAi).await {
        assert_eq!(told.calls, called("KzH3uP1iVX4YZFYCFcuCIRckwFpBuOt1"));
        assert_eq!(told.end, done(352, 351, 31, "smollm2"));
    }
    if let Some(told) = play("llamasrv-01", OpenAi).await {
        assert_eq!(told.end, done(36, 0, 12, "smollm2"));
    }
}

#[tokio::test]
async fn statement_45_no_finish_reason_is_a_failure() {
    if let Some(told) = play("ollama-72", OpenAi).await {
        assert!(told.text.starts_with("Once upon a time") && !broken(&told).is_empty());
    }
}

#[test]
fn statement_46_error_codes_of_any_type() {
    check_refusals(&[
        ("llamasrv-12", is_rejected, Retry::Never),
        ("llamasrv-13", is_rejected, Retry::Never),
        ("llamasrv-14", is_rejected, Retry::Never),
        ("llamasrv-15", is_rejected, Retry::Never),
        ("llamasrv-21", is_denied, Retry::Never),
        ("ollama-35", is_missing, Retry::Never),
        ("ollama-12", is_rejected, Retry::Never),
        ("ollama-13", is_rejected, Retry::Never),
        ("ollama-14", is_rejected, Retry::Never),
    ]);
}

#[test]
fn statement_47_loading_key_and_context() {
    let overflow =
        |f: &ModelFailure| *f == ModelFailure::ContextOverflow { prompt_tokens: 6399, context_tokens: 4096 };
    check_refusals(&[
        ("llamasrv-24", is_busy, Retry::Loading),
        ("llamasrv-21", is_denied, Retry::Never),
        ("llamasrv-16", overflow, Retry::Never),
        ("llamasrv-17", overflow, Retry::Never),
    ]);
}

#[tokio::test]
async fn statement_48_full_context_is_length() {
    if let Some(told) = play("llamasrv-23", OpenAi).await {
        assert_eq!(told.end, ended(StopReason::Length, 17, 16, 239, "smollm2"));
    }
    if let Some(told) = play("llamasrv-22", OpenAi).await {
        assert!(matches!(told.end, Some(ModelEvent::Finished { reason: StopReason::Length, .. })));
    }
}

#[tokio::test]
async fn statement_49_names_of_models() {
    if let Some(told) = play("llamasrv-03", OpenAi).await {
        assert_eq!(told.end, ended(StopReason::Length, 33, 25, 5, "smollm2"));
    }
    check_refusals(&[("ollama-35", is_missing, Retry::Never)]);
}

#[test]
fn statement_50_history_arguments_in_the_form_of_the_server() {
    assert_eq!(
        body(OpenAi).1["messages"][2]["tool_calls"][0],
        json!({"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": r#"{"city":"Rome"}"#}})
    );
    assert_eq!(
        body(OpenAi).1["messages"][3],
        json!({"role": "tool", "tool_call_id": "call_1", "content": "25"})
    );
}

#[tokio::test]
async fn statement_52_llama_server_is_not_ollama() {
    let answers = ["llamasrv-18", "handmade-models-list"];
    let Some(report) = probe("any-name", OpenAi, &answers).await else { return };
    assert_eq!(report.server, Ok(ServerKind::OpenAiCompatible));
    assert_eq!((report.model_present, report.context_tokens), (Some(true), Some(4096)));
    check_refusals(&[
        ("llamasrv-18", is_rejected, Retry::Never),
        ("llamasrv-19", is_rejected, Retry::Never),
        ("llamasrv-20", is_rejected, Retry::Never),
    ]);
}

#[test]
fn statement_53_rate_limits_and_quota() {
    let limited = |f: &ModelFailure| matches!(f, ModelFailure::Busy { retry_after_s: Some(3), .. });
    check_refusals(&[
        ("handmade-openai-429-retry-after", limited, Retry::Later),
        ("handmade-openai-429-quota", is_denied, Retry::Never),
    ]);
}

#[tokio::test]
async fn statement_54_anthropic_headers_and_fields() {
    let (http, value) = body(Anthropic);
    assert_eq!(http.path, "/v1/messages");
    assert!(http.headers.contains(&("anthropic-version".into(), "2023-06-01".into())));
    assert_eq!((&value["max_tokens"], &value["system"]), (&json!(64), &json!("You are Hearth.")));
    assert_eq!(value["tools"][0]["name"], "get_weather");
    assert!(value["tools"][0]["input_schema"].is_object());
    let Some(capture) = capture("ollama-40") else { return };
    let server = Server::start(vec![(capture, Style::default())]).await;
    let mut with_key = provider(Anthropic, server.url());
    with_key.api_key = Some(hearth_egress::SecretValue::new("sk-secret"));
    assert!(!format!("{with_key:?}").contains("sk-secret"));
    let models = Models::new(vec![with_key]).unwrap();
    drain(models.chat(request(), ChatOptions::default(), CancellationToken::new())).await;
    assert!(server.request(0).0.contains("x-api-key: sk-secret"));
}

#[tokio::test]
async fn statement_55_event_order() {
    if let Some(told) = play("ollama-40", Anthropic).await {
        assert_eq!(told.text, "Hello there. I'm");
        assert_eq!(told.end, ended(StopReason::Length, 12, 0, 5, "smollm2:135m"));
    }
}

#[tokio::test]
async fn statement_56_pings_and_unknown_events_are_skipped() {
    let Some(told) = play("handmade-anthropic-ping", Anthropic).await else { return };
    assert_eq!((told.text.as_str(), told.thinking.as_str(), told.waiting), ("Grüße", "hm", 2));
    assert_eq!(told.end, done(125, 100, 15, "claude-x"));
}

#[tokio::test]
async fn statement_57_tool_input_is_joined_and_may_be_empty() {
    for (name, id) in [("ollama-41", "call_zd2kgo1j"), ("llamasrv-11", "qDbSAnTqNrOvOQHq4Cxmq8y9OB6S0syF")] {
        assert!(play(name, Anthropic).await.is_none_or(|t| t.calls == called(id)), "{name}");
    }
    let Some(told) = play("handmade-anthropic-ping", Anthropic).await else { return };
    assert_eq!(told.calls, [("toolu_1".into(), "get.weather".into(), Ok("{}".into()))]);
}

#[tokio::test]
async fn statement_58_cut_input_is_an_error_never_an_empty_object() {
    let Some(told) = play("handmade-anthropic-cut", Anthropic).await else { return };
    assert_eq!(told.calls.len(), 2);
    assert!(told.calls.iter().all(|(_, _, arguments)| arguments.is_err()), "{:?}", told.calls);
    assert!(matches!(told.end, Some(ModelEvent::Finished { reason: StopReason::Length, .. })));
}

#[test]
fn statement_59_overloaded_inside_and_outside_of_a_stream() {
    check_refusals(&[("handmade-anthropic-overloaded-529", is_busy, Retry::Later)]);
    let Some(capture) = capture("handmade-anthropic-overloaded-in") else { return };
    let told = told(decode(Anthropic, &capture.body, 3));
    assert!(matches!(&told.end, Some(ModelEvent::Failed(f)) if is_busy(f)), "{told:?}");
}

#[test]
fn statement_60_rate_limits_of_anthropic() {
    let limited = |f: &ModelFailure| matches!(f, ModelFailure::Busy { retry_after_s: Some(7), .. });
    check_refusals(&[
        ("handmade-anthropic-429-retry-after", limited, Retry::Later),
        ("handmade-anthropic-429-spend", is_denied, Retry::Never),
    ]);
}

#[test]
fn statement_61_error_body_and_request_id() {
    check_refusals(&[("ollama-42", is_missing, Retry::Never)]);
    let Some(capture) = capture("ollama-42") else { return };
    let refusal = classify("smollm2:135m", 404, None, &capture.body);
    assert_eq!(refusal.request_id.as_deref(), Some("req_3470996bd78ae4d24f74871c"));
}

#[test]
fn statement_62_results_of_a_step_share_one_message() {
    let messages = &body(Anthropic).1["messages"];
    assert_eq!(messages.as_array().unwrap().len(), 5);
    assert_eq!(
        messages[2],
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "25"},
            {"type": "tool_result", "tool_use_id": "call_2", "content": "25", "is_error": true},
        ]})
    );
    assert_eq!(messages[1]["content"][0]["input"], json!({"city": "Rome"}));
}

#[tokio::test]
async fn statement_63_no_message_stop_is_incomplete() {
    if let Some(told) = play("ollama-74", Anthropic).await {
        assert!(told.text == "In the" && !broken(&told).is_empty());
    }
}

#[tokio::test]
async fn statement_64_the_largest_of_each_count() {
    let lines = [
        r#"{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens":5,"completion_tokens":3},"timings":{"cache_n":4,"prompt_n":1}}"#,
    ];
    let told = told(decode(OpenAi, lines.map(|l| format!("data: {l}\n")).concat().as_bytes(), 50));
    assert_eq!(told.end, done(9, 4, 3, "smollm2:135m"));
    if let Some(told) = play("llamasrv-10", Anthropic).await {
        assert_eq!(told.end, ended(StopReason::Length, 12, 3, 4, "smollm2"));
    }
    if let Some(told) = play("ollama-43", Anthropic).await {
        assert_eq!(told.end, ended(StopReason::Length, 12, 0, 5, "smollm2:135m"));
    }
}

#[tokio::test]
async fn calls_written_as_text_never_reach_a_person() {
    for (name, tool, arguments) in [
        ("llamasrv-30", "get.weather", r#"{"city":"Madrid"}"#),
        ("llamasrv-31", "read.file", r#"{"path":"notes.txt"}"#),
    ] {
        if let Some(told) = play(name, OpenAi).await {
            assert_eq!(told.text, "", "{name}");
            assert_eq!(told.calls, [(String::new(), tool.into(), Ok(arguments.into()))]);
        }
    }
}
