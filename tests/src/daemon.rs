//! A throw-away home and the real binary in it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No verb takes this long.
const VERB_LIMIT: Duration = Duration::from_secs(120);

/// The binary under test: `HEARTH_BIN`, else the one that cargo built beside
/// the tests.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("HEARTH_BIN") {
        return path.into();
    }
    let exe = std::env::current_exe().unwrap();
    let profile = exe.parent().unwrap().parent().unwrap();
    let path = profile.join("hearth");
    assert!(
        path.exists(),
        "{} is missing: run `cargo build -p hearth` first, or set HEARTH_BIN",
        path.display()
    );
    path
}

/// A throw-away home with its settings.
pub struct Home {
    dir: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Home {
    /// A home whose only model is at `url`; `more` is appended to the settings.
    pub fn new(url: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        let settings = format!(
            r#"[paths]
state = "{root}/state"
marker = "{root}/initialized"

[unlock]
method = "key_file"
key_file = "{root}/key"

[console]
socket = "{root}/run/console.sock"

[[model.endpoint]]
name = "test"
wire = "openai"
url = "{url}"
model = "scripted"
context_tokens = 4096

{more}
"#
        );
        std::fs::write(dir.path().join("hearth.toml"), settings).unwrap();
        Self { dir, environment: Vec::new() }
    }

    /// Sets a variable for every command in this home.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    /// A path in the home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The root of the home.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The command line with this home's settings and nothing of the tester's
    /// environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.root());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.arg("--config").arg(self.path("hearth.toml")).args(args);
        command
    }

    /// Runs a verb to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // A verb that should have ended and did not is a failure, not a test that hangs.
        let pid = rustix::process::Pid::from_child(&child);
        let (ended, watch) = std::sync::mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            if watch.recv_timeout(VERB_LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        });
        let out = child.wait_with_output().unwrap();
        drop(ended);
        watchdog.join().unwrap();
        Output::of(out)
    }

    /// Runs a verb with `input` on its standard input.
    pub fn run_with_input(&self, args: &[&str], input: &str) -> Output {
        let mut command = self.command(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A verb that refuses early does not read all of it.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Output::of(child.wait_with_output().unwrap())
    }

    /// Creates the store.
    pub fn init(&self) {
        let out = self.run(&["init"]);
        assert_eq!(out.code, 0, "{out:?}");
    }

    /// Starts the daemon and waits until it is ready.
    pub fn serve(&self) -> Daemon<'_> {
        Daemon::start(self, "")
    }

    /// Starts the daemon with `input` on its standard input.
    pub fn serve_with_input(&self, input: &str) -> Daemon<'_> {
        Daemon::start(self, input)
    }

    /// Every byte below the home, for canary searches.
    pub fn all_bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut todo = vec![self.root().to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    todo.push(path);
                } else if let Ok(bytes) = std::fs::read(&path) {
                    found.push((path, bytes));
                }
            }
        }
        found
    }
}

/// What a verb printed.
#[derive(Debug)]
pub struct Output {
    /// Exit code; -1 when killed by a signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    fn of(out: std::process::Output) -> Self {
        Self {
            code: out.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }

    /// The standard output as lines of JSON.
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon<'a> {
    home: &'a Home,
    child: Child,
    log: std::sync::Arc<std::sync::Mutex<String>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl<'a> Daemon<'a> {
    fn start(home: &'a Home, input: &str) -> Self {
        let mut child = home
            .command(&["serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let log = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (tx, ready) = std::sync::mpsc::channel();
        let copy = log.clone();
        let first = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.starts_with("ready") {
                    let _ = tx.send(());
                }
                copy.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        let copy = log.clone();
        let second = std::thread::spawn(move || {
            let mut stderr = stderr;
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut bytes) {
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        let daemon = Self { home, child, log, readers: vec![first, second] };
        if ready.recv_timeout(Duration::from_secs(30)).is_err() {
            panic!("the daemon did not get ready:\n{}", daemon.log());
        }
        daemon
    }

    /// Process identity.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it printed.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Asks once.
    pub fn ask(&self, text: &str) -> Output {
        self.home.run(&["ask", text])
    }

    /// Asks once and gives the events.
    pub fn ask_json(&self, text: &str) -> (i32, Vec<Value>) {
        let out = self.home.run(&["ask", "--json", text]);
        (out.code, out.json_lines())
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, then waits for the end; panics when it takes over ten seconds.
    pub fn stop(self) -> i32 {
        self.stop_with_log().0
    }

    /// The same; answers also everything that it printed until its end.
    pub fn stop_with_log(mut self) -> (i32, String) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.readers.drain(..).for_each(|reader| reader.join().unwrap());
                return (status.code().unwrap_or(-1), self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the daemon did not stop within 10 s:\n{}", self.log());
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
