use super::*;
use proptest::prelude::*;

#[test]
fn words_of_several_servers() {
    type Fits = fn(&ModelFailure) -> bool;
    let overflow: Fits =
        |f| *f == ModelFailure::ContextOverflow { prompt_tokens: 210_000, context_tokens: 200_000 };
    let table: &[(u16, &str, Fits)] = &[
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            overflow,
        ),
        (400, r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#, |f| {
            matches!(f, ModelFailure::ContextOverflow { .. })
        }),
        (500, r#"{"error":{"message":"tools param requires --jinja flag"}}"#, |f| {
            matches!(f, ModelFailure::ToolsUnsupported(_))
        }),
        (404, r#"{"error":{"message":"gone","code":"model_not_found"}}"#, |f| {
            matches!(f, ModelFailure::ModelNotFound(_))
        }),
        (404, r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-x"}}"#, |f| {
            matches!(f, ModelFailure::ModelNotFound(_))
        }),
        (404, "model 'm' not found", |f| matches!(f, ModelFailure::Rejected(_))),
        (402, "", |f| matches!(f, ModelFailure::Unauthorised(_))),
        (403, r#"{"error":{"message":"no"}}"#, |f| matches!(f, ModelFailure::Unauthorised(_))),
        (400, r#"{"error":{"type":"billing_error","message":"low"}}"#, |f| {
            matches!(f, ModelFailure::Rejected(_))
        }),
        (
            502,
            "<html>Bad Gateway</html>",
            |f| matches!(f, ModelFailure::Busy { message, .. } if message == "status 502"),
        ),
        (418, "", |f| *f == ModelFailure::Rejected("status 418".into())),
    ];
    for (status, body, fits) in table {
        let refusal = classify("m", *status, None, body.as_bytes());
        assert!(fits(&refusal.failure), "{status} {body}: {refusal:?}");
    }
}

#[test]
fn server_text_is_one_short_line() {
    let body = serde_json::json!({"error": format!("a\nb\u{1b}[31m{}", "x".repeat(1000))}).to_string();
    let ModelFailure::Rejected(text) = classify("m", 400, None, body.as_bytes()).failure else { panic!() };
    assert!(text.starts_with("a b[31mx") && text.chars().count() == 300);
}

proptest! {
    #[test]
    fn any_body_is_read(status in 100u16..700, body in prop::collection::vec(any::<u8>(), 0..200)) {
        classify("m", status, None, &body);
    }
}
