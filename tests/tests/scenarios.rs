//! The stories of a turn, through the real binary and a scripted model.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hearth_tests::model::last_message;
use hearth_tests::{FakeModel, Home, Reply};
use serde_json::{Value, json};

/// Events of one kind.
fn events<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["event"] == name || l["type"] == name).collect()
}

fn audit(home: &Home) -> Vec<Value> {
    let out = home.run(&["audit", "export", "-"]);
    assert_eq!(out.code, 0, "{out:?}");
    out.json_lines().into_iter().filter(|l| l.get("entry").is_some()).map(|l| l["entry"].clone()).collect()
}

fn kinds(entries: &[Value]) -> Vec<&str> {
    entries.iter().filter_map(|e| e["kind"].as_str()).collect()
}

#[test]
fn recall_what_was_said_before() {
    let model = FakeModel::start(|request| match last_message(request) {
        (role, text) if role == "user" && text.contains("boiler") => {
            Reply::call("memory_read", json!({"query": "boiler"}))
        }
        (role, text) if role == "tool" => {
            Reply::text(format!("You told me: {}", &text[..text.len().min(600)]))
        }
        _ => Reply::text("Hm."),
    });
    let home = Home::new(&model.url(), "");
    home.init();
    let daemon = home.serve();
    let out = daemon.ask("Remember that the boiler was serviced in March.");
    assert_eq!((out.code, out.stdout.trim()), (0, "I will remember that."), "{out:?}\n{}", daemon.log());
    assert!(model.requests().is_empty(), "remembering needs no model");
    let (code, lines) = daemon.ask_json("What did I tell you about the boiler?");
    assert_eq!(code, 0, "{lines:?}");
    assert_eq!(events(&lines, "tool_call_finished")[0]["tool"], "memory.read");
    let text = lines.last().unwrap()["text"].as_str().unwrap();
    assert!(text.contains("serviced in March"), "{text}");
    drop(daemon);
    let log = audit(&home);
    assert!(kinds(&log).contains(&"memory_access"));
    assert!(!format!("{log:?}").contains("serviced"), "no text of a message is in the audit log");
}

#[test]
fn an_effect_is_verified_by_looking() {
    let model = FakeModel::start(|request| match last_message(request) {
        (role, _) if role == "user" => {
            Reply::call("fs_write", json!({"path": "shopping.txt", "text": "milk"}))
        }
        _ => Reply::text("I have written the list."),
    });
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().canonicalize().unwrap();
    let more = format!("[[tools.root]]\npath = \"{}\"\nmode = \"write\"\n", notes.display());
    let home = Home::new(&model.url(), &more);
    home.init();
    let daemon = home.serve();
    let (code, lines) = daemon.ask_json("Write milk on the shopping list.");
    assert_eq!(code, 0, "{lines:?}");
    assert_eq!(events(&lines, "tool_call_finished")[0]["verified"], "verified", "{lines:?}");
    assert_eq!(std::fs::read_to_string(notes.join("shopping.txt")).unwrap(), "milk");
    assert_eq!(lines.last().unwrap()["text"], "I have written the list.");
    drop(daemon);
    let log = audit(&home);
    let names = kinds(&log);
    let at = |kind: &str| names.iter().position(|k| *k == kind).unwrap();
    assert!(
        at("turn_started") < at("tool_intent")
            && at("tool_intent") < at("tool_outcome")
            && at("tool_outcome") < at("turn_ended")
    );
}

#[test]
fn rm_rf_is_refused_at_semi_trusted() {
    let model = FakeModel::start(|request| match last_message(request) {
        (role, text) if role == "tool" => Reply::text(format!("I may not do that. {text}")),
        _ => Reply::call("shell_exec", json!({"command": ["rm", "-rf", "~"]})),
    });
    let more = "[agent]\ncapabilities = [\"memory.read\", \"shell.exec\"]\n\n[tools.shell]\nenabled = true\ncommands = [\"rm\"]\n";
    let home = Home::new(&model.url(), more);
    let settings = std::fs::read_to_string(home.path("hearth.toml")).unwrap();
    let settings = settings.replace("[console]\n", "[console]\nceiling = \"semi_trusted\"\n");
    std::fs::write(home.path("hearth.toml"), settings).unwrap();
    home.init();
    let daemon = home.serve();
    let (code, lines) = daemon.ask_json("Run rm -rf ~");
    assert_eq!(code, 0, "{lines:?}");
    // The model was told, and the person got its sentence.
    let told = last_message(&model.requests()[1]);
    assert!(told.0 == "tool" && told.1.contains("Denied") && told.1.contains("semi_trusted"), "{told:?}");
    assert!(lines.last().unwrap()["text"].as_str().unwrap().contains("may not"));
    // It was not even offered.
    assert!(!model.requests()[0]["tools"].to_string().contains("shell_exec"));
    drop(daemon);
    let log = audit(&home);
    let denied: Vec<_> = log.iter().filter(|e| e["kind"] == "scope_denied").collect();
    assert_eq!(denied.len(), 1);
    assert_eq!(denied[0]["tool"], "shell.exec");
    assert!(!kinds(&log).contains(&"tool_intent"));
}

