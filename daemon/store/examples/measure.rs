//! Figures of a large store on the real disk, one line each: `name value unit`.
//!
//! `measure audit N DIR`: N audit entries, an even number: verifying them, opening the store.
//! `measure reopen MB DIR`: MB mebibytes of tool turns: opening the store after the process was
//! killed in the middle of a call, and after it was closed.
//!
//! DIR must hold no store yet; the caller removes it. The files are in the page cache.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hearth_audit::{Draft, Kind, Stamp};
use hearth_scope::{CallId, Scope, ToolName};
use hearth_store::{
    AuditLog, Batch, Options, RealDisk, Store, StoreError, create, inbox, memory, outbox, sessions,
};
use hearth_vault::{Argon2Params, DataKey, Header, Secret, SlotRandom};
use serde_json::json;
use ulid::Ulid;

type Res<T> = Result<T, Box<dyn Error>>;

/// Bytes of rows that only the journal has when the process is killed; the index is committed at
/// 256 KiB, so that little more could have to be replayed.
const UNINDEXED: usize = 224 * 1024;
/// When the first turn was, in milliseconds since 1970; each later one is a minute later.
const BEGINNING_MS: u64 = 1_796_083_200_000;
/// Tool, scope, subject and outcome of the calls, in turn.
const CALLS: [(&str, &str, &str, &str); 4] = [
    ("memory.read", "memory.read", "“when was the boiler serviced”", "not_applicable"),
    ("web.fetch", "net.fetch:https://www.example.org", "https://www.example.org/today", "not_applicable"),
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

/// A log of `entries` entries: its bytes, its verification, the opening of its store.
fn audit(entries: u64, dir: &Path) -> Res<()> {
    create_store(dir)?;
    let (store, _) = Store::open(options(dir)?, &key())?;
    for n in 0..entries / 2 {
        if n % 50_000 == 0 {
            eprintln!("# {} of {entries} entries", 2 * n);
        }
        store.append_blocking(intent(n / 3, n)?)?;
        store.append_blocking(outcome(n / 3, n)?)?;
    }
    store.close_blocking()?;
    // As `hearth audit verify` does it, apart from unlocking.
    let (disk, began) = (RealDisk::read_only(&dir.join("store")), Instant::now());
    let log = AuditLog::new(&disk, &key());
    let report = log.verify(None, log.remembered()?)?;
    let seconds = began.elapsed().as_secs_f64();
    if report.entries != entries || report.finding.is_some() {
        return Err(format!("the log is not as it was written: {report:?}").into());
    }
    println!("audit_verify_{entries} {seconds:.2} s");
    println!("audit_verify_{entries}_rate {:.0} entries/s", entries as f64 / seconds);
    println!("audit_bytes_per_entry {:.0} bytes", size(dir, ".seg")? as f64 / entries as f64);
    println!("store_open_{entries}_entries {:.1} ms", median((0..5).map(|_| opening(dir, false)))?);
    Ok(())
}

/// Opening a store of `mb` mebibytes after a crash, and after closing it.
fn reopen(mb: u64, dir: &Path) -> Res<()> {
    create_store(dir)?;
    let crashed = median((0..3).map(|_| fill_and_crash(mb, dir).and_then(|()| opening(dir, true))))?;
    println!("reopen_after_crash_{mb} {crashed:.1} ms");
    println!("reopen_after_crash_{mb}_bytes {} bytes", size(dir, "")?);
    println!("reopen_clean_{mb} {:.1} ms", median((0..3).map(|_| opening(dir, false)))?);
    Ok(())
}

/// Lets another process fill the store and kills it (SIGKILL, by its pid) when it says so.
fn fill_and_crash(mb: u64, dir: &Path) -> Res<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["fill", &mb.to_string()]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let mut line = String::new();
    child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line)).transpose()?;
    child.kill()?;
    let status = child.wait()?;
    if line != "filled\n" {
        return Err(format!("the store was not filled: {status}").into());
    }
    eprintln!("# killed at {} bytes, of which the index {}", size(dir, "")?, size(dir, ".redb")?);
    Ok(())
}

