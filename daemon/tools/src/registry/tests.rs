use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hearth_scope::{
    CallId, CapabilitySet, Decision, EffectClass, Integrity, Need, Scope, ToolName, TrustTier,
};
use hearth_turn::{ToolCall, ToolError, ToolOutcome, ToolSpec, Verification};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use ulid::Ulid;

use crate::testing::{FakeMemory, call, clock, context, object, output, scopes};
use crate::tool::{Adapter, Done, Meta, Reach, Typed};
use crate::{
    AuditPort, BoxFuture, ConfigPort, FetchPort, MemoryEntry, MemoryPort, NewMemory, Page, Registry, Root,
    Roots, Setting, Shell, ToolContext,
};

struct Nothing;

impl FetchPort for Nothing {
    fn fetch<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<Page, ToolError>> {
        Box::pin(async { Err(ToolError::Failed("no network".into())) })
    }
}

impl AuditPort for Nothing {
    fn recent<'a>(&'a self, _: Option<&'a str>, _: usize) -> BoxFuture<'a, Result<Vec<Value>, ToolError>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

impl ConfigPort for Nothing {
    fn setting<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Setting>, ToolError>> {
        Box::pin(async { Ok(None) })
    }
}

/// Every built-in tool, with `/` as the root: nothing here touches a file.
fn everything() -> Registry {
    let root = Root { path: "/".into(), label: Integrity::Household, writable: true };
    Registry::builder()
        .shell(Shell::new("/nonexistent".into()))
        .config(Arc::new(Nothing))
        .audit(Arc::new(Nothing))
        .fetch(Arc::new(Nothing))
        .roots(Roots::open(&[root]).unwrap())
        .memory(Arc::new(FakeMemory::default()))
        .clock(clock())
        .build()
}

/// Calls of each tool that fit its arguments.
const VALID: &[(&str, &[&str])] = &[
    ("time.now", &["{}"]),
    ("memory.read", &[r#"{"query":"tea"}"#, r#"{"query":"tea","limit":3}"#]),
    ("memory.write", &[r#"{"text":"x"}"#, r#"{"text":"x","topic":"tea"}"#]),
    ("memory.forget", &[r#"{"topic":"tea"}"#, r#"{"id":"01KBB4Q3A8V9Y2M5N7P0R1S3T4"}"#]),
    ("fs.read", &[r#"{"path":"/srv/home/a.txt"}"#]),
    ("fs.list", &["{}", r#"{"path":"/srv/home"}"#]),
    ("fs.metadata", &[r#"{"path":"/srv/home/a.txt"}"#]),
    ("fs.write", &[r#"{"path":"/srv/home/a.txt","text":""}"#]),
    ("fs.delete", &[r#"{"path":"/srv/home/a.txt"}"#]),
    ("net.fetch", &[r#"{"url":"https://example.org/news?id=1"}"#]),
    ("audit.read", &["{}", r#"{"kind":"tool_intent","limit":5}"#]),
    ("config.read", &[r#"{"key":"model.name"}"#]),
    ("shell.exec", &[r#"{"command":["date"]}"#, r#"{"command":["date","-u"],"timeout_s":5}"#]),
];

/// What the owner's agent holds when nothing else is configured: everything,
/// and the qualified forms that remote channels get.
const OWNER: &[&str] = &[
    "memory.read",
    "memory.write",
    "memory.forget",
    "memory.forget:topic:*",
    "fs.read",
    "fs.read:/srv/home",
    "fs.write",
    "fs.write:/srv/home",
    "fs.metadata",
    "fs.delete",
    "net.fetch",
    "audit.read",
    "audit.read:tool_*",
    "config.read",
    "shell.exec",
];

fn golden(name: &str, now: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, now).unwrap();
    }
    let before = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(before, now, "{name} is out of date; UPDATE=1 rewrites it");
}

fn name(text: &str) -> ToolName {
    ToolName::parse(text).unwrap()
}

#[test]
fn what_the_model_is_told_is_small_and_known() {
    let registry = everything();
    let shown = |s: &ToolSpec| {
        json!({
            "name": s.name, "version": s.version, "description": s.description, "schema": s.schema,
            "effect": s.effect, "timeout_s": s.timeout.as_secs(),
        })
    };
    let specs: Vec<Value> = registry.specs().map(shown).collect();
    golden("tools.json", &format!("{}\n", serde_json::to_string_pretty(&specs).unwrap()));

    let told = |s: &ToolSpec| s.name.as_str().len() + s.description.len() + s.schema.to_string().len();
    let bytes: usize = registry.specs().map(told).sum();
    assert!(bytes <= 2_800, "{bytes} bytes of names, descriptions and schemas");
}

/// Schema and arguments say the same: valid calls parse, each required field is
/// missed, a field that is not in the schema is refused, and so is a value of
/// another type.
#[test]
fn schemas_agree_with_arguments() {
    let registry = everything();
    let names: Vec<&str> = registry.specs().map(|s| s.name.as_str()).collect();
    assert_eq!(names, VALID.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "the fixed order");
    for (tool, examples) in VALID {
        let tool = name(tool);
        let schema = &registry.get(&tool).unwrap().spec().schema;
        assert_eq!(schema["type"], "object");
        let fields = schema["properties"].as_object().unwrap();
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|v| v.as_str().unwrap())
            .collect();
        let mut seen = Map::new();
        for example in *examples {
            let args = object(example);
            registry.need(&tool, &args).unwrap_or_else(|e| panic!("{tool} {example}: {e}"));
            assert!(args.keys().all(|k| fields.contains_key(k)), "{tool}: {example}");
            for field in &required {
                let mut args = args.clone();
                args.remove(*field).unwrap();
                let error = registry.need(&tool, &args).unwrap_err().to_string();
                assert!(error.contains(&format!("missing field `{field}`")), "{tool}: {error}");
            }
            let mut more = args.clone();
            more.insert("force".into(), true.into());
            let error = registry.need(&tool, &more).unwrap_err().to_string();
            assert!(error.contains("unknown field `force`"), "{tool}: {error}");
            for field in args.keys() {
                let mut other = args.clone();
                other.insert(field.clone(), json!({ "nested": true }));
                assert!(registry.need(&tool, &other).is_err(), "{tool}: {field} of another type");
            }
            seen.extend(args);
        }
        assert!(fields.keys().all(|f| seen.contains_key(f)), "{tool}: every field has an example");
    }
}

/// Each tool at each tier, for an owner that holds everything: what is offered,
/// and which of the example calls the gate lets through. A tool that is offered
/// can be called, and one that can be called is offered.
#[test]
fn tools_by_tier() {
    let registry = everything();
    let mut table = String::from("# tool: lowest tier; example calls let through at each tier\n");
    let tiers = [TrustTier::Untrusted, TrustTier::SemiTrusted, TrustTier::Trusted];
    for (tool, examples) in VALID {
        let tool = name(tool);
        let mut rows = BTreeMap::new();
        for tier in tiers {
            let effective = scopes(OWNER).under(tier);
            let offered = registry.offered(&effective).iter().any(|s| s.name == tool);
            let granted = |e: &&&str| {
                let need = registry.need(&tool, &object(e)).unwrap();
                matches!(effective.check(&tool, CallId(1), &need), Decision::Grant(_))
            };
            let through: Vec<&str> = examples.iter().filter(granted).copied().collect();
            assert_eq!(offered, !through.is_empty(), "{tool} at {tier}: offered and callable differ");
            rows.insert(tier, through);
        }
        let lowest = tiers.into_iter().find(|t| !rows[t].is_empty()).unwrap();
        assert!(tiers.into_iter().filter(|t| *t > lowest).all(|t| rows[&t].len() >= rows[&lowest].len()));
        table.push_str(&format!("{tool}: {lowest}\n"));
        for (tier, through) in &rows {
            for example in through {
                table.push_str(&format!("    {tier} {example}\n"));
            }
        }
    }
    golden("tool-tiers.txt", &table);
}

#[test]
fn nothing_is_offered_without_its_scope() {
    let registry = everything();
    for (held, expected) in [
        (&[][..], &["time.now"][..]),
        (&["memory.read:scope:public:*"], &["time.now"]),
        (&["memory.read"], &["time.now", "memory.read"]),
        (&["fs.read:/srv"], &["time.now", "fs.read", "fs.list"]),
        (&["shell.exec:date"], &["time.now", "shell.exec"]),
        (&["net.post", "fs.metadata"], &["time.now", "fs.metadata"]),
    ] {
        let offered = registry.offered(&scopes(held).under(TrustTier::Trusted));
        assert_eq!(offered.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), expected, "{held:?}");
    }
    assert_eq!(Registry::builder().build().specs().count(), 0);
}

/// A tool that waits, of any effect.
struct Waits<const DESTROYS: bool>;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArgs {}

impl<const DESTROYS: bool> Typed for Waits<DESTROYS> {
    type Args = NoArgs;
    const META: Meta = Meta {
        name: "test.wait",
        version: 1,
        description: "",
        schema: "{}",
        effect: if DESTROYS { EffectClass::Destroy } else { EffectClass::Read },
        timeout: Duration::from_secs(5),
        reach: Reach::Bare("config.read"),
    };
    fn need(&self, _: &NoArgs) -> Result<(Vec<Scope>, String), ToolError> {
        Ok((vec![Scope::parse("config.read").unwrap()], String::new()))
    }
    async fn call(&self, _: NoArgs, _: &ToolContext) -> Result<Done, ToolError> {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok(Done::read(Value::Null, hearth_scope::Label::NEUTRAL))
    }
}

/// Ends a call of `tool` by whatever comes first, in virtual time.
async fn ended(registry: &Registry, cancel: Option<u64>, deadline: u64) -> (ToolOutcome, u64) {
    let held = scopes(&["config.read"]);
    let ctx = ToolContext { held, deadline: Instant::now() + Duration::from_secs(deadline), ..context() };
    let start = Instant::now();
    let stop = async {
        if let Some(after) = cancel {
            tokio::time::sleep(Duration::from_secs(after)).await;
            ctx.cancel.cancel();
        }
    };
    let (outcome, ()) = tokio::join!(call(registry, &ctx, "test.wait", "{}"), stop);
    (outcome, start.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn calls_end_in_time() {
    let reads = Registry::builder().tool(Arc::new(Adapter::new(Waits::<false>))).build();
    let destroys = Registry::builder().tool(Arc::new(Adapter::new(Waits::<true>))).build();
    let timed_out = |s| ToolOutcome::Failed(ToolError::TimedOut(Duration::from_secs(s)));
    let cancelled = || ToolOutcome::Failed(ToolError::Cancelled);
    assert_eq!(ended(&reads, None, 60).await, (timed_out(5), 5));
    assert_eq!(ended(&reads, None, 2).await, (timed_out(2), 2));
    assert_eq!(ended(&reads, Some(1), 60).await, (cancelled(), 1));
    // What may have had an effect is not abandoned when the person stops the turn,
    // and not called failed when it does not end.
    let unfinished = |s| ToolOutcome::Failed(ToolError::Unfinished(Duration::from_secs(s)));
    assert_eq!(ended(&destroys, Some(1), 60).await, (unfinished(6), 6));
    assert_eq!(ended(&destroys, Some(0), 60).await.0, unfinished(6));
    assert_eq!(ended(&destroys, None, 2).await, (unfinished(3), 3));
    // Nothing is begun without time.
    assert_eq!(ended(&destroys, None, 0).await, (timed_out(0), 0));
}

/// A memory that writes on a thread of its own, as the store does.
struct Threaded(Arc<FakeMemory>);

impl MemoryPort for Threaded {
    fn version(&self) -> u64 {
        self.0.version()
    }
    fn all(&self) -> BoxFuture<'_, Result<Vec<MemoryEntry>, ToolError>> {
        self.0.all()
    }
    fn get(&self, id: Ulid) -> BoxFuture<'_, Result<Option<MemoryEntry>, ToolError>> {
        self.0.get(id)
    }
    fn put(&self, new: NewMemory) -> BoxFuture<'_, Result<Ulid, ToolError>> {
        let memory = self.0.clone();
        let write = move || memory.seed(new.topic.as_deref().unwrap_or(""), &new.text, new.label);
        Box::pin(async { Ok(tokio::task::spawn_blocking(write).await.unwrap()) })
    }
    fn forget(&self, ids: Vec<Ulid>) -> BoxFuture<'_, Result<(), ToolError>> {
        self.0.forget(ids)
    }
}

/// Work that cannot be stopped ends after the deadline, because a thread is busy.
/// What is said of it is true: it is done, or it may still happen.
#[test]
fn an_effect_after_the_deadline_is_never_called_failed() {
    /// The thread gets free after so many milliseconds; `None` is after the answer.
    fn check(tool: &str, args: &str, free_after: Option<u64>) {
        let directory = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(directory.path()).unwrap();
        fs::write(path.join("old"), "x").unwrap();
        let memory = Arc::new(FakeMemory::default());
        let root = Root { path: path.clone(), label: Integrity::Household, writable: true };
        let registry = Registry::builder()
            .roots(Roots::open(&[root]).unwrap())
            .memory(Arc::new(Threaded(memory.clone())))
            .clock(clock())
            .build();
        let happened = || match tool {
            "fs.write" => path.join("new").exists(),
            "fs.delete" => !path.join("old").exists(),
            _ => !memory.entries.lock().unwrap().is_empty(),
        };
        let mut one_thread = tokio::runtime::Builder::new_current_thread();
        let runtime = one_thread.enable_time().start_paused(true).max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (open, gate) = std::sync::mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || gate.recv());
            let held = scopes(&["fs.write", "fs.delete", "memory.write"]);
            let ctx = ToolContext { held, ..context() };
            let clock = async {
                tokio::time::advance(Duration::from_millis(free_after.unwrap_or(21_000))).await;
                if free_after.is_some() {
                    open.send(()).unwrap();
                }
            };
            let (outcome, ()) = tokio::join!(call(&registry, &ctx, tool, args), clock);
            if free_after.is_some() {
                assert_eq!(output(outcome).1, Verification::Verified, "{tool}");
            } else {
                let unfinished = ToolError::Unfinished(Duration::from_secs(21));
                assert_eq!(outcome, ToolOutcome::Failed(unfinished), "{tool}");
                assert!(!happened(), "{tool}");
                open.send(()).unwrap();
            }
            busy.await.unwrap().unwrap();
            // Whatever was handed to the thread before is done when this is.
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            assert!(happened(), "{tool} {free_after:?}");
        });
    }
    for (tool, args) in [
        ("fs.write", r#"{"path":"new","text":"x"}"#),
        ("fs.delete", r#"{"path":"old"}"#),
        ("memory.write", r#"{"text":"x"}"#),
    ] {
        for free_after in [Some(1), Some(19_999), Some(20_001), Some(20_999), None] {
            check(tool, args, free_after);
        }
    }
}

#[tokio::test]
async fn a_grant_is_good_for_its_own_call_only() {
    let registry = everything();
    let ctx = context();
    let grant = |tool: &str, call: u32, scope: Option<&str>| {
        let need = Need {
            scopes: scope.map(|s| Scope::parse(s).unwrap()).into_iter().collect(),
            subject: String::new(),
            effect: EffectClass::Read,
        };
        let all: CapabilitySet = scopes(OWNER);
        match all.under(TrustTier::Trusted).check(&name(tool), CallId(call), &need) {
            Decision::Grant(grant) => grant,
            other => panic!("{other:?}"),
        }
    };
    let read =
        || ToolCall { id: CallId(2), name: name("memory.read"), arguments: object(r#"{"query":"tea"}"#) };
    let refused = ToolOutcome::Failed(ToolError::Refused("the grant is for another call".into()));
    for other in [
        grant("time.now", 2, Some("memory.read")),
        grant("memory.read", 1, Some("memory.read")),
        grant("memory.read", 2, None),
        grant("memory.read", 2, Some("memory.write")),
    ] {
        assert_eq!(registry.run(other, read(), &ctx).await, refused);
    }
    let right = grant("memory.read", 2, Some("memory.read"));
    assert!(matches!(registry.run(right, read(), &ctx).await, ToolOutcome::Completed { .. }));
}
