//! Secrets that would be recognised anywhere, put in every place that can hold
//! one; then everything goes wrong that can, and nothing may show them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use hearth_tests::model::last_message;
use hearth_tests::{Daemon, FakeModel, Home, Output, Reply};
use serde_json::json;

const API_KEY: &str = "sk-canary-file-8f2b61c09d";
const CREDENTIAL: &str = "sk-canary-credential-77ab31";
const KEY_FILE: &str = "canary-keyfile-content-0123456789abcdef0123456789abcdef-52f1";
const PASSPHRASE: &str = "canary passphrase violet kettle";
const WRONG_PASSPHRASE: &str = "canary passphrase crimson ladder";
const REMEMBERED: &str = "canary-alarm-code-4711-owl";
const SAID: &str = "canary-said-to-the-model-heron";
const TOKEN: &str = "canary-token-in-an-address-19c7";
const LITERAL: &str = "sk-canary-written-into-the-file-3e";

/// Places that were searched, and what was found in them.
#[derive(Default)]
struct Search {
    canaries: Vec<(&'static str, String)>,
    places: usize,
    bytes: usize,
    hits: Vec<String>,
}

impl Search {
    fn new() -> Self {
        let mut search = Self::default();
        for (name, text) in [
            ("API key", API_KEY),
            ("credential", CREDENTIAL),
            ("key file", KEY_FILE),
            ("passphrase", PASSPHRASE),
            ("wrong passphrase", WRONG_PASSPHRASE),
            ("remembered", REMEMBERED),
            ("said", SAID),
            ("token", TOKEN),
            ("literal", LITERAL),
        ] {
            search.add(name, text);
        }
        search
    }

    /// Looks for `text` as it is and in hexadecimal.
    fn add(&mut self, name: &'static str, text: &str) {
        let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
        self.canaries.extend([(name, text.to_owned()), (name, hex)]);
    }

    fn look(&mut self, place: impl Into<String>, bytes: &[u8]) {
        self.look_except(place, bytes, &[]);
    }

    /// `allowed` are canaries that the place shows on purpose.
    fn look_except(&mut self, place: impl Into<String>, bytes: &[u8], allowed: &[&str]) {
        let place = place.into();
        self.places += 1;
        self.bytes += bytes.len();
        for (name, text) in self.canaries.iter().filter(|(name, _)| !allowed.contains(name)) {
            if bytes.windows(text.len()).any(|part| part == text.as_bytes()) {
                self.hits.push(format!("{place} shows the {name}"));
            }
        }
    }

    fn output(&mut self, place: &str, out: &Output) {
        self.output_except(place, out, &[]);
    }

    fn output_except(&mut self, place: &str, out: &Output, allowed: &[&str]) {
        self.look_except(format!("{place} (stdout)"), out.stdout.as_bytes(), allowed);
        self.look_except(format!("{place} (stderr)"), out.stderr.as_bytes(), allowed);
    }

    /// Every file of the home, except those that hold secrets on purpose.
    fn files(&mut self, home: &Home, secret: &[&str]) {
        for (path, bytes) in home.all_bytes() {
            let name = path.strip_prefix(home.root()).unwrap().display().to_string();
            if !secret.contains(&name.as_str()) {
                self.look(format!("file {name}"), &bytes);
            }
        }
    }

    fn process(&mut self, daemon: &Daemon<'_>) {
        for what in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{}/{what}", daemon.pid())).unwrap();
            assert!(!bytes.is_empty());
            self.look(format!("{what} of the daemon"), &bytes);
        }
    }

    #[track_caller]
    fn conclude(&self, what: &str) {
        println!(
            "{what}: {} canaries, {} places, {} bytes searched, {} hits",
            self.canaries.len(),
            self.places,
            self.bytes,
            self.hits.len()
        );
        assert!(self.hits.is_empty(), "{}", self.hits.join("\n"));
    }
}

fn secret_file(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o400)).unwrap();
}

