//! Figures of a large store on the real disk, one line each: `name value unit`.
//!
//! `measure audit N DIR`: N audit entries; how long it takes to verify them, and to open the store.
//!
//! `measure reopen MB DIR`: MB mebibytes of tool turns; how long the store takes to open after the
//! process was killed in the middle of a call, and after it was closed.
//!
//! DIR must not hold a store yet, and is left for the caller to remove. The files are in the page
//! cache, as they are when a daemon was restarted; after a boot, reading them is added.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hearth_audit::{Draft, Kind, Stamp};
use hearth_scope::{CallId, CapabilitySet, Scope, ToolName, TrustTier};
use hearth_store::{
    AuditLog, Batch, Opened, Options, RealDisk, Store, create, inbox, memory, outbox, sessions,
};
use hearth_vault::{Argon2Params, DataKey, Header, Secret, SlotRandom};
use ulid::Ulid;

type Res<T> = Result<T, Box<dyn Error>>;

/// Bytes of rows that only the journal has when the process is killed: the index is committed at
/// 256 KiB, so that this is close to the most that can be replayed.
const UNINDEXED: usize = 224 * 1024;
/// Conversations that take turns.
const CONVERSATIONS: u64 = 4;
/// When the first turn was, in milliseconds since 1970; each later one is a minute later.
const BEGINNING_MS: u64 = 1_796_083_200_000;
/// Name, scope, subject and outcome of the tools that are called in turn.
const TOOLS: [(&str, &str, &str, &str); 4] = [
    ("memory.read", "memory.read", "“when was the boiler serviced”", "not_applicable"),
    (
        "web.fetch",
        "net.fetch:https://www.example.org",
        "https://www.example.org/weather/today",
        "not_applicable",
    ),
    ("fs.write", "fs.write:/home/anna/notes/**", "/home/anna/notes/shopping-list.md", "verified"),
    ("time.now", "config.read", "", "not_applicable"),
];

fn main() -> Res<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["audit", entries, dir] => audit(entries.parse()?, Path::new(dir)),
        ["reopen", mb, dir] => reopen(mb.parse()?, Path::new(dir)),
        // What `reopen` starts, and kills.
        ["fill", mb, dir] => fill(mb.parse()?, Path::new(dir)),
        _ => Err("usage: measure audit N DIR | measure reopen MB DIR".into()),
    }
}

/// The log of `entries` entries: bytes, verification, opening.
fn audit(entries: u64, dir: &Path) -> Res<()> {
    let state = new_store(dir)?;
    let (_, store, _) = open(dir)?;
    let began = Instant::now();
    for n in 0..entries / 2 {
        let (turn, call) = (id(n / 3), (n % 3) as u32 + 1);
        store.append_blocking(Batch { audit: vec![intent(turn, call, n)?], writes: Vec::new() })?;
        store.append_blocking(Batch::new().audit(outcome(turn, call, n)?))?;
        if n % 50_000 == 0 {
            eprintln!("# {} of {entries} entries after {:.0} s", 2 * n, began.elapsed().as_secs_f64());
        }
    }
    if entries % 2 == 1 {
        store.append_blocking(Batch::new().audit(ended(id(entries))))?;
    }
    store.close_blocking()?;
    let (journal, index) = sizes(&state)?;
    eprintln!("# filled in {:.0} s: journal {journal}, index {index} bytes", began.elapsed().as_secs_f64());

    // As `hearth audit verify` does it, apart from unlocking.
    let (disk, began) = (RealDisk::read_only(&state), Instant::now());
    let log = AuditLog::new(&disk, &key());
    let head = log.remembered()?;
    let report = log.verify(None, head)?;
    let seconds = began.elapsed().as_secs_f64();
    if report.entries != entries || report.finding.is_some() || head.is_none() {
        return Err(format!("the log does not verify: {report:?}").into());
    }
    println!("audit_verify_{entries} {seconds:.2} s");
    println!("audit_verify_{entries}_rate {:.0} entries/s", entries as f64 / seconds);
    println!("audit_bytes_per_entry {:.0} bytes", journal as f64 / entries as f64);
    println!("store_open_{entries}_entries {:.1} ms", median_of_clean_openings(dir, 5)?);
    Ok(())
}

/// Opening a store of `mb` mebibytes after a crash, and after closing.
fn reopen(mb: u64, dir: &Path) -> Res<()> {
    let state = new_store(dir)?;
    let mut times = Vec::new();
    for crash in 1..=3 {
        crash_while_filling(mb, dir)?;
        let (journal, index) = sizes(&state)?;
        let (ms, store, opened) = open(dir)?;
        if !opened.unclean || opened.gaps.len() != 1 {
            return Err(format!("this was no crash in the middle of a call: {opened:?}").into());
        }
        eprintln!("# crash {crash}: journal {journal}, index {index} bytes, opened in {ms:.1} ms");
        times.push(ms);
        store.close_blocking()?;
    }
    let (journal, index) = sizes(&state)?;
    println!("reopen_after_crash_{mb} {:.1} ms", median(times));
    println!("reopen_after_crash_{mb}_bytes {} bytes", journal + index);
    println!("reopen_clean_{mb} {:.1} ms", median_of_clean_openings(dir, 3)?);
    Ok(())
}

