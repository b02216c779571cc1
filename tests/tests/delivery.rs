//! Messages and answers that meet the end of the daemon or of the client.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use hearth_tests::model::last_message;
use hearth_tests::{FakeModel, Home, Reply};

/// A model that never ends a story and answers everything else.
fn model() -> FakeModel {
    FakeModel::start(|request| match last_message(request) {
        (_, text) if text.contains("story") => Reply::Hang("Once upon a time ".into()),
        (_, text) => Reply::text(format!("Answer to {text}")),
    })
}

fn ask(home: &Home, args: &[&str]) -> Child {
    let mut ask = home.command(&[&["ask"], args].concat());
    ask.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What a chat shows that is left at once.
fn chat(home: &Home) -> String {
    let out = home.run(&["chat"]);
    assert_eq!(out.code, 0, "{out:?}");
    out.stdout
}

fn asked(model: &FakeModel, text: &str) -> usize {
    model.requests().iter().filter(|request| last_message(request).1 == text).count()
}

#[test]
fn what_waits_when_the_daemon_stops_is_answered_once_after_the_restart() {
    let model = model();
    let home = Home::new(&model.url(), "[limits]\nshutdown_s = 1\n");
    home.init();
    let daemon = home.serve();
    let mut story = ask(&home, &["Tell me a story."]);
    story.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    // Of the same conversation: it waits for the story. One is asked twice.
    let mut waiting = Vec::new();
    for (text, id) in [("red", "1"), ("green", "2"), ("red", "1")] {
        let mut child = ask(&home, &["--json", "--id", id, text]);
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("accepted"), "{line}");
        waiting.push(child);
    }
    assert_eq!(daemon.stop(), 0);
    assert_eq!(story.wait().unwrap().code(), Some(12), "the story was stopped");
    for child in waiting {
        let out = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(69), "{told}");
        assert!(told.contains("kept and answered") && told.contains("Do not send it again"), "{told}");
    }

    let daemon = home.serve();
    let until = Instant::now() + Duration::from_secs(20);
    let mut shown = String::new();
    while !shown.contains("green") {
        assert!(Instant::now() < until, "{shown}\n{}", daemon.log());
        shown.push_str(&chat(&home));
    }
    assert_eq!(shown, "Answer to red\nAnswer to green\n", "in order, and each once");
    assert_eq!(chat(&home), "", "what was shown is not shown again");
    // Asked again with the same identity: the same answer, and no further turn.
    let out = home.run(&["ask", "--id", "2", "green"]);
    assert_eq!((out.code, out.stdout.as_str()), (0, "Answer to green\n"));
    assert_eq!((asked(&model, "red"), asked(&model, "green")), (1, 1));
    drop(daemon);
}

#[test]
fn an_answer_that_nobody_heard_is_shown_by_the_next_chat_of_its_conversation() {
    let (go, gate) = std::sync::mpsc::channel();
    let gate = std::sync::Mutex::new(gate);
    let model = FakeModel::start(move |_| {
        gate.lock().unwrap().recv().unwrap();
        Reply::text("Late.")
    });
    let home = Home::new(&model.url(), "[turn]\ncancel_on_disconnect = false\n[log]\nlevel = \"debug\"\n");
    home.init();
    let daemon = home.serve();
    let mut left = ask(&home, &["--json", "--conversation", "attic", "Is it warm?"]);
    let mut line = String::new();
    BufReader::new(left.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("accepted"), "{line}");
    left.kill().unwrap();
    left.wait().unwrap();
    let wait_for = |text: &str| {
        let until = Instant::now() + Duration::from_secs(20);
        while !daemon.log().contains(text) {
            assert!(Instant::now() < until, "no \"{text}\":\n{}", daemon.log());
            std::thread::yield_now();
        }
    };
    // The daemon knows that nobody listens before the answer is there.
    wait_for(&format!("connection of user id {} ended", rustix::process::geteuid().as_raw()));
    go.send(()).unwrap();
    wait_for("ends: completed");
    assert_eq!(chat(&home), "", "another conversation");
    let attic = || home.run(&["chat", "--conversation", "attic"]).stdout;
    assert_eq!(attic(), "Late.\n");
    assert_eq!(attic(), "", "what was shown is not shown again");
    drop(daemon);
}
