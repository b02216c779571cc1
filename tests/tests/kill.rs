//! `kill -9` at random moments of the running daemon under load.
//!
//! Every message runs a real effect: a program that appends the message's name to
//! a file. `HEARTH_KILLS` sets how often the daemon is killed.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hearth_console::Client;
use hearth_contract::ChannelEvent;
use hearth_store::sim::Rng;
use hearth_tests::model::last_message;
use hearth_tests::{FakeModel, Home, Reply};
use hearth_turn::TurnOutcome;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// Connections that ask all the time.
const CLIENTS: usize = 4;
/// The daemon is killed at most this long after it is ready, in milliseconds.
const LONGEST_LIFE: u64 = 120;
/// Every so many rounds the daemon is killed while it starts.
const START_UP: u32 = 8;
/// Every so many rounds the whole log is verified.
const VERIFY: u32 = 20;

/// What a client knows of the message that it sent.
#[derive(Default, Clone)]
struct Seen {
    accepted: bool,
    outcomes: Vec<TurnOutcome>,
}

type Messages = Arc<Mutex<BTreeMap<String, Seen>>>;

fn prepare(model: &FakeModel) -> Home {
    let home = Home::new(&model.url(), "");
    let (program, effects) = (home.path("append"), home.path("effects"));
    std::fs::write(&program, format!("#!/bin/sh\necho \"$1\" >> {}\n", effects.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(&effects, "").unwrap();
    let more = format!(
        "[agent]\ncapabilities = [\"memory.write\", \"shell.exec\"]\n\n[limits]\nturns = 4\nwaiting = 1024\n\n\
         [tools.shell]\nenabled = true\ncommands = [\"{}\"]\n",
        program.display()
    );
    let settings = std::fs::read_to_string(home.path("hearth.toml")).unwrap();
    let settings = settings.replace("[console]\n", "[console]\nconnections_per_uid = 16\n");
    std::fs::write(home.path("hearth.toml"), settings + &more).unwrap();
    home.init();
    home
}

/// Calls the program with the name of the message, and remembers some of them.
fn answer(request: &Value) -> Reply {
    let (role, text) = last_message(request);
    if role == "tool" {
        return Reply::text("Done.");
    }
    let name = text.rsplit(' ').next().unwrap_or_default().to_owned();
    let program = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut calls = vec![("shell_exec".to_owned(), json!({"command": [program, name]}))];
    if name.ends_with(['1', '4']) {
        calls.push(("memory_write".to_owned(), json!({"text": format!("the message {name}")})));
    }
    Reply::Calls(calls)
}

/// Asks one message after the other until the daemon is gone.
async fn load(home: Arc<Home>, messages: Messages, conversation: String) {
    let Ok(mut client) = Client::connect(&home.path("run/console.sock"), "load").await else { return };
    for n in 0.. {
        let name = format!("{conversation}-{n}");
        messages.lock().unwrap().insert(name.clone(), Seen::default());
        if ask(&mut client, &home, &messages, &conversation, &name).await.is_none() {
            return;
        }
    }
}

/// Asks one message and notes what is heard; `None` when the connection broke.
async fn ask(client: &mut Client, home: &Home, messages: &Messages, talk: &str, name: &str) -> Option<bool> {
    let text = format!("run {} {name}", home.path("append").display());
    let mut answer = client.ask(talk, &text, name).await.ok()?;
    let mut known = false;
    loop {
        let event = answer.next().await.ok()?;
        let mut messages = messages.lock().unwrap();
        let seen = messages.get_mut(name).unwrap();
        match event {
            Some(ChannelEvent::Accepted { duplicate, .. }) => {
                seen.accepted = true;
                known = duplicate;
            }
            Some(ChannelEvent::Finished(outcome)) => seen.outcomes.push(outcome),
            Some(ChannelEvent::Stream(_) | ChannelEvent::Postponed) => {}
            None => return Some(known),
        }
    }
}

fn verify(home: &Home) -> bool {
    let out = home.run(&["audit", "verify"]);
    if out.code != 0 {
        eprintln!("{out:?}");
    }
    out.code == 0
}

/// Intents, and those without an outcome; panics when the gaps are not those.
fn intents(home: &Home) -> (BTreeMap<String, usize>, usize) {
    let out = home.run(&["audit", "export", "-"]);
    assert_eq!(out.code, 0, "{}", out.stderr);
    let (mut tools, mut open, mut gaps) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    for entry in out.json_lines().iter().filter_map(|l| l.get("entry")) {
        let call = (entry["turn"].to_string(), entry["call"].to_string());
        match entry["kind"].as_str().unwrap() {
            "tool_intent" => {
                *tools.entry(entry["tool"].as_str().unwrap().to_owned()).or_default() += 1;
                assert!(open.insert(call), "an intent is written once: {entry}");
            }
            "tool_outcome" => assert!(open.remove(&call), "an outcome without an intent: {entry}"),
            "gap" => assert!(gaps.insert(call), "a gap is reported once: {entry}"),
            _ => {}
        }
    }
    assert_eq!(open, gaps, "the intents without an outcome are the reported gaps");
    (tools, gaps.len())
}

fn start_and_kill(home: &Home, wait: Duration) {
    let mut command = home.command(&["serve"]);
    let null = std::process::Stdio::null;
    let mut child = command.stdin(null()).stdout(null()).stderr(null()).spawn().unwrap();
    std::thread::sleep(wait);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// INV-4, INV-6
#[test]
fn inv_4_inv_6_kill_9_under_load_loses_and_doubles_nothing() {
    let kills: u32 = std::env::var("HEARTH_KILLS").map_or(60, |text| text.parse().unwrap());
    let model = FakeModel::start(answer);
    let home = Arc::new(prepare(&model));
    let messages = Messages::default();
    let runtime = Runtime::new().unwrap();
    let mut rng = Rng(u64::from(std::process::id()));
    let begun = Instant::now();
    let mut broken = 0;
    for round in 1..=kills {
        if round % START_UP == 0 {
            start_and_kill(&home, Duration::from_millis(rng.below(40)));
        } else {
            let daemon = home.serve();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|n| runtime.spawn(load(home.clone(), messages.clone(), format!("r{round}c{n}"))))
                .collect();
            // The moment of the kill is random; nothing is waited for.
            std::thread::sleep(Duration::from_micros(rng.below(LONGEST_LIFE * 1000)));
            daemon.kill();
            for client in clients {
                runtime.block_on(client).unwrap();
            }
        }
        if round % VERIFY == 0 && !verify(&home) {
            broken += 1;
        }
    }
    let took = begun.elapsed();

    // After the last start each accepted message has its one outcome.
    let daemon = home.serve();
    let accepted: BTreeSet<String> = {
        let all = messages.lock().unwrap();
        all.iter().filter(|(_, seen)| seen.accepted).map(|(name, _)| name.clone()).collect()
    };
    let (mut lost, mut changed) = (0, 0);
    runtime.block_on(async {
        let mut client = Client::connect(&home.path("run/console.sock"), "check").await.unwrap();
        for name in &accepted {
            for _ in 0..2 {
                let known = ask(&mut client, &home, &messages, "again", name).await;
                assert_eq!(known, Some(true), "{name} is not known any more");
            }
            let outcomes = messages.lock().unwrap()[name].outcomes.clone();
            lost += usize::from(outcomes.iter().any(|o| format!("{o:?}").contains("not known any more")));
            changed += usize::from(outcomes.iter().any(|o| *o != outcomes[0]));
        }
    });
    assert_eq!(daemon.stop(), 0);
    broken += usize::from(!verify(&home));

    let lines = std::fs::read_to_string(home.path("effects")).unwrap();
    let effects: BTreeSet<&str> = lines.lines().collect();
    let doubled = lines.lines().count() - effects.len();
    let (mut completed, mut interrupted, mut missing) = (0, 0, 0);
    for (name, seen) in messages.lock().unwrap().iter().filter(|(name, _)| accepted.contains(*name)) {
        match &seen.outcomes[0] {
            TurnOutcome::Completed { .. } => {
                completed += 1;
                missing += usize::from(!effects.contains(name.as_str()));
            }
            TurnOutcome::Failed { error, .. } if error.contains("restarted") => interrupted += 1,
            other => panic!("{name}: {other:?}"),
        }
    }
    let sent: BTreeSet<String> = messages.lock().unwrap().keys().cloned().collect();
    assert!(effects.iter().all(|line| sent.contains(*line)), "an effect of a message that nobody sent");
    let (tools, gaps) = intents(&home);
    println!(
        "kills {kills} lost {lost} doubled {doubled} broken_chains {broken} gaps {gaps}\n\
         messages sent {} accepted {} completed {completed} interrupted {interrupted}\n\
         effects {} intents {tools:?} seconds {:.1}",
        sent.len(),
        accepted.len(),
        effects.len(),
        took.as_secs_f64(),
    );
    assert_eq!((lost, doubled, broken, changed, missing), (0, 0, 0, 0, 0));
    assert!(
        effects.len() <= tools.get("shell.exec").copied().unwrap_or_default(),
        "an effect without intent"
    );
    assert!(accepted.len() as u32 > kills / 2, "there was load");
    assert!(Path::new(&home.path("state/store.redb")).exists());
}