#[test]
fn ctrl_c_stops_the_answer_and_leaves_the_daemon_alive() {
    let model = FakeModel::start(|request| match last_message(request) {
        (_, text) if text.contains("story") => Reply::Hang("Once upon a time there was ".into()),
        _ => Reply::text("Hello again."),
    });
    let home = Home::new(&model.url(), "");
    home.init();
    let daemon = home.serve();
    let mut ask = home.command(&["ask", "Tell me a story."]);
    ask.stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = ask.spawn().unwrap();
    // Streaming has begun when its first words arrive.
    let mut first = [0; 4];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    assert_eq!(&first, b"Once");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(12));
    let out = daemon.ask("Are you there?");
    assert_eq!((out.code, out.stdout.trim()), (0, "Hello again."), "{out:?}");
    // The connection to the model was closed, not left to generate.
    let until = Instant::now() + Duration::from_secs(10);
    while model.clients_gone() == 0 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(model.clients_gone(), 1);
    drop(daemon);
    let log = audit(&home);
    let ended: Vec<_> =
        log.iter().filter(|e| e["kind"] == "turn_ended").map(|e| e["outcome"].clone()).collect();
    assert_eq!(ended, [json!("cancelled"), json!("completed")]);
}

/// A console socket that passes everything on, and says when a wish to stop has
/// reached the daemon.
fn relay(home: &Home, socket: &Path) -> Receiver<()> {
    let listener = UnixListener::bind(socket).unwrap();
    let console = home.path("run/console.sock");
    let (passed, stopped) = channel();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut daemon = UnixStream::connect(console).unwrap();
        let (mut answers, mut shown) = (daemon.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut answers, &mut shown));
        let mut bytes = [0; 4096];
        while let Ok(n @ 1..) = client.read(&mut bytes) {
            daemon.write_all(&bytes[..n]).unwrap();
            if bytes[..n].windows(8).any(|part| part == b"\"cancel\"") {
                let _ = passed.send(());
            }
        }
    });
    stopped
}

#[test]
fn ctrl_c_in_the_middle_of_a_call_lets_it_finish_and_asks_no_more() {
    let long = Duration::from_secs(20);
    let program = Arc::new(OnceLock::<String>::new());
    let name = program.clone();
    let model = FakeModel::start(move |request| match last_message(request) {
        (role, text) if role == "user" && text == "Water the plants." => {
            Reply::call("shell_exec", json!({"command": [name.get().unwrap()]}))
        }
        _ => Reply::text("Hello again."),
    });
    let home = Home::new(&model.url(), "");
    // The program ends when this test lets it, and leaves a trace.
    let (path, gate, trace) = (home.path("water"), home.path("gate"), home.path("trace"));
    let script = format!("#!/bin/sh\nread word < {}\necho $word > {}\n", gate.display(), trace.display());
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &gate, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    program.set(path.to_str().unwrap().to_owned()).unwrap();
    let more = format!(
        "[agent]\ncapabilities = [\"shell.exec\"]\n\n[tools.shell]\nenabled = true\ncommands = [\"{}\"]\n",
        path.display()
    );
    let settings = std::fs::read_to_string(home.path("hearth.toml")).unwrap();
    std::fs::write(home.path("hearth.toml"), settings + &more).unwrap();
    home.init();
    let daemon = home.serve();
    let socket = home.path("relay.sock");
    let stopped = relay(&home, &socket);
    let mut ask = home.command(&["ask", "--json", "Water the plants."]);
    ask.env("HEARTH_CONSOLE_SOCKET", &socket);
    let ask = ask.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The gate opens when the program reads from it: then the call is under way.
    let (opened, running) = channel();
    std::thread::spawn(move || opened.send(std::fs::OpenOptions::new().write(true).open(gate).unwrap()));
    let mut gate = running.recv_timeout(long).expect("the program runs");
    let pid = rustix::process::Pid::from_child(&ask);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    stopped.recv_timeout(long).expect("the client asks to stop");
    // An answer of the daemon that comes after it, and the call goes on.
    let status = home.run(&["status"]);
    assert_eq!(status.code, 0, "{status:?}");
    assert!(!trace.exists(), "the program was not ended");
    gate.write_all(b"watered\n").unwrap();
    drop(gate);
    let out = ask.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(12), "{told}\n{}", daemon.log());
    assert_eq!(std::fs::read_to_string(&trace).unwrap(), "watered\n");
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events(&lines, "tool_call_finished")[0]["verified"], "unverified", "{told}");
    let last = lines.last().unwrap();
    assert_eq!((&last["outcome"], &last["tool_calls"]), (&json!("cancelled"), &json!(1)), "{told}");
    assert_eq!(model.requests().len(), 1, "the model is not asked again");
    assert_eq!(daemon.ask("Are you there?").stdout.trim(), "Hello again.");
    drop(daemon);
    let log = audit(&home);
    let turn = &log.iter().find(|e| e["kind"] == "turn_started").unwrap()["turn"];
    let first: Vec<_> = log.iter().filter(|e| e["turn"] == *turn).cloned().collect();
    assert_eq!(kinds(&first), ["turn_started", "model_call", "tool_intent", "tool_outcome", "turn_ended"]);
    assert_eq!((&first[3]["outcome"], &first[4]["outcome"]), (&json!("unverified"), &json!("cancelled")));
}