/// A server that repeats the key it was sent, and then plays a model that leads
/// the daemon into every kind of error.
fn answer(request: &serde_json::Value) -> Reply {
    let (role, text) = last_message(request);
    let refused = |message: String| {
        Reply::Status(
            401,
            json!({"error": {"message": message, "type": "authentication_error", "code": 401}}),
        )
    };
    match text.split(' ').next().unwrap_or_default() {
        _ if role == "tool" => Reply::text("Done."),
        "unauthorised" => refused(format!("Incorrect API key provided: {API_KEY}. Bearer {API_KEY}")),
        "overloaded" => Reply::Status(500, json!({"error": {"message": format!("panic with {API_KEY}")}})),
        "fetch" => Reply::Calls(vec![
            ("net_fetch".to_owned(), json!({"url": format!("https://user:{TOKEN}@127.0.0.1/{TOKEN}")})),
            ("net_fetch".to_owned(), json!({"url": format!("http://127.0.0.1:9/x?token={TOKEN}#{TOKEN}")})),
        ]),
        "save" => Reply::call("memory_write", json!({"text": text})),
        "write" => Reply::call("fs_write", json!({"path": "/etc/shadow", "text": text})),
        "run" => Reply::call("shell_exec", json!({"command": ["sh", "-c", text]})),
        "unknown" => Reply::call("frobnicate", json!({"secret": text})),
        "malformed" => Reply::call("memory_write", json!({"wrong": text})),
        "cut" => Reply::Cut("Half".to_owned()),
        _ => Reply::text("Yes."),
    }
}

fn home(url: &str, second: &str) -> Home {
    let more = "[log]\nlevel = \"debug\"\n\n[agent]\n\
                capabilities = [\"memory.read\", \"memory.write\", \"net.fetch\", \"audit.read\"]\n";
    let mut home = Home::new(url, &format!("{second}\n{more}"));
    let key = home.path("api-key");
    let settings = std::fs::read_to_string(home.path("hearth.toml")).unwrap();
    let named = format!("model = \"scripted\"\napi_key = {{ file = \"{}\" }}\n", key.display());
    std::fs::write(home.path("hearth.toml"), settings.replace("model = \"scripted\"\n", &named)).unwrap();
    secret_file(&key, &format!("{API_KEY}\n"));
    secret_file(&home.path("key"), KEY_FILE);
    std::fs::create_dir(home.path("credentials")).unwrap();
    secret_file(&home.path("credentials/model"), CREDENTIAL);
    let directory = home.path("credentials").display().to_string();
    home.set_env("CREDENTIALS_DIRECTORY", &directory);
    home
}

const SECRET_FILES: [&str; 3] = ["api-key", "key", "credentials/model"];

/// The recovery code is the line of its own that `init` prints.
fn recovery_code(out: &Output) -> String {
    let line = out.stdout.lines().find(|l| l.starts_with("    ") && l.trim().len() > 20);
    line.unwrap_or_else(|| panic!("{out:?}")).trim().to_owned()
}

/// A second server that cannot be reached; its key is a credential.
const SECOND: &str = "[[model.endpoint]]\nname = \"second\"\nwire = \"openai\"\nurl = \"http://127.0.0.1:9\"\n\
                      model = \"none\"\napi_key = { credential = \"model\" }\n";

/// INV-7, INV-11
#[test]
fn inv_7_inv_11_a_day_full_of_errors_shows_no_secret() {
    day("");
}

/// INV-7, INV-11
#[test]
fn inv_7_inv_11_a_day_with_a_second_server_shows_no_secret() {
    day(SECOND);
}

