//! `memory.read`, `memory.write` and `memory.forget`.

mod index;
mod words;

use std::sync::Arc;
use std::time::Duration;

use hearth_scope::{EffectClass, Exposure, Integrity, Label, Scope};
use hearth_turn::ToolError;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use ulid::Ulid;

use crate::context::ToolContext;
use crate::port::{Clock, MemoryEntry, MemoryPort, NewMemory};
use crate::text;
use crate::tool::{Done, Meta, Reach, Typed, scope};
use index::Index;

/// Longest text of an entry, in bytes.
pub const TEXT_MAX: usize = 16 * 1024;
/// Longest topic, in bytes.
pub const TOPIC_MAX: usize = 64;
/// Longest query, in bytes.
pub const QUERY_MAX: usize = 1024;
/// Most entries of one answer, and how many when the call does not say.
pub const LIMIT_MAX: u32 = 20;
const LIMIT_DEFAULT: u32 = 5;

const TIMEOUT: Duration = Duration::from_secs(20);

/// What the three tools share: the port, and the index of what it holds.
pub(crate) struct Memory {
    port: Arc<dyn MemoryPort>,
    clock: Arc<dyn Clock>,
    cached: Mutex<Option<Arc<Snapshot>>>,
}

/// The index of one version of the memory; document `n` is `ids[n]`.
struct Snapshot {
    version: u64,
    ids: Vec<Ulid>,
    index: Index,
}

impl Memory {
    pub(crate) fn new(port: Arc<dyn MemoryPort>, clock: Arc<dyn Clock>) -> Self {
        Self { port, clock, cached: Mutex::new(None) }
    }

    /// The index of the present version; built only when the memory changed.
    async fn snapshot(&self) -> Result<Arc<Snapshot>, ToolError> {
        let mut cached = self.cached.lock().await;
        // Asked before reading: a change in between makes the next call rebuild.
        let version = self.port.version();
        if let Some(snapshot) = cached.as_ref().filter(|s| s.version == version) {
            return Ok(snapshot.clone());
        }
        let mut entries = self.port.all().await?;
        entries.sort_by_key(|e| e.id);
        let mut index = Index::default();
        for entry in &entries {
            index.add(entry.topic.as_deref(), &entry.text);
        }
        let ids = entries.into_iter().map(|e| e.id).collect();
        let snapshot = Arc::new(Snapshot { version, ids, index });
        *cached = Some(snapshot.clone());
        Ok(snapshot)
    }

    /// How long ago, for a person; `None` where a clock was not set.
    fn age(&self, created_ms: Option<u64>) -> Option<String> {
        let now = self.clock.now();
        let created = i64::try_from(created_ms?).ok()?;
        let seconds = (now.wall.as_millisecond() - created).max(0) / 1000;
        let (count, unit) = match seconds {
            0..60 => return Some("just now".into()),
            60..3600 => (seconds / 60, "minute"),
            3600..86_400 => (seconds / 3600, "hour"),
            _ => (seconds / 86_400, "day"),
        };
        now.synchronised.then(|| format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" }))
    }

    fn show(&self, entry: &MemoryEntry, score: Option<f32>, text: &str, ctx: &ToolContext) -> Value {
        let text = match entry.label {
            Integrity::World => text::fence(text, &ctx.fence),
            Integrity::Owner | Integrity::Household => text.to_owned(),
        };
        let mut shown = json!({
            "id": entry.id.to_string(), "topic": entry.topic, "text": text, "label": entry.label,
            "source": text::shorten(&entry.source, 200), "age": self.age(entry.created_ms),
        });
        if let Some(score) = score {
            shown["score"] = json!((f64::from(score) * 100.0).round() / 100.0);
        }
        shown
    }
}

/// The entries that fit `query` best, best first, at most `limit`.
pub fn search<'a>(entries: &'a [MemoryEntry], query: &str, limit: usize) -> Vec<&'a MemoryEntry> {
    let mut index = Index::default();
    for entry in entries {
        index.add(entry.topic.as_deref(), &entry.text);
    }
    index.search(query, limit).into_iter().filter_map(|hit| entries.get(hit.document as usize)).collect()
}