/// Lets another process fill the store and kills it (SIGKILL, by its pid) when it says so.
fn crash_while_filling(mb: u64, dir: &Path) -> Res<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["fill", &mb.to_string()])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    child.kill()?;
    let status = child.wait()?;
    if line == "filled\n" { Ok(()) } else { Err(format!("the store was not filled: {status}").into()) }
}

/// Fills the store, begins a call whose outcome is never written, says so and waits to be killed.
fn fill(mb: u64, dir: &Path) -> Res<()> {
    let (_, store, _) = open(dir)?;
    let began = Instant::now();
    let counts = (0..CONVERSATIONS).map(|c| sessions::count(&store, conversation(c)));
    let mut n = counts.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0);
    loop {
        let (journal, index) = sizes(&dir.join("store"))?;
        if journal + index >= mb << 20 {
            break;
        }
        if n.is_multiple_of(2000) {
            let (mib, seconds) = ((journal + index) >> 20, began.elapsed().as_secs_f64());
            eprintln!("# {mib} of {mb} MiB after {seconds:.0} s, {n} turns");
        }
        for _ in 0..20 {
            turn(&store, n, Store::append_blocking)?;
            n += 1;
        }
    }
    store.checkpoint_blocking()?;
    let (mut unindexed, mut commits) = (0, store.figures().checkpoints);
    while unindexed < UNINDEXED {
        unindexed += turn(&store, n, Store::commit_blocking)?;
        n += 1;
        let now = store.figures().checkpoints;
        if now != commits {
            // A new segment: the index has everything again.
            (unindexed, commits) = (0, now);
        }
    }
    store.commit_blocking(Batch { audit: vec![intent(id(n), 1, n)?], writes: Vec::new() })?;
    println!("filled");
    std::io::stdout().flush()?;
    // Ends also when whoever should kill it has died.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

type Commit = fn(&Store, Batch) -> Result<(), hearth_store::StoreError>;

/// The batches of turn `n`, which has one call; answers how many bytes its rows have.
fn turn(store: &Store, n: u64, commit: Commit) -> Res<usize> {
    let (turn, session, ms) = (id(n), conversation(n % CONVERSATIONS), BEGINNING_MS + n * 60_000);
    let row = inbox::Row {
        id: turn,
        channel: "console".into(),
        external_id: format!("0197c0de-{n:012}"),
        session,
        conversation: format!("conversation-{}", n % CONVERSATIONS),
        origin: serde_json::json!({ "kind": "console", "uid": 1000, "user": "anna" }),
        text: text(40 + n % 400),
        received_ms: Some(ms),
        stage: inbox::Stage::Received,
    };
    let call = serde_json::json!({ "id": format!("call_{n}"), "name": "memory.read",
        "arguments": { "query": text(30) } });
    let exchange = serde_json::json!({ "messages": [
        { "role": "user", "id": turn, "session": session, "text": row.text, "received_ms": ms },
        { "role": "assistant", "text": "", "calls": [call] },
        { "role": "tool", "call": format!("call_{n}"), "text": text(300 + n % 2500) },
        { "role": "assistant", "text": text(100 + n % 900), "calls": [] },
    ] });
    let answer = outbox::Row {
        message: turn,
        channel: row.channel.clone(),
        external_id: row.external_id.clone(),
        session,
        outcome: serde_json::json!({ "outcome": "completed", "text": text(100 + n % 900), "tool_calls": 1 }),
    };
    let held = TOOLS.iter().map(|t| Scope::parse(t.1)).collect::<Result<Vec<_>, _>>()?;
    let effective = CapabilitySet::from_scopes(held);
    let channel = row.channel.clone();
    let started = Kind::TurnStarted { turn, session, channel, tier: TrustTier::Trusted, effective };
    let mut batches = vec![
        Batch::new().put(inbox::accept(&row)),
        Batch::new().audit(started),
        Batch::new().audit(model_call(turn, 1)),
        Batch { audit: vec![intent(turn, 1, n)?], writes: vec![inbox::acting(&row)] },
        Batch::new().audit(outcome(turn, 1, n)?),
        Batch::new().audit(model_call(turn, 2)),
        Batch::new()
            .audit(ended(turn))
            .put([sessions::append(session, n, &exchange)])
            .put(outbox::add(&answer))
            .put([inbox::done(turn)]),
        Batch::new().put([outbox::delivered(&row.channel, turn)]),
    ];
    if n.is_multiple_of(8) {
        let (label, source) = (memory::Label::Owner, "console".into());
        let topic = Some("household".into());
        let (text, turn, created_ms) = (text(60 + n % 200), Some(turn), Some(ms));
        let row = memory::Row { id: id(n), text, topic, label, source, turn, created_ms };
        batches.push(Batch::new().put([memory::store(&row)]));
    }
    let writes = batches.iter().flat_map(|b| &b.writes);
    let bytes = writes.map(|w| 25 + w.value.as_ref().map_or(0, Vec::len)).sum();
    batches.into_iter().try_for_each(|batch| commit(store, batch))?;
    Ok(bytes)
}

