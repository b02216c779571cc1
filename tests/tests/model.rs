//! Turns on the real small model: the server of `deploy/model`, the real binary,
//! and a proxy between them that notes what the server counted.
//!
//! `HEARTH_MODEL_PYTHON` names the interpreter that `deploy/model/install.sh` made.
//! Without it these tests fail; only a developer may leave them out, by
//! `HEARTH_SKIP_MODEL=1`, which does not hold in CI.
//!
//! A small model words things as it likes: what is asserted is structure, and
//! values that are copied from a tool's result.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hearth_tests::Home;
use serde_json::Value;

/// Tokens that a follow-up request may have read again.
const AGAIN_MAX: u64 = 32;

/// How soon the server must have answered after a cancelled answer; the answer
/// that was cancelled would have taken longer.
const SOON: Duration = Duration::from_secs(15);

/// One test at a time: a second model on the same cores makes both slow.
fn quiet() -> Option<MutexGuard<'static, ()>> {
    static MACHINE: Mutex<()> = Mutex::new(());
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    if is("HEARTH_SKIP_MODEL", "1") && !is("CI", "true") {
        println!("skipped: HEARTH_SKIP_MODEL is set");
        return None;
    }
    Some(MACHINE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The model server; it ends with the pipe on its standard input.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts it on `port`; 0 picks a free one.
    fn start(port: u16) -> Self {
        let python = std::env::var_os("HEARTH_MODEL_PYTHON")
            .expect("HEARTH_MODEL_PYTHON is unset: run these tests with `tests/run.sh model`");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/model/serve.py");
        let mut command = Command::new(python);
        command.arg("-I").arg(script).args(["--port", &port.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready http://").expect("the model server is ready");
        Self { address: address.to_owned(), child }
    }

    fn port(&self) -> u16 {
        self.address.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// `kill -9`.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the server counted for one request.
#[derive(Debug, Clone, Copy)]
struct Counted {
    /// Prompt tokens that it took from its cache.
    cached: u64,
    /// Prompt tokens that it read.
    read: u64,
}

impl Counted {
    fn prompt(self) -> u64 {
        self.cached + self.read
    }
}

/// Hands bytes on in both directions, and keeps what the server sends.
struct Proxy {
    port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Proxy {
    fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (server, copy) = (server.to_owned(), seen.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                let (mut a, mut b) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                let copy = copy.clone();
                std::thread::spawn(move || pass(&mut a, &mut b, |_| {}));
                let (mut a, mut b) = (upstream, client);
                std::thread::spawn(move || pass(&mut a, &mut b, |bytes| copy.lock().unwrap().extend(bytes)));
            }
        });
        Self { port, seen }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The counters of all requests that were answered to their end. The server
    /// sends them with the last event of a stream.
    fn counted(&self) -> Vec<Counted> {
        let seen = self.seen.lock().unwrap();
        let text = String::from_utf8_lossy(&seen);
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
        let timings = events.filter_map(|event| event.get("timings").cloned());
        timings
            .map(|t| Counted {
                cached: t["cache_n"].as_u64().expect("cache_n"),
                read: t["prompt_n"].as_u64().expect("prompt_n"),
            })
            .collect()
    }
}

/// Copies until one side ends, then ends both.
fn pass(from: &mut TcpStream, to: &mut TcpStream, mut note: impl FnMut(&[u8])) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        note(&bytes[..n]);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A home on the model at `url`; an answer has at most `max_tokens`.
fn home(url: &str, max_tokens: u32) -> Home {
    let more = format!("temperature = 0.0\nmax_tokens = {max_tokens}\n\n[model]\nwarm_up = false\n");
    let home = Home::new(url, &more);
    home.init();
    home
}

fn events<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["event"] == name || l["type"] == name).collect()
}

/// Asks, and stops reading once the first words of the answer are here.
fn ask_until_words(home: &Home, text: &str) -> Child {
    let mut ask = home.command(&["ask", text]);
    let mut child = ask.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    child
}

#[test]
fn text_is_streamed() {
    let Some(_quiet) = quiet() else { return };
    let server = Server::start(0);
    let home = home(&format!("http://{}", server.address), 256);
    let daemon = home.serve();
    let (code, lines) = daemon.ask_json("hello");
    assert_eq!(code, 0, "{lines:?}");
    let texts = events(&lines, "text");
    println!("text events: {}", texts.len());
    assert!(texts.len() > 3, "{lines:?}");
    let last = lines.last().unwrap();
    assert!(!last["text"].as_str().unwrap().trim().is_empty(), "{last}");
    assert!(events(&lines, "tool_call_started").is_empty(), "{lines:?}");
}

#[test]
fn the_model_calls_a_tool_and_uses_its_result() {
    let Some(_quiet) = quiet() else { return };
    let server = Server::start(0);
    let home = home(&format!("http://{}", server.address), 256);
    let daemon = home.serve();
    assert_eq!(daemon.ask("Remember that the boiler was serviced in March.").code, 0);
    let (code, lines) = daemon.ask_json("What did I tell you about the boiler?");
    assert_eq!(code, 0, "{lines:?}");
    let called = events(&lines, "tool_call_finished");
    assert_eq!(called.len(), 1, "{lines:?}");
    assert_eq!(called[0]["tool"], "memory.read");
    let answer = lines.last().unwrap()["text"].as_str().unwrap().to_owned();
    println!("answer: {answer}");
    assert!(answer.contains("March"), "copied from the tool's result: {answer}");
    // Another conversation: the answer can only come from the clock.
    let out = home.run(&["ask", "--json", "--conversation", "clock", "What time is it?"]);
    let lines = out.json_lines();
    assert_eq!(events(&lines, "tool_call_finished")[0]["tool"], "time.now", "{lines:?}");
    let answer = lines.last().unwrap()["text"].as_str().unwrap().to_owned();
    println!("answer: {answer}");
    let copied = answer.split(|c: char| !c.is_ascii_digit() && c != ':').any(|word| {
        let parts: Vec<&str> = word.split(':').collect();
        parts.len() >= 2 && parts.iter().all(|p| p.len() == 2)
    });
    assert!(copied, "a time of day in the answer: {answer}");
}

#[test]
fn cancelling_frees_the_server() {
    let Some(_quiet) = quiet() else { return };
    let server = Server::start(0);
    let home = home(&format!("http://{}", server.address), 2000);
    let daemon = home.serve();
    assert_eq!(daemon.ask("hello").code, 0, "the prompt is in the server's cache now");
    let mut child = ask_until_words(&home, LONG);
    let begun = Instant::now();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(12));
    let out = home.run(&["ask", "--conversation", "other", "hello"]);
    println!("answered {} ms after the cancellation", begun.elapsed().as_millis());
    assert_eq!(out.code, 0, "{out:?}\n{}", daemon.log());
    assert!(begun.elapsed() < SOON);
}