#[test]
fn a_model_that_breaks_off_fails_cleanly() {
    #[track_caller]
    fn check(reply: Reply, part: &str) {
        let model = FakeModel::start(move |request| match last_message(request) {
            (_, text) if text == "again" => Reply::text("Fine."),
            _ => reply.clone(),
        });
        let home = Home::new(&model.url(), "");
        home.init();
        let daemon = home.serve();
        let out = daemon.ask("hello");
        assert_eq!(out.code, 14, "{out:?}");
        assert!(out.stderr.contains(part), "{out:?}");
        assert_eq!(out.stderr.trim().lines().count(), 2, "what happened, and what to do: {out:?}");
        assert_eq!(daemon.ask("again").stdout.trim(), "Fine.");
    }
    check(Reply::Cut("Half an".into()), "broke off");
    check(
        Reply::Status(
            404,
            json!({"error": {"message": "model 'x' not found", "type": "not_found_error", "code": null}}),
        ),
        "ollama pull",
    );
    check(
        Reply::Status(
            401,
            json!({"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}}),
        ),
        "key",
    );
    check(
        Reply::Status(
            400,
            json!({"error": {"code": 400, "message": "request (6399 tokens) exceeds the available context size (4096 tokens)", "type": "exceed_context_size_error", "n_prompt_tokens": 6399, "n_ctx": 4096}}),
        ),
        "6399 of 4096",
    );
}

#[test]
fn inv_12_the_prefix_of_a_follow_up_is_the_whole_first_request() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let home = Home::new(&model.url(), "");
    home.init();
    let daemon = home.serve();
    for text in ["one", "two", "three"] {
        assert_eq!(daemon.ask(text).code, 0);
    }
    let requests = model.requests();
    for (first, second) in requests.iter().zip(&requests[1..]) {
        assert_eq!(first["tools"], second["tools"]);
        let (a, b) = (first["messages"].as_array().unwrap(), second["messages"].as_array().unwrap());
        assert_eq!(a[..], b[..a.len()]);
        assert_eq!(b.len(), a.len() + 2);
    }
}

#[test]
fn the_same_message_again_is_the_same_message() {
    let model = FakeModel::start(|request| match last_message(request) {
        (role, _) if role == "user" => Reply::call("memory_write", json!({"text": "once"})),
        _ => Reply::text("Saved."),
    });
    let home = Home::new(&model.url(), "");
    home.init();
    let daemon = home.serve();
    for _ in 0..3 {
        let out = home.run(&["ask", "--id", "message-1", "save it"]);
        assert_eq!((out.code, out.stdout.trim()), (0, "Saved."), "{out:?}");
    }
    assert_eq!(model.requests().len(), 2);
    // Also after a restart.
    daemon.stop();
    let daemon = home.serve();
    let out = home.run(&["ask", "--id", "message-1", "save it"]);
    assert_eq!((out.code, out.stdout.trim()), (0, "Saved."));
    assert_eq!(model.requests().len(), 2);
    drop(daemon);
}

#[test]
fn conversations_survive_a_restart() {
    let model = FakeModel::start(|request| {
        Reply::text(format!("{} messages", request["messages"].as_array().unwrap().len()))
    });
    let home = Home::new(&model.url(), "");
    home.init();
    let daemon = home.serve();
    assert_eq!(daemon.ask("one").stdout.trim(), "2 messages");
    assert_eq!(daemon.stop(), 0);
    let daemon = home.serve();
    assert_eq!(daemon.ask("two").stdout.trim(), "4 messages");
    assert_eq!(home.run(&["ask", "--conversation", "other", "x"]).stdout.trim(), "2 messages");
    drop(daemon);
}

/// Somebody left a chat open: it does not outlive its daemon, however that ends.
#[test]
fn an_idle_chat_ends_with_its_daemon() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let home = Home::new(&model.url(), "");
    home.init();
    for killed in [false, true] {
        let daemon = home.serve();
        let mut command = home.command(&["chat"]);
        let mut chat =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        chat.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
        let mut answer = [0; 5];
        chat.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"Yes.\n");
        match killed {
            true => daemon.kill(),
            false => assert_eq!(daemon.stop(), 0),
        }
        let until = Instant::now() + Duration::from_secs(20);
        while chat.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                chat.kill().unwrap();
                panic!("the chat is still there (killed: {killed})");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let out = chat.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(69), "{told}");
        let reason = if killed { "the daemon closed the connection" } else { "the daemon is stopping" };
        assert!(told.contains(reason), "{told}");
    }
}