/// Fills the store, begins a call whose outcome is never written, says so and waits to be killed.
fn fill(mb: u64, dir: &Path) -> Res<()> {
    let (store, _) = Store::open(options(dir)?, &key())?;
    let mut n = sessions::count(&store, id(0))?;
    while n % 20 != 0 || size(dir, "")? < mb << 20 {
        turn(&store, n, Store::append_blocking)?;
        n += 1;
    }
    store.checkpoint_blocking()?;
    let mut unindexed = 0;
    while unindexed < UNINDEXED {
        let commits = store.figures().checkpoints;
        unindexed += turn(&store, n, Store::commit_blocking)?;
        n += 1;
        if store.figures().checkpoints != commits {
            unindexed = 0; // A new segment began.
        }
    }
    store.commit_blocking(intent(n, 3 * n)?)?;
    println!("filled");
    std::io::stdout().flush()?;
    // Ends as well when whoever should kill it is gone.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Writes turn `n`, of three calls, in the batches of the daemon; answers the bytes of its rows.
fn turn(store: &Store, n: u64, commit: fn(&Store, Batch) -> Result<(), StoreError>) -> Res<usize> {
    let (turn, session, ms) = (id(n), id(0), Some(BEGINNING_MS + n * 60_000));
    let (channel, external_id) = ("console".to_owned(), format!("0197c0de-{n:012}"));
    let message = inbox::Row {
        id: turn,
        channel: channel.clone(),
        external_id: external_id.clone(),
        session,
        conversation: "kitchen".into(),
        origin: json!({ "kind": "console", "uid": 1000, "user": "anna" }),
        text: text(40 + n % 400),
        received_ms: ms,
        stage: inbox::Stage::Received,
    };
    let reply = json!({ "outcome": "completed", "text": text(100 + n % 900), "tool_calls": 1 });
    let exchange = json!({ "messages": [
        { "role": "user", "id": turn, "session": session, "text": message.text, "received_ms": ms },
        { "role": "assistant", "calls": [{ "id": "call_1", "name": "memory.read", "arguments": text(60) }] },
        { "role": "tool", "id": "call_1", "text": text(300 + n % 2500) },
        { "role": "assistant", "text": reply["text"] },
    ] });
    let answer =
        outbox::Row { message: turn, channel: channel.clone(), external_id, session, outcome: reply };
    let (label, source, topic) = (memory::Label::Owner, channel.clone(), Some("household".to_owned()));
    let text = text(60 + n % 200);
    let remembered = memory::Row { id: turn, text, topic, label, source, turn: Some(turn), created_ms: ms };
    let mut batches = vec![Batch::new().put(inbox::accept(&message))];
    for call in 3 * n..3 * n + 3 {
        batches.extend([intent(n, call)?.put([inbox::acting(&message)]), outcome(n, call)?]);
    }
    let history = sessions::append(session, n, &exchange);
    batches.push(Batch::new().put(outbox::add(&answer)).put([history, inbox::done(turn)]));
    let noted = n.is_multiple_of(8).then(|| memory::store(&remembered));
    batches.push(Batch::new().put(noted).put([outbox::delivered(&channel, turn)]));
    let rows = batches.iter().flat_map(|batch| &batch.writes);
    let bytes = rows.map(|row| 25 + row.value.as_ref().map_or(0, Vec::len)).sum();
    batches.into_iter().try_for_each(|batch| commit(store, batch))?;
    Ok(bytes)
}

/// Call `n`, of turn `turn`, is about to run.
fn intent(turn: u64, n: u64) -> Res<Batch> {
    let (tool, scope, subject, _) = CALLS[(n % 4) as usize];
    let (tool, scopes, subject) = (ToolName::parse(tool)?, vec![Scope::parse(scope)?], subject.to_owned());
    let (turn, call) = (id(turn), CallId((n % 3) as u32 + 1));
    let kind = Kind::ToolIntent {
        turn,
        call,
        tool,
        version: 1,
        scopes,
        subject,
        repaired: false,
        label: hearth_scope::Label::UNKNOWN,
    };
    let arguments = Some(serde_json::to_vec(&json!({ "query": text(60 + n % 40) }))?);
    Ok(Batch { audit: vec![Draft { kind, arguments }], writes: Vec::new(), closing: false })
}

/// Call `n`, of turn `turn`, has run.
fn outcome(turn: u64, n: u64) -> Res<Batch> {
    let (tool, _, _, outcome) = CALLS[(n % 4) as usize];
    let (turn, call) = (id(turn), CallId((n % 3) as u32 + 1));
    let (tool, outcome) = (ToolName::parse(tool)?, outcome.to_owned());
    Ok(Batch::new().audit(Kind::ToolOutcome { turn, call, tool, outcome, duration_ms: n % 900 }))
}

/// The identity of turn `n`: ordered by time, its other bits spread.
fn id(n: u64) -> Ulid {
    Ulid::from_parts(BEGINNING_MS + n * 60_000, u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 16)
}

fn text(bytes: u64) -> String {
    "The boiler was serviced in October. ".chars().cycle().take(bytes as usize).collect()
}

fn key() -> DataKey {
    DataKey::from_bytes([7; 32])
}

fn options(dir: &Path) -> Res<Options> {
    let (boot, began) = (id(7), Instant::now());
    let clock = Arc::new(move || {
        let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|t| t.as_millis() as u64);
        Stamp { boot, mono_ns: began.elapsed().as_nanos() as u64 + 86_400_000_000_000, wall_ms }
    });
    Ok(Options::at(&dir.join("store"), &dir.join("initialized"), true, clock)?)
}

fn create_store(dir: &Path) -> Res<()> {
    let mut header = Header::new([9; 16]);
    let random = SlotRandom { salt: [1; 16], nonce: [2; 24] };
    header.add_slot(&key(), &Secret::KeyFile(&[3; 32]), "key file", Argon2Params::default(), &random)?;
    Ok(create(&options(dir)?, &key(), &header)?)
}

/// The milliseconds of one opening of the store, which `crashed` or was closed.
fn opening(dir: &Path, crashed: bool) -> Res<f64> {
    let (options, key, began) = (options(dir)?, key(), Instant::now());
    let (store, opened) = Store::open(options, &key)?;
    let ms = began.elapsed().as_secs_f64() * 1000.0;
    if (opened.unclean, opened.gaps.len()) != (crashed, usize::from(crashed)) {
        return Err(format!("the store was not left as it should be: {opened:?}").into());
    }
    eprintln!("# opened in {ms:.1} ms");
    store.close_blocking()?;
    Ok(ms)
}

fn median(times: impl Iterator<Item = Res<f64>>) -> Res<f64> {
    let mut times = times.collect::<Res<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Bytes that the store's files take whose names end in `ending`; holes in them take none.
fn size(dir: &Path, ending: &str) -> Res<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir.join("store"))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(ending) {
            bytes += 512 * entry.metadata()?.blocks();
        }
    }
    Ok(bytes)
}