fn day(second: &str) {
    let mut search = Search::new();
    let model = FakeModel::start(answer);
    let home = home(&model.url(), second);
    let out = home.run(&["init"]);
    assert_eq!(out.code, 0, "{out:?}");
    let code = recovery_code(&out);
    search.output("init", &out);
    search.add("recovery code", &code);
    search.add("recovery code", &code.replace('-', ""));

    for verb in
        [&["status"][..], &["doctor"], &["doctor", "--json"], &["config", "show"], &["config", "check"]]
    {
        search.output(&format!("{verb:?} without the daemon"), &home.run(verb));
    }
    let daemon = home.serve();
    search.process(&daemon);
    let out = daemon.ask(&format!("Remember that the alarm code is {REMEMBERED}"));
    assert_eq!(out.code, 0, "{out:?}");
    search.output("ask", &out);
    let (mut told, mut said) = (BTreeSet::new(), String::new());
    for words in [
        "unauthorised",
        "overloaded",
        "fetch",
        "save",
        "write",
        "run",
        "unknown",
        "malformed",
        "cut",
        "hello",
    ] {
        for json in [true, false] {
            let text = format!("{words} {SAID}");
            let out = if json { home.run(&["ask", "--json", &text]) } else { daemon.ask(&text) };
            search.output(&format!("ask {words}"), &out);
            told.insert(out.code);
            said.push_str(&out.stderr);
        }
    }
    assert!(model.requests().len() > 20, "the model was asked");
    assert!(told.contains(&0) && told.contains(&14), "{told:?}");
    println!("{said}");
    for verb in [
        &["status"][..],
        &["status", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["config", "show"],
        &["config", "check"],
        &["audit", "tail", "-n", "1000"],
        &["audit", "export", "-"],
        &["audit", "verify"],
        &["memory", "show", "nothing"],
        &["memory", "forget", "nothing"],
        &["serve"],
        &["init"],
    ] {
        search.output(&format!("{verb:?}"), &home.run(verb));
    }
    let listed = home.run(&["memory", "list"]);
    assert!(listed.stdout.contains(REMEMBERED), "{listed:?}");
    search.output_except("memory list", &listed, &["remembered", "said"]);
    search.files(&home, &SECRET_FILES);
    let (code, log) = daemon.stop_with_log();
    assert_eq!(code, 0);
    assert!(log.contains("<7>") && log.lines().count() > 20, "the log is at level debug: {log}");
    search.look("log of the daemon", log.as_bytes());
    search.files(&home, &SECRET_FILES);
    search.conclude("a day of errors");
}

/// INV-11
#[test]
fn inv_11_a_misplaced_secret_is_refused_without_repeating_it() {
    let mut search = Search::new();
    let table = [
        ("api_key = \"sk\"", format!("api_key = \"{LITERAL}\"")),
        ("unfinished text", format!("api_key = \"{LITERAL}")),
        ("unfinished table", format!("api_key = {{ file = \"/x\", {LITERAL}")),
        ("a line of its own", LITERAL.to_owned()),
        ("misspelt key", format!("api_kye = \"{LITERAL}\"")),
        ("file that is no path", format!("api_key = {{ file = \"{LITERAL}\" }}")),
        ("unknown source", format!("api_key = {{ text = \"{LITERAL}\" }}")),
        ("user name in the address", format!("url = \"http://user:{TOKEN}@127.0.0.1:9\"")),
        ("query in the address", format!("url = \"http://127.0.0.1:9/?key={TOKEN}\"")),
        ("fragment in the address", format!("url = \"http://127.0.0.1:9/#{TOKEN}\"")),
        ("no address", format!("url = \"{TOKEN}\"")),
        ("unknown word", format!("wire = \"{LITERAL}\"")),
        ("passphrase in the file", format!("[unlock]\npassphrase = \"{PASSPHRASE}\"")),
        ("text for a number", format!("context_tokens = \"{LITERAL}\"")),
        ("list for a text", format!("url = [\"{LITERAL}\"]")),
    ];
    for (what, line) in &table {
        let home = Home::new("http://127.0.0.1:9", "");
        let endpoint = format!("[[model.endpoint]]\nname = \"bad\"\nmodel = \"m\"\n{line}\n");
        std::fs::write(home.path("hearth.toml"), endpoint).unwrap();
        for verb in [&["serve"][..], &["config", "check"], &["config", "show"], &["ask", "x"], &["doctor"]] {
            let out = home.run(verb);
            assert_eq!(out.code, 64, "{what}: {verb:?}: {out:?}");
            search.output(&format!("{verb:?} with {what}"), &out);
        }
    }
    for (name, value) in [
        ("HEARTH_MODEL_ENDPOINT_1_API_KEY", LITERAL),
        ("HEARTH_LOG_LEVEL", LITERAL),
        ("HEARTH_API_KEY", LITERAL),
        ("HEARTH_MODEL_ENDPOINT_1_URL", TOKEN),
    ] {
        let mut home = Home::new("http://127.0.0.1:9", "");
        home.set_env(name, value);
        for verb in [&["serve"][..], &["config", "check"], &["config", "show"], &["doctor", "--json"]] {
            search.output(&format!("{verb:?} with {name}"), &home.run(verb));
        }
    }
    search.conclude("misplaced secrets");
}

/// INV-7, INV-11
#[test]
fn inv_7_inv_11_passphrases_leave_no_trace() {
    let mut search = Search::new();
    let model = FakeModel::start(answer);
    let home = Home::new(&model.url(), "[log]\nlevel = \"debug\"\n");
    let settings = std::fs::read_to_string(home.path("hearth.toml")).unwrap();
    std::fs::write(home.path("hearth.toml"), settings.replace("\"key_file\"", "\"passphrase\"")).unwrap();
    let out = home.run_with_input(&["init", "--passphrase"], &format!("{PASSPHRASE}\n"));
    assert_eq!(out.code, 0, "{out:?}");
    search.output("init", &out);
    search.add("recovery code", &recovery_code(&out));
    for verb in [&["serve"][..], &["audit", "verify"], &["audit", "tail"]] {
        let out = home.run_with_input(verb, &format!("{WRONG_PASSPHRASE}\n"));
        assert_eq!(out.code, 65, "{out:?}");
        search.output(&format!("{verb:?} with a wrong passphrase"), &out);
    }
    let daemon = home.serve_with_input(&format!("{PASSPHRASE}\n"));
    search.process(&daemon);
    assert_eq!(daemon.ask("hello").code, 0);
    search
        .output("audit export", &home.run_with_input(&["audit", "export", "-"], &format!("{PASSPHRASE}\n")));
    search.files(&home, &[]);
    let (code, log) = daemon.stop_with_log();
    assert_eq!(code, 0);
    search.look("log of the daemon", log.as_bytes());
    search.files(&home, &[]);
    search.conclude("passphrases");
}

/// Set in the process that panics.
const PANICS: &str = "HEARTH_TEST_PANICS";

/// INV-11
#[test]
fn inv_11_a_panic_shows_where_and_not_what() {
    if std::env::var_os(PANICS).is_some() {
        hearth::logger::quiet_panics();
        let text = format!("ü{SAID}");
        // What a slip in the handling of text looks like; the message would quote it.
        let _ = std::thread::spawn(move || text[1..].len()).join();
        let _ = std::thread::spawn(|| panic!("{API_KEY}")).join();
        return;
    }
    let mut search = Search::new();
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "inv_11_a_panic_shows_where_and_not_what", "--nocapture"])
        .env(PANICS, "1")
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(stderr.matches("canary.rs:").count(), 2, "both panics say where: {stderr}");
    search.look("panics (stderr)", &out.stderr);
    search.look("panics (stdout)", &out.stdout);
    search.conclude("panics");
}

#[test]
fn the_search_finds_what_is_there() {
    let home = Home::new("http://127.0.0.1:9", "");
    let mut search = Search::new();
    search.files(&home, &[]);
    assert!(search.hits.is_empty());
    for (name, text) in search.canaries.clone() {
        std::fs::write(home.path("planted"), format!("before {text} after")).unwrap();
        search.hits.clear();
        search.files(&home, &[]);
        assert_eq!(search.hits, [format!("file planted shows the {name}")]);
        search.hits.clear();
        search.output("verb", &Output { code: 0, stdout: String::new(), stderr: format!("x{text}") });
        assert_eq!(search.hits.len(), 1);
    }
    println!("control: {} planted canaries found", search.canaries.len());
}