#[test]
fn the_recovery_code_stands_in_for_a_lost_key_file() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let mut home = Home::new(&model.url(), "");
    let told = home.run(&["init"]).stdout;
    let code = told.lines().map(str::trim).find(|line| line.matches('-').count() == 5).unwrap().to_owned();
    let daemon = home.serve();
    daemon.ask("Remember that the boiler was serviced in March.");
    assert_eq!(daemon.stop(), 0);
    std::fs::remove_file(home.path("key")).unwrap();
    let out = home.run(&["serve"]);
    assert_eq!(out.code, 65, "{out:?}");
    assert!(out.stderr.contains("then type the recovery code"), "{out:?}");
    assert_eq!(home.run(&["init"]).code, 0, "a second init changes nothing");
    assert!(!home.path("key").exists(), "a key that opens nothing was written");

    home.set_env("HEARTH_UNLOCK_METHOD", "passphrase");
    #[track_caller]
    fn check(home: &Home, typed: &str, part: &str) {
        let out = home.run_with_input(&["serve"], &format!("{typed}\n"));
        assert_eq!(out.code, 65, "{out:?}");
        assert!(out.stderr.contains(part) && !out.stderr.contains(typed), "{out:?}");
    }
    let other = if code.starts_with('5') { '4' } else { '5' };
    check(&home, &format!("{other}{}", &code[1..]), "typing mistake");
    check(&home, "no passphrase was ever set", "does not open this store");
    let daemon = home.serve_with_input(&format!("{}\n", code.to_lowercase().replace('-', " ")));
    assert!(home.run(&["memory", "list"]).stdout.contains("boiler"));
    drop(daemon);
}

#[test]
fn wrong_input_gets_two_lines_and_its_exit_code() {
    let model = FakeModel::start(|_| Reply::text("Yes."));
    let home = Home::new(&model.url(), "");
    #[track_caller]
    fn check(out: &hearth_tests::Output, code: i32, part: &str) {
        assert_eq!(out.code, code, "{out:?}");
        assert!(out.stderr.contains(part), "{out:?}");
    }
    check(&home.run(&["ask", "x"]), 69, "hearth serve");
    check(&home.run(&["serve"]), 65, "hearth init");
    check(&home.run(&["frobnicate"]), 2, "frobnicate");
    home.init();
    assert_eq!(home.run(&["init"]).code, 0, "a second init changes nothing and says so");
    let daemon = home.serve();
    check(&home.run(&["serve"]), 65, "another");
    check(&home.run(&["ask", ""]), 1, "empty");
    check(&home.run(&["memory", "show", "nope"]), 1, "nope");
    check(&home.run_with_input(&["ask", "-"], &"x".repeat(1 << 20)), 1, "bytes");
    assert_eq!(home.run_with_input(&["ask", "-"], "hello").stdout.trim(), "Yes.");
    drop(daemon);
    std::fs::write(home.path("hearth.toml"), "[model\n").unwrap();
    check(&home.run(&["serve"]), 64, "hearth.toml:1");
}
