//! Labels through the real binary: where text from outside went in, what comes
//! out of it later still says so.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use hearth_tests::model::last_message;
use hearth_tests::{FakeModel, Home, Reply};
use serde_json::json;

/// The label of the newest memory.
fn newest(home: &Home) -> String {
    let listed = home.run(&["memory", "list"]).stdout;
    let id = listed.split_whitespace().next().unwrap().to_owned();
    let shown = home.run(&["memory", "show", &id]).stdout;
    shown.lines().find_map(|line| line.strip_prefix("label")).unwrap().trim().to_owned()
}

#[test]
fn inv_17_text_from_outside_labels_what_is_remembered_from_then_on() {
    // The model does what it is told: look, note, recall.
    let model = FakeModel::start(|request| match last_message(request) {
        (role, text) if role == "user" && text.contains("look") => {
            Reply::call("shell_exec", json!({"command": ["uname"]}))
        }
        (role, text) if role == "user" && text.contains("note") => {
            Reply::call("memory_write", json!({"text": text}))
        }
        (role, _) if role == "user" => Reply::call("memory_read", json!({"query": "boiler"})),
        _ => Reply::text("So."),
    });
    let home = Home::new(
        &model.url(),
        "[agent]\ncapabilities = [\"memory.read\", \"memory.write\", \"shell.exec\"]\n\n[tools.shell]\nenabled = true\ncommands = [\"uname\"]\n",
    );
    home.init();
    let daemon = home.serve();
    let ask = |conversation: &str, text: &str| {
        let out = home.run(&["ask", "--conversation", conversation, text]);
        assert_eq!(out.code, 0, "{out:?}\n{}", daemon.log());
    };
    ask("kitchen", "note: the boiler is old");
    assert_eq!(newest(&home), "household");
    // A program's output is anyone's text, for the rest of this conversation.
    ask("cellar", "look around");
    ask("cellar", "note: the boiler is green");
    assert_eq!(newest(&home), "world");
    ask("kitchen", "note: the boiler is loud");
    assert_eq!(newest(&home), "household", "another conversation has not read it");
    // It recalls what was noted after reading from outside.
    ask("kitchen", "what about the boiler?");
    ask("kitchen", "note: the boiler is warm");
    assert_eq!(newest(&home), "world");
    // And a restart does not clean it.
    assert_eq!(daemon.stop(), 0);
    let daemon = home.serve();
    assert_eq!(home.run(&["ask", "--conversation", "kitchen", "note: the boiler is blue"]).code, 0);
    assert_eq!(newest(&home), "world");
    drop(daemon);
}