#[test]
fn a_server_that_dies_in_mid_stream_is_a_clean_failure() {
    let Some(_quiet) = quiet() else { return };
    let mut server = Server::start(0);
    let port = server.port();
    let home = home(&format!("http://{}", server.address), 2000);
    let daemon = home.serve();
    let child = ask_until_words(&home, LONG);
    server.kill();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    println!("{}", said.trim());
    assert_eq!(out.status.code(), Some(14), "{said}");
    assert_eq!(said.trim().lines().count(), 2, "what happened, and what to do: {said}");
    assert_eq!(home.run(&["status"]).code, 0, "the daemon lives");
    // Nobody listens: as clean.
    let out = daemon.ask("hello");
    assert_eq!((out.code, out.stderr.trim().lines().count()), (14, 2), "{out:?}");
    drop(server);
    let _server = Server::start(port);
    let out = home.run(&["ask", "--conversation", "other", "hello"]);
    assert_eq!(out.code, 0, "{out:?}\n{}", daemon.log());
}

#[test]
fn a_message_beyond_the_context_is_refused_with_a_remedy() {
    let Some(_quiet) = quiet() else { return };
    let server = Server::start(0);
    let home = home(&format!("http://{}", server.address), 256);
    let daemon = home.serve();
    let out = home.run_with_input(&["ask", "-"], &"word ".repeat(8000));
    println!("{}", out.stderr.trim());
    assert_eq!(out.code, 14, "{out:?}");
    assert!(out.stderr.contains("4096"), "{out:?}");
    assert_eq!(out.stderr.trim().lines().count(), 2, "{out:?}");
    // The conversation goes on without it.
    let out = daemon.ask("hello");
    assert_eq!(out.code, 0, "{out:?}\n{}", daemon.log());
}

#[test]
fn a_history_beyond_the_context_is_trimmed() {
    let Some(_quiet) = quiet() else { return };
    let server = Server::start(0);
    let proxy = Proxy::start(&server.address);
    let home = home(&proxy.url(), 64);
    let daemon = home.serve();
    let filler = "The garden has apples and pears. ".repeat(40);
    for turn in 0..8 {
        let out = daemon.ask(&format!("hello {turn}. {filler}"));
        assert_eq!(out.code, 0, "turn {turn}: {out:?}\n{}", daemon.log());
    }
    let prompts: Vec<u64> = proxy.counted().into_iter().map(Counted::prompt).collect();
    println!("prompt tokens by request: {prompts:?}");
    assert!(prompts.windows(2).any(|pair| pair[1] < pair[0]), "it was trimmed: {prompts:?}");
    assert!(prompts.iter().all(|n| *n < 4096), "{prompts:?}");
}

#[test]
fn inv_12_a_follow_up_costs_its_own_tokens() {
    let Some(_quiet) = quiet() else { return };
    let server = Server::start(0);
    let proxy = Proxy::start(&server.address);
    let home = home(&proxy.url(), 256);
    let daemon = home.serve();
    let mut tools = 0;
    for text in ["hello", "What time is it?", "good morning"] {
        let (code, lines) = daemon.ask_json(text);
        assert_eq!(code, 0, "{lines:?}");
        tools += events(&lines, "tool_call_finished").len();
    }
    assert!(tools > 0, "one of them is a turn with a tool");
    let counted = proxy.counted();
    println!("request  prompt  new  read");
    println!("      1  {:6}  {:3}  {:4}", counted[0].prompt(), counted[0].prompt(), counted[0].read);
    assert!(counted.len() >= 3 + tools, "{counted:?}");
    for (i, pair) in counted.windows(2).enumerate() {
        let new = pair[1].prompt().checked_sub(pair[0].prompt()).expect("a prompt only grows");
        println!("      {}  {:6}  {new:3}  {:4}", i + 2, pair[1].prompt(), pair[1].read);
        assert!(pair[1].read <= new + AGAIN_MAX, "request {}: {:?} after {:?}", i + 2, pair[1], pair[0]);
    }
}

/// Makes the model talk for a long time.
const LONG: &str = "Write a very long story about a dragon.";