/// `memory.read`
pub(crate) struct Read(pub(crate) Arc<Memory>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadArgs {
    query: String,
    limit: Option<u32>,
}

impl Typed for Read {
    type Args = ReadArgs;
    const META: Meta = Meta {
        name: "memory.read",
        version: 1,
        description: "Search what you remember. Empty query: latest.",
        schema: r#"{"type":"object","properties":{"query":{"type":"string"},"limit":{"type":"integer","minimum":1,"maximum":20}},"required":["query"]}"#,
        effect: EffectClass::PrivateRead,
        timeout: TIMEOUT,
        reach: Reach::Bare("memory.read"),
    };

    fn need(&self, args: &ReadArgs) -> Result<(Vec<Scope>, String), ToolError> {
        limited("query", &args.query, QUERY_MAX)?;
        if args.limit.is_some_and(|n| n == 0 || n > LIMIT_MAX) {
            return Err(ToolError::InvalidArguments(format!("limit is 1 to {LIMIT_MAX}")));
        }
        Ok((vec![scope("memory.read", None)?], "memory".into()))
    }

    async fn call(&self, args: ReadArgs, ctx: &ToolContext) -> Result<Done, ToolError> {
        let memory = &self.0;
        let snapshot = memory.snapshot().await?;
        let limit = args.limit.unwrap_or(LIMIT_DEFAULT) as usize;
        let found: Vec<(Ulid, Option<f32>)> = if args.query.trim().is_empty() {
            snapshot.ids.iter().rev().take(limit).map(|id| (*id, None)).collect()
        } else {
            let hits = snapshot.index.search(&args.query, limit);
            hits.iter().map(|h| (snapshot.ids[h.document as usize], Some(h.score))).collect()
        };

        let mut entries = Vec::new();
        let mut label = Integrity::Owner;
        let mut used = 0;
        let mut left_out = 0;
        for (id, score) in found {
            // An entry may have been forgotten since the index was built.
            let Some(entry) = memory.port.get(id).await? else { continue };
            let mut shown = memory.show(&entry, score, &entry.text, ctx);
            let mut size = shown.to_string().len();
            if used + size > text::RESULT_MAX - 1024 {
                shown = memory.show(&entry, score, &text::cap(&entry.text, 1024).0, ctx);
                size = shown.to_string().len();
            }
            if used + size > text::RESULT_MAX - 1024 {
                left_out += 1;
                continue;
            }
            used += size;
            label = label.min(entry.label);
            entries.push(shown);
        }
        let output = match (entries.is_empty(), left_out) {
            (true, 0) => json!({ "entries": [], "note": "nothing in memory matches" }),
            (_, 0) => json!({ "entries": entries, "label": label }),
            _ => json!({ "entries": entries, "label": label, "left_out": left_out }),
        };
        // Recalled text from outside taints again.
        Ok(Done::read(output, Label::new(label, Exposure::Home)))
    }
}

/// `memory.write`
pub(crate) struct Write(pub(crate) Arc<Memory>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteArgs {
    text: String,
    topic: Option<String>,
}

impl Typed for Write {
    type Args = WriteArgs;
    const META: Meta = Meta {
        name: "memory.write",
        version: 1,
        description: "Remember a fact for later.",
        schema: r#"{"type":"object","properties":{"text":{"type":"string"},"topic":{"type":"string","description":"one or two words"}},"required":["text"]}"#,
        effect: EffectClass::Persist,
        timeout: TIMEOUT,
        reach: Reach::Qualified("memory.write"),
    };

    fn need(&self, args: &WriteArgs) -> Result<(Vec<Scope>, String), ToolError> {
        limited("text", &args.text, TEXT_MAX)?;
        if args.text.trim().is_empty() {
            return Err(ToolError::InvalidArguments("text is empty".into()));
        }
        topic_need("memory.write", args.topic.as_deref())
    }

    async fn call(&self, args: WriteArgs, ctx: &ToolContext) -> Result<Done, ToolError> {
        let (label, source) = match ctx.label.is_tainted() {
            true => (Integrity::World, "conversation after reading text from outside"),
            false => (Integrity::Household, "conversation"),
        };
        let entry =
            NewMemory { text: args.text, topic: args.topic, label, source: source.into(), turn: ctx.turn };
        let port = &self.0.port;
        let id = port.put(entry.clone()).await?;
        match port.get(id).await? {
            Some(stored) if stored.text == entry.text && stored.topic == entry.topic => {
                Ok(Done::verified(json!({ "remembered": true, "id": id.to_string() })))
            }
            _ => Err(ToolError::Failed("the entry was written but could not be read back".into())),
        }
    }
}

/// `memory.forget`
pub(crate) struct Forget(pub(crate) Arc<Memory>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetArgs {
    id: Option<String>,
    topic: Option<String>,
}

impl ForgetArgs {
    fn target(&self) -> Result<Target<'_>, ToolError> {
        match (self.id.as_deref(), self.topic.as_deref()) {
            (Some(id), None) => Ulid::from_string(id)
                .map(Target::Id)
                .map_err(|_| ToolError::InvalidArguments("id is not one that memory.read gave".into())),
            (None, Some(topic)) => Ok(Target::Topic(topic)),
            _ => Err(ToolError::InvalidArguments("give either id or topic".into())),
        }
    }
}

enum Target<'a> {
    Id(Ulid),
    Topic(&'a str),
}

impl Typed for Forget {
    type Args = ForgetArgs;
    const META: Meta = Meta {
        name: "memory.forget",
        version: 1,
        description: "Forget one entry by id, or all of a topic.",
        schema: r#"{"type":"object","properties":{"id":{"type":"string"},"topic":{"type":"string"}}}"#,
        effect: EffectClass::Destroy,
        timeout: TIMEOUT,
        reach: Reach::Qualified("memory.forget"),
    };

    fn need(&self, args: &ForgetArgs) -> Result<(Vec<Scope>, String), ToolError> {
        match args.target()? {
            Target::Id(id) => {
                let qualifier = format!("id:{id}");
                Ok((vec![scope("memory.forget", Some(&qualifier))?], qualifier))
            }
            Target::Topic(topic) => topic_need("memory.forget", Some(topic)),
        }
    }

    async fn call(&self, args: ForgetArgs, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let port = &self.0.port;
        let ids: Vec<Ulid> = match args.target()? {
            Target::Id(id) => port.get(id).await?.map(|e| e.id).into_iter().collect(),
            Target::Topic(topic) => {
                let all = port.all().await?.into_iter();
                all.filter(|e| e.topic.as_deref() == Some(topic)).map(|e| e.id).collect()
            }
        };
        if ids.is_empty() {
            return Err(ToolError::NotFound("nothing in memory has that id or topic".into()));
        }
        port.forget(ids.clone()).await?;
        for id in &ids {
            if port.get(*id).await?.is_some() {
                return Err(ToolError::Failed("an entry is still there after it was forgotten".into()));
            }
        }
        Ok(Done::verified(json!({ "forgotten": ids.len() })))
    }
}

fn limited(what: &str, text: &str, max: usize) -> Result<(), ToolError> {
    if text.len() > max {
        let len = text.len();
        return Err(ToolError::InvalidArguments(format!(
            "{what} has {len} bytes, at most {max} are allowed"
        )));
    }
    Ok(())
}

/// The scope of a write or a forget under a topic. Topics are letters, digits,
/// spaces and `-_.`, so that they mean one thing inside of a scope.
fn topic_need(base: &str, topic: Option<&str>) -> Result<(Vec<Scope>, String), ToolError> {
    let Some(topic) = topic else {
        return Ok((vec![scope(base, None)?], "memory".into()));
    };
    limited("topic", topic, TOPIC_MAX)?;
    let plain = topic.chars().all(|c| c.is_alphanumeric() || " -_.".contains(c));
    if !plain || topic.trim() != topic || topic.is_empty() {
        let allowed = "a topic is made of letters, digits, spaces and -_.";
        return Err(ToolError::InvalidArguments(allowed.into()));
    }
    let qualifier = format!("topic:{topic}");
    Ok((vec![scope(base, Some(&qualifier))?], qualifier))
}

#[cfg(test)]
mod tests;
