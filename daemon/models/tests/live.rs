//! Against the running server of `deploy/model`: `HEARTH_LLAMA_URL` names it. Without that variable these tests say so and
//! pass; whoever starts the server sets it and has to see them run.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod replay;

use std::time::Duration;

use hearth_egress::Url;
use hearth_models::{ChatOptions, Models, Provider, ServerKind, Wire};
use hearth_scope::ToolName;
use hearth_turn::{ChatMessage, ModelEvent, ModelFailure, ModelRequest, PastCall, StopReason, Usage};
use replay::{Told, drain, request, told};
use tokio_util::sync::CancellationToken;

fn models(wire: Wire) -> Option<Models> {
    let Ok(url) = std::env::var("HEARTH_LLAMA_URL") else {
        eprintln!("skipped: HEARTH_LLAMA_URL is not set");
        return None;
    };
    let mut provider = Provider::new("live", wire, Url::parse(&url).unwrap(), "any");
    provider.temperature = Some(0.0);
    Some(Models::new(vec![provider]).unwrap())
}

async fn chat(models: &Models, request: &ModelRequest) -> Told {
    told(drain(models.chat(request.clone(), ChatOptions::default(), CancellationToken::new())).await)
}

fn says(text: &str) -> ModelRequest {
    ModelRequest {
        system: String::new(),
        tools: vec![],
        messages: vec![ChatMessage::User { text: text.into() }],
        max_tokens: 24,
    }
}

/// A question that the model's template has worked examples for.
fn recall() -> ModelRequest {
    let mut request = request();
    request.system = "You are a helpful assistant.".into();
    request.messages = vec![ChatMessage::User { text: "What did I tell you about the boiler?".into() }];
    request.tools.truncate(1);
    let tool = &mut request.tools[0];
    tool.name = ToolName::parse("memory.read").unwrap();
    tool.description = "Search what you were told to remember.".into();
    tool.schema = serde_json::json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]});
    request
}

fn usage(told: &Told) -> (StopReason, Usage) {
    match &told.end {
        Some(ModelEvent::Finished { reason, usage, .. }) => (*reason, *usage),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn text_with_usage_over_both_protocols() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let Some(models) = models(wire) else { return };
        let told = chat(&models, &says("Say hello.")).await;
        let (_, usage) = usage(&told);
        assert!(!told.text.is_empty() && usage.prompt_tokens > 5 && usage.completion_tokens > 0, "{told:?}");
    }
}

#[tokio::test]
async fn a_tool_loop_over_both_protocols_reuses_the_prefix() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let Some(models) = models(wire) else { return };
        let mut request = recall();
        let first = chat(&models, &request).await;
        let (id, name, arguments) = first.calls.first().unwrap_or_else(|| panic!("{first:?}")).clone();
        assert_eq!(name, "memory.read");
        assert!(arguments.as_ref().is_ok_and(|a| a.contains("boiler")), "{arguments:?}");
        assert_eq!(first.text, "");
        let before = usage(&first).1;
        let call = PastCall {
            id: id.clone(),
            name: name.clone(),
            arguments: serde_json::from_str(&arguments.unwrap()).unwrap(),
        };
        request.messages.push(ChatMessage::Assistant { text: String::new(), calls: vec![call] });
        let text = r#"{"entries":[{"id":"7K2M","text":"the boiler was serviced in March."}]}"#.into();
        request.messages.push(ChatMessage::Tool { call_id: id, name, text, is_error: false });
        let second = chat(&models, &request).await;
        assert!(second.text.contains("March") && second.calls.is_empty(), "{second:?}");
        let after = usage(&second).1;
        // Nearly all of the first prompt comes from the cache.
        assert!(after.cached_tokens + 8 >= before.prompt_tokens, "{before:?} then {after:?}");
    }
}

#[tokio::test]
async fn too_long_a_prompt_is_told_with_its_size() {
    for wire in [Wire::OpenAi, Wire::Anthropic] {
        let Some(models) = models(wire) else { return };
        let told = chat(&models, &says(&"word ".repeat(8000))).await;
        match told.end {
            Some(ModelEvent::Failed(ModelFailure::ContextOverflow { prompt_tokens, context_tokens })) => {
                assert!(prompt_tokens > context_tokens && context_tokens > 0);
            }
            other => panic!("{wire}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_cancelled_answer_frees_the_server() {
    let Some(models) = models(Wire::OpenAi) else { return };
    let long = ModelRequest { max_tokens: 2000, ..says("Write a long story about a dragon.") };
    let cancel = CancellationToken::new();
    let mut events = models.chat(long, ChatOptions::default(), cancel.clone());
    while !matches!(events.recv().await, Some(ModelEvent::Text(_))) {}
    cancel.cancel();
    models.close().await;
    let next = tokio::time::timeout(Duration::from_secs(30), chat(&models, &says("Say hello."))).await;
    usage(&next.expect("the server is free again"));
}

#[tokio::test]
async fn the_probe_knows_it() {
    let Some(models) = models(Wire::OpenAi) else { return };
    let report = models.probe().await.pop().unwrap();
    assert_eq!(report.server, Ok(ServerKind::OpenAiCompatible));
    assert_eq!((report.model_present, report.context_tokens), (Some(true), Some(4096)));
}
