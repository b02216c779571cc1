//! `audit.read` and `config.read`: what the daemon did, and how it is set up.

use std::sync::Arc;
use std::time::Duration;

use hearth_scope::{EffectClass, Label, Scope};
use hearth_turn::ToolError;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::context::ToolContext;
use crate::port::{AuditPort, ConfigPort, Setting};
use crate::text::RESULT_MAX;
use crate::tool::{Done, Meta, PRIVATE, Reach, Typed, scope};

/// Most entries of one answer, and how many when the call does not say.
const ENTRIES_MAX: usize = 100;
const ENTRIES_DEFAULT: usize = 20;
/// Longest kind or key, in bytes.
const NAME_MAX: usize = 80;

/// `audit.read`
pub(crate) struct Audit(pub(crate) Arc<dyn AuditPort>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditArgs {
    kind: Option<String>,
    limit: Option<usize>,
}

impl Typed for Audit {
    type Args = AuditArgs;
    const META: Meta = Meta {
        name: "audit.read",
        version: 1,
        description: "Latest log entries: what was done and when.",
        schema: r#"{"type":"object","properties":{"kind":{"type":"string","description":"like tool_intent"},"limit":{"type":"integer","minimum":1,"maximum":100}}}"#,
        effect: EffectClass::PrivateRead,
        timeout: Duration::from_secs(20),
        reach: Reach::Qualified("audit.read"),
    };

    fn need(&self, args: &AuditArgs) -> Result<(Vec<Scope>, String), ToolError> {
        if args.limit.is_some_and(|n| n == 0 || n > ENTRIES_MAX) {
            return Err(ToolError::InvalidArguments(format!("limit is 1 to {ENTRIES_MAX}")));
        }
        let kind = args.kind.as_deref();
        kind.map(|k| plain("kind", k)).transpose()?;
        Ok((vec![scope("audit.read", kind)?], kind.unwrap_or("all").to_owned()))
    }

    async fn call(&self, args: AuditArgs, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let limit = args.limit.unwrap_or(ENTRIES_DEFAULT);
        let all = self.0.recent(args.kind.as_deref(), limit).await?;
        let mut used = 0;
        let fits = |entry: &&Value| {
            used += entry.to_string().len() + 1;
            used <= RESULT_MAX - 1024
        };
        let entries: Vec<&Value> = all.iter().take(limit).take_while(fits).collect();
        let mut output = json!({ "entries": entries, "order": "latest first" });
        if entries.len() < all.len() {
            output["left_out"] = (all.len() - entries.len()).into();
        }
        // Subjects may quote what a model made of text from outside.
        Ok(Done::read(output, Label::UNKNOWN))
    }
}

/// `config.read`
pub(crate) struct Config(pub(crate) Arc<dyn ConfigPort>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigArgs {
    key: String,
}

impl Typed for Config {
    type Args = ConfigArgs;
    const META: Meta = Meta {
        name: "config.read",
        version: 1,
        description: "Read one setting.",
        schema: r#"{"type":"object","properties":{"key":{"type":"string","description":"like model.name"}},"required":["key"]}"#,
        effect: EffectClass::PrivateRead,
        timeout: Duration::from_secs(20),
        reach: Reach::Qualified("config.read"),
    };

    fn need(&self, args: &ConfigArgs) -> Result<(Vec<Scope>, String), ToolError> {
        plain("key", &args.key)?;
        Ok((vec![scope("config.read", Some(&args.key))?], args.key.clone()))
    }

    async fn call(&self, args: ConfigArgs, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let key = args.key;
        match self.0.setting(&key).await? {
            None => Err(ToolError::NotFound(format!("setting {key}"))),
            Some(Setting::Value(value)) if value.to_string().len() > RESULT_MAX - 1024 => {
                Err(ToolError::Limit(format!("setting {key} is too long to show")))
            }
            Some(Setting::Value(value)) => Ok(Done::read(json!({ "key": key, "value": value }), PRIVATE)),
            Some(Setting::Secret { set }) => {
                let note =
                    if set { "a secret; it is set and is not shown" } else { "a secret; it is not set" };
                Ok(Done::read(json!({ "key": key, "note": note }), PRIVATE))
            }
        }
    }
}

/// Kinds and keys are lower-case words, so that they mean one thing in a scope.
fn plain(what: &str, text: &str) -> Result<(), ToolError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(plain) {
        let text = format!("{what} is made of lower-case letters, digits and ._-, at most {NAME_MAX}");
        return Err(ToolError::InvalidArguments(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
