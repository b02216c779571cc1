//! The figures that need a running daemon, as lines `name value unit`:
//! `figures [memory] [start] [time] [device]`. `tests/figures.sh` calls it.
//!
//! The model is scripted and answers at once. What is measured is the binary that
//! `HEARTH_BIN` names.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hearth_tests::{FakeModel, Home, Reply};
use serde_json::{Value, json};

/// Turns on the loop device.
const TURNS: u64 = 20;
/// Turns that are timed.
const TIMED: usize = 50;
/// Starts that are timed.
const STARTS: usize = 20;
/// Calls of a turn.
const CALLS: usize = 3;
/// Longer than the daemon waits before it commits the index.
const INDEX_WAIT: Duration = Duration::from_secs(35);

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    for name in &names {
        match name.as_str() {
            "memory" => memory(),
            "start" => start(),
            "time" => time(),
            "device" => device(),
            other => panic!("no figures {other}"),
        }
    }
}

fn print(name: &str, value: impl std::fmt::Display, unit: &str) {
    println!("{name} {value} {unit}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A model that asks for three calls, one after the other, and then says so.
fn model(tool: &'static str) -> FakeModel {
    let count = AtomicU64::new(0);
    FakeModel::start(move |request| {
        let messages = request["messages"].as_array().unwrap();
        let since_user = messages.iter().rev().take_while(|m| m["role"] != "user");
        let done = since_user.filter(|m| m["role"] == "tool").count();
        if done == CALLS {
            return Reply::text("All three are done.");
        }
        let text = format!("note {}: the boiler was serviced", count.fetch_add(1, Ordering::SeqCst));
        match tool {
            "fs_write" => Reply::call(tool, json!({"path": format!("note-{done}.txt"), "text": text})),
            _ => Reply::call(tool, json!({"text": text})),
        }
    })
}

/// The home of a daemon that may write files in `notes`.
fn home(model: &FakeModel, notes: &Path) -> Home {
    let more = format!("[[tools.root]]\npath = \"{}\"\nmode = \"write\"\n", notes.display());
    let home = Home::new(&model.url(), &more);
    home.init();
    home
}

/// Carries out one turn; the time from its acceptance to its outcome.
fn turn(home: &Home) -> Duration {
    let mut ask = home.command(&["ask", "--json", "Do the three things."]);
    let mut child = ask.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
    let (mut accepted, mut finished, mut calls) = (None, None, 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let (line, now) = (line.unwrap(), Instant::now());
        let event: Value = serde_json::from_str(&line).unwrap();
        accepted.get_or_insert(now);
        finished = Some(now);
        calls += usize::from(event["event"] == "tool_call_finished" || event["type"] == "tool_call_finished");
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(calls, CALLS, "the turn had its calls");
    finished.unwrap() - accepted.unwrap()
}

/// A field of `/proc/PID/status`; sizes are in KiB.
fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Resident memory ten seconds after the start, and its peak while the store is
/// unlocked with a passphrase.
fn memory() {
    let model = model("memory_write");
    let mut homes = [Home::new(&model.url(), ""), Home::new(&model.url(), "")];
    homes[0].set_env("MALLOC_ARENA_MAX", "2");
    homes.iter().for_each(Home::init);
    let daemons = homes.each_ref().map(Home::serve);
    std::thread::sleep(Duration::from_secs(10));
    print("idle_rss", status(daemons[0].pid(), "VmRSS:"), "KiB");
    print("idle_rss_private", status(daemons[0].pid(), "RssAnon:"), "KiB");
    print("idle_rss_default_arenas", status(daemons[1].pid(), "VmRSS:"), "KiB");
    print("idle_threads", status(daemons[0].pid(), "Threads:"), "threads");
    turn(&homes[0]);
    print("rss_after_turn_3_calls", status(daemons[0].pid(), "VmRSS:"), "KiB");
    drop(daemons);

    let mut home = Home::new(&model.url(), "");
    home.set_env("MALLOC_ARENA_MAX", "2");
    let settings = std::fs::read_to_string(home.path("hearth.toml")).unwrap();
    std::fs::write(home.path("hearth.toml"), settings.replace("\"key_file\"", "\"passphrase\"")).unwrap();
    let out = home.run_with_input(&["init", "--passphrase"], "a passphrase for figures\n");
    assert_eq!(out.code, 0, "{out:?}");
    let daemon = home.serve_with_input("a passphrase for figures\n");
    print("peak_rss_passphrase_unlock", status(daemon.pid(), "VmHWM:"), "KiB");
    print("rss_after_passphrase_unlock", status(daemon.pid(), "VmRSS:"), "KiB");
}

/// From the start of the program to its line `ready`, unlocked by a key file.
fn start() {
    let model = model("memory_write");
    let mut home = Home::new(&model.url(), "");
    home.set_env("MALLOC_ARENA_MAX", "2");
    home.init();
    let times = (0..STARTS).map(|_| {
        let begun = Instant::now();
        let daemon = home.serve();
        let took = begun.elapsed();
        assert_eq!(daemon.stop(), 0);
        took.as_secs_f64() * 1e3
    });
    print("cold_start_ready", format!("{:.1}", median(times.collect())), "ms");
}

/// Time that a turn of three writing calls takes the daemon, the model's time
/// taken off; the syncs are what memory does not need.
fn time() {
    let daemon_ms = |folder: &Path| {
        let notes = tempfile::tempdir_in(folder).unwrap();
        let model = model("fs_write");
        let home = home(&model, notes.path());
        let daemon = home.serve();
        turn(&home);
        let times = (0..TIMED).map(|_| {
            let before = model.busy();
            let took = turn(&home);
            took.saturating_sub(model.busy() - before).as_secs_f64() * 1e3
        });
        let took = median(times.collect());
        drop(daemon);
        took
    };
    let took = daemon_ms(&std::env::temp_dir());
    let name = if std::env::var_os("FIGURES_IN_MEMORY").is_some() {
        "daemon_time_turn_3_calls"
    } else {
        "daemon_time_turn_3_calls_with_syncs"
    };
    print(name, format!("{took:.2}"), "ms");
}

fn sync() {
    rustix::fs::sync();
}

/// Bytes that reached the block device whose counters `FIGURES_DEVICE` names.
fn device_bytes() -> u64 {
    let path = std::env::var("FIGURES_DEVICE").unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
}

fn syncs(home: &Home) -> u64 {
    let out = home.run(&["status", "--json"]);
    let line = out.json_lines().remove(0);
    line["store"]["syncs"].as_u64().unwrap_or_else(|| panic!("{line}"))
}

/// What turns and idle time cost a block device on which the whole home lies
/// (`TMPDIR`). Files that tools write lie elsewhere (`FIGURES_FILES`).
fn device() {
    let files = std::env::var("FIGURES_FILES").unwrap();
    let idle = Duration::from_secs(std::env::var("FIGURES_IDLE_S").unwrap().parse().unwrap());
    for tool in ["fs_write", "memory_write"] {
        let model = model(tool);
        let home = home(&model, Path::new(&files));
        let daemon = home.serve();
        turn(&home);
        std::thread::sleep(INDEX_WAIT);
        let name = if tool == "fs_write" { "turn_3_calls" } else { "turn_3_memory_calls" };
        sync();
        let (bytes, before) = (device_bytes(), syncs(&home));
        for _ in 0..TURNS {
            turn(&home);
        }
        print(
            &format!("syncs_{name}"),
            format!("{:.2}", (syncs(&home) - before) as f64 / TURNS as f64),
            "syncs",
        );
        sync();
        let journal = device_bytes() - bytes;
        print(&format!("device_bytes_{name}_without_index"), journal / TURNS, "bytes");
        std::thread::sleep(INDEX_WAIT);
        sync();
        print(&format!("device_bytes_{name}"), (device_bytes() - bytes) / TURNS, "bytes");
        let bytes = device_bytes();
        for _ in 0..TURNS {
            turn(&home);
            sync();
        }
        print(&format!("device_bytes_{name}_apart_without_index"), (device_bytes() - bytes) / TURNS, "bytes");
        if tool == "fs_write" {
            std::thread::sleep(INDEX_WAIT);
            sync();
            let bytes = device_bytes();
            std::thread::sleep(idle);
            sync();
            print("device_bytes_idle", device_bytes() - bytes, "bytes");
            print("device_bytes_idle_measured_for", idle.as_secs(), "s");
        }
        drop(daemon);
    }
}
