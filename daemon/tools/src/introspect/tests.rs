use std::sync::Arc;

use hearth_turn::{ToolError, ToolOutcome};
use serde_json::{Value, json};

use crate::testing::{call, context, failure, output, scopes};
use crate::text::RESULT_MAX;
use crate::{AuditPort, BoxFuture, ConfigPort, Registry, Setting, ToolContext};

struct Log(usize);

impl AuditPort for Log {
    fn recent<'a>(
        &'a self,
        kind: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Value>, ToolError>> {
        let entry = move |n| json!({ "seq": n, "kind": kind.unwrap_or("any"), "pad": "x".repeat(self.0) });
        Box::pin(async move { Ok((0..limit).map(entry).collect()) })
    }
}

struct Settings;

impl ConfigPort for Settings {
    fn setting<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Setting>, ToolError>> {
        Box::pin(async move {
            Ok(match key {
                "model.name" => Some(Setting::Value(json!("small"))),
                "model.key" => Some(Setting::Secret { set: true }),
                "long" => Some(Setting::Value(json!("x".repeat(RESULT_MAX)))),
                _ => None,
            })
        })
    }
}

async fn run(held: &[&str], pad: usize, tool: &str, args: &str) -> ToolOutcome {
    let registry = Registry::builder().audit(Arc::new(Log(pad))).config(Arc::new(Settings)).build();
    call(&registry, &ToolContext { held: scopes(held), ..context() }, tool, args).await
}

#[tokio::test]
async fn the_log_is_read_by_kind_and_within_limits() {
    let all = &["audit.read"][..];
    let kind = &["audit.read:tool_*"][..];
    for (held, pad, args, expected) in [
        (all, 0, "{}", Ok(20)),
        (all, 0, r#"{"limit":100}"#, Ok(100)),
        (all, 2_000, r#"{"limit":100}"#, Ok(31)),
        (kind, 0, r#"{"kind":"tool_intent","limit":1}"#, Ok(1)),
        (kind, 0, "{}", Err("denied: audit.read")),
        (kind, 0, r#"{"kind":"turn_started"}"#, Err("denied: audit.read:turn_started")),
        (all, 0, r#"{"limit":101}"#, Err("limit is")),
        (all, 0, r#"{"limit":0}"#, Err("limit is")),
        (all, 0, r#"{"kind":"*"}"#, Err("kind is made of")),
        (all, 0, r#"{"kind":""}"#, Err("kind is made of")),
    ] {
        let outcome = run(held, pad, "audit.read", args).await;
        match expected {
            Ok(count) => {
                let (log, _) = output(outcome);
                assert_eq!(log["entries"].as_array().unwrap().len(), count, "{args}");
                assert!(log.to_string().len() <= RESULT_MAX);
                assert_eq!(log.get("left_out").is_some(), pad > 0);
            }
            Err(why) => assert!(failure(outcome).contains(why), "{args}"),
        }
    }
}

#[tokio::test]
async fn settings_are_shown_and_secrets_are_not() {
    let all = &["config.read"][..];
    for (held, key, expected) in [
        (all, "model.name", Ok(json!({ "key": "model.name", "value": "small" }))),
        (all, "model.key", Ok(json!({ "key": "model.key", "note": "a secret; it is set and is not shown" }))),
        (&["config.read:model.*"][..], "model.name", Ok(json!({ "key": "model.name", "value": "small" }))),
        (&["config.read:net.*"][..], "model.name", Err("denied: config.read:model.name")),
        (all, "nope", Err("not found: setting nope")),
        (all, "long", Err("too long to show")),
        (all, "Model.Name", Err("key is made of")),
        (all, "*", Err("key is made of")),
    ] {
        let outcome = run(held, 0, "config.read", &json!({ "key": key }).to_string()).await;
        match expected {
            Ok(value) => assert_eq!(output(outcome).0, value),
            Err(why) => assert!(failure(outcome).contains(why), "{key}"),
        }
    }
}