fn intent(turn: Ulid, call: u32, n: u64) -> Res<Draft> {
    let (tool, scope, subject, _) = TOOLS[(n % 4) as usize];
    let (tool, scopes, subject) = (ToolName::parse(tool)?, vec![Scope::parse(scope)?], subject.to_owned());
    let kind =
        Kind::ToolIntent { turn, call: CallId(call), tool, version: 1, scopes, subject, repaired: false };
    Ok(Draft { kind, arguments: Some(format!("{{\"query\":\"{} {n}\"}}", text(60)).into_bytes()) })
}

fn outcome(turn: Ulid, call: u32, n: u64) -> Res<Kind> {
    let (tool, _, _, outcome) = TOOLS[(n % 4) as usize];
    let (tool, outcome) = (ToolName::parse(tool)?, outcome.to_owned());
    Ok(Kind::ToolOutcome { turn, call: CallId(call), tool, outcome, duration_ms: n % 900 })
}

fn model_call(turn: Ulid, step: u32) -> Kind {
    let (model, outcome) = ("qwen3:4b-instruct".to_owned(), "ok".to_owned());
    Kind::ModelCall { turn, step, model, prompt_tokens: 1480, completion_tokens: 96, outcome }
}

fn ended(turn: Ulid) -> Kind {
    let outcome = "completed".to_owned();
    Kind::TurnEnded { turn, outcome, reason: None, tool_calls: 1, duration_ms: 5230 }
}

/// The identity of turn `n`, ordered by time, its other bits spread.
fn id(n: u64) -> Ulid {
    Ulid::from_parts(BEGINNING_MS + n * 60_000, u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 16)
}

fn conversation(number: u64) -> Ulid {
    Ulid::from_parts(BEGINNING_MS, u128::from(number))
}

/// About `bytes` bytes of text.
fn text(bytes: u64) -> String {
    "The boiler was serviced in October; the next time is due in a year. "
        .chars()
        .cycle()
        .take(bytes as usize)
        .collect()
}

fn key() -> DataKey {
    DataKey::from_bytes([7; 32])
}

fn options(dir: &Path) -> Res<Options> {
    let boot = Ulid::from_parts(BEGINNING_MS, 7);
    let began = Instant::now();
    let clock = Arc::new(move || {
        let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|t| t.as_millis() as u64);
        Stamp { boot, mono_ns: began.elapsed().as_nanos() as u64 + 86_400_000_000_000, wall_ms }
    });
    Ok(Options::at(&dir.join("store"), &dir.join("initialized"), true, clock)?)
}

/// Creates the store and answers the folder of its files.
fn new_store(dir: &Path) -> Res<std::path::PathBuf> {
    let mut header = Header::new([9; 16]);
    let random = SlotRandom { salt: [1; 16], nonce: [2; 24] };
    header.add_slot(&key(), &Secret::KeyFile(&[3; 32]), "key file", Argon2Params::default(), &random)?;
    create(&options(dir)?, &key(), &header)?;
    Ok(dir.join("store"))
}

/// Opens the store; answers also how many milliseconds that took.
fn open(dir: &Path) -> Res<(f64, Store, Opened)> {
    let options = options(dir)?;
    let key = key();
    let began = Instant::now();
    let (store, opened) = Store::open(options, &key)?;
    Ok((began.elapsed().as_secs_f64() * 1000.0, store, opened))
}

fn median_of_clean_openings(dir: &Path, count: usize) -> Res<f64> {
    let mut times = Vec::new();
    for _ in 0..count {
        let (ms, store, opened) = open(dir)?;
        if opened.unclean {
            return Err("the store was not closed".into());
        }
        times.push(ms);
        store.close_blocking()?;
    }
    Ok(median(times))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Bytes of the journal's segments, and of the index.
fn sizes(state: &Path) -> Res<(u64, u64)> {
    let (mut journal, mut index) = (0, 0);
    for entry in std::fs::read_dir(state)? {
        let (name, len) = entry.and_then(|e| Ok((e.file_name(), e.metadata()?.len())))?;
        match name.to_string_lossy() {
            name if name.ends_with(".seg") => journal += len,
            name if name == "store.redb" => index += len,
            _ => {}
        }
    }
    Ok((journal, index))
}
