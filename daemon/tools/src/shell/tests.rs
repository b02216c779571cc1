use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use hearth_turn::{ToolOutcome, Verification};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::clip::Clip;
use super::{Exec, ProgramLimits, Shell, run, sweep};
use crate::testing::{call, context, failure, output, scopes};
use crate::text::RESULT_MAX;
use crate::tool::Adapter;
use crate::{Registry, ToolContext};

fn shell(directory: &tempfile::TempDir) -> Shell {
    Shell::new(directory.path().to_owned())
}

async fn exec(ctx: &ToolContext, command: Value) -> ToolOutcome {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::builder().shell(shell(&directory)).build();
    let outcome = call(&registry, ctx, "shell.exec", &json!({ "command": command }).to_string()).await;
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the run's folder is removed");
    outcome
}

fn owner() -> ToolContext {
    ToolContext { held: scopes(&["shell.exec"]), fence: String::new(), ..context() }
}

/// What is between the lines of the fence.
fn inner(text: &Value) -> &str {
    let text = text.as_str().unwrap();
    text.split_once("]\n").map_or(text, |(_, rest)| rest.rsplit_once("\n[").unwrap().0)
}

#[tokio::test]
async fn programs_run_with_their_words_untouched() {
    for (command, code, stdout, stderr) in [
        (json!(["echo", "a b", "$HOME", "; ls", "`id`", "*"]), 0, "a b $HOME ; ls `id` *\n", ""),
        (json!(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]), 3, "out\n", "err\n"),
        (json!(["cat"]), 0, "", ""),
        (json!(["printf", "a\\033[31mb\\000c"]), 0, "a[31mbc", ""),
    ] {
        let (ran, verified) = output(exec(&owner(), command.clone()).await);
        assert_eq!(
            (ran["exit"].as_i64(), inner(&ran["stdout"]), inner(&ran["stderr"])),
            (Some(code), stdout, stderr),
            "{command}"
        );
        assert_eq!(verified, Verification::Unverified);
        assert_eq!(ran["label"], "world");
    }
    let (ran, _) = output(exec(&owner(), json!(["sh", "-c", "kill -TERM $$"])).await);
    assert_eq!((&ran["exit"], &ran["signal"]), (&Value::Null, &json!(15)));
}

#[tokio::test]
async fn commands_that_do_not_fit_are_refused() {
    let many = vec!["a"; 65];
    let long = "a".repeat(32 * 1024);
    for (command, why) in [
        (json!([]), "command is empty"),
        (json!("ls -l"), "invalid type"),
        (json!([""]), ""),
        (json!(["./run.sh"]), "plain name or an absolute path"),
        (json!(["../bin/sh"]), "plain name or an absolute path"),
        (json!(["ls,cat"]), ""),
        (json!(["*"]), ""),
        (json!(["ls -l"]), ""),
        (json!(["ls", "a\0b"]), "NUL"),
        (json!(many), "too long"),
        (json!(["echo", long]), "too long"),
        (json!(["no-such-program-here"]), "not found: program no-such-program-here"),
        (json!(["/etc/passwd"]), "cannot be executed"),
    ] {
        let error = failure(exec(&owner(), command.clone()).await);
        assert!(error.contains(why) && !error.starts_with("denied"), "{command}: {error}");
    }
    let narrow = ToolContext { held: scopes(&["shell.exec:ls,date"]), ..context() };
    assert_eq!(failure(exec(&narrow, json!(["rm", "-rf", "/"])).await), "denied: shell.exec:rm");
    assert_eq!(failure(exec(&narrow, json!(["sh", "-c", "ls"])).await), "denied: shell.exec:sh");
    output(exec(&narrow, json!(["ls"])).await);
}

#[tokio::test]
async fn the_environment_is_clean() {
    let (ran, _) = output(exec(&owner(), json!(["env"])).await);
    let mut names: Vec<&str> = inner(&ran["stdout"]).lines().map(|l| l.split_once('=').unwrap().0).collect();
    names.sort();
    // No NOTIFY_SOCKET, no credentials, nothing of the daemon.
    assert_eq!(names, ["HEARTH_RUN", "HOME", "LANG", "PATH", "TMPDIR"]);
    let (ran, _) =
        output(exec(&owner(), json!(["sh", "-c", "test \"$PWD\" = \"$HOME\" && stat -c %a ."])).await);
    assert_eq!(inner(&ran["stdout"]), "700\n");

    let held = fs::File::open("/etc/hostname").unwrap();
    let (ran, _) = output(exec(&owner(), json!(["sh", "-c", "ls -l /proc/$$/fd"])).await);
    assert!(!inner(&ran["stdout"]).contains("/etc/hostname"), "files of the daemon stay closed");
    drop(held);
}

#[tokio::test]
async fn a_flood_is_capped_and_ended() {
    let flood =
        |n: usize| json!(["sh", "-c", format!("echo BEGIN; head -c {n} /dev/zero | tr '\\0' x; echo END")]);
    let (ran, _) = output(exec(&owner(), flood(1_000_000)).await);
    let text = inner(&ran["stdout"]);
    assert!(text.starts_with("BEGIN") && text.ends_with("END\n") && text.contains("bytes left out"));
    assert_eq!(ran["truncated"], true);
    assert!(ran.to_string().len() <= RESULT_MAX, "{}", ran.to_string().len());
    assert!(failure(exec(&owner(), json!(["yes"])).await).contains("was ended"));
    assert!(failure(exec(&owner(), json!(["sh", "-c", "yes >&2"])).await).contains("was ended"));
}

/// Starts descendants of every kind: in the group, orphaned, in a session of
/// their own, and one that ignores signals and respawns.
const FAMILY: &str = "sleep 300 & (sleep 300 &) ; setsid sleep 300 & (setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 300; done' &) ; ";

/// True when within five seconds no process of the run is left, seen in 20
/// looks in a row, nor the one that only its group gives away.
fn nobody_left(tag: &str, untagged: &str) -> bool {
    let end = std::time::Instant::now() + Duration::from_secs(5);
    // A process that has ended and waits to be reaped has no command line.
    let lives = || !fs::read(format!("/proc/{untagged}/cmdline")).unwrap_or_default().is_empty();
    let mut looks = 0;
    while looks < 20 && std::time::Instant::now() < end {
        looks = if sweep::find(tag).is_empty() && !lives() { looks + 1 } else { 0 };
        std::thread::yield_now();
    }
    looks == 20
}

#[tokio::test]
async fn nothing_survives_its_run() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("tag");
    let shell = shell(&directory);
    let note =
        format!("cd /; env -i sleep 300 & echo $HEARTH_RUN $! > {0}.new; mv {0}.new {0}; ", log.display());
    // Ended by itself, by its deadline, by the person, by a lost turn.
    for how in ["exit", "deadline", "cancel", "drop"] {
        let _ = fs::remove_file(&log);
        let rest = if how == "exit" { "true" } else { "echo ready; wait; sleep 300" };
        let command: Vec<String> =
            ["sh", "-c", &format!("{FAMILY}{note}{rest}")].iter().map(|s| (*s).to_owned()).collect();
        let ctx = context();
        let limit = Instant::now() + Duration::from_secs(if how == "deadline" { 2 } else { 60 });
        let running = run::run(&shell, &command, limit, &ctx.cancel);
        let ready = async {
            while !log.exists() {
                tokio::task::yield_now().await;
            }
        };
        match how {
            "cancel" => {
                let (ended, ()) = tokio::join!(running, async {
                    ready.await;
                    ctx.cancel.cancel();
                });
                assert_eq!(ended.err().unwrap().to_string(), "cancelled");
            }
            "drop" => tokio::select! {
                _ = running => panic!("it cannot have ended"),
                () = ready => {}
            },
            "deadline" => assert!(running.await.err().unwrap().to_string().starts_with("stopped after")),
            _ => assert_eq!(running.await.unwrap().code, Some(0)),
        }
        let note = fs::read_to_string(&log).unwrap();
        let (tag, untagged) = note.trim().split_once(' ').unwrap();
        assert!(nobody_left(tag, untagged), "{how}");
    }
}

#[tokio::test]
async fn the_sweep_finds_only_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let shell = shell(&directory);
    let ctx = context();
    let command = ["sleep".to_owned(), "300".to_owned()];
    let limit = Instant::now() + Duration::from_secs(60);
    let mut running = Box::pin(run::run(&shell, &command, limit, &ctx.cancel));
    let tag = loop {
        assert!(futures_poll(&mut running).await.is_none());
        let name = fs::read_dir(directory.path()).unwrap().next();
        if let Some(name) = name {
            break name.unwrap().file_name().to_str().unwrap().trim_start_matches("run-").to_owned();
        }
    };
    while sweep::find(&tag).len() != 1 {
        tokio::task::yield_now().await;
    }
    assert!(sweep::find(&tag[..tag.len() - 1]).is_empty());
    ctx.cancel.cancel();
    assert!(running.await.is_err());
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(cx) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn the_turns_deadline_and_the_kernels_limits_hold() {
    let soon = ToolContext { deadline: Instant::now() + Duration::from_millis(300), ..owner() };
    assert!(failure(exec(&soon, json!(["sleep", "300"])).await).starts_with("stopped after"));
    let directory = tempfile::tempdir().unwrap();
    let limits = ProgramLimits { cpu_s: 1, file: 1024, ..ProgramLimits::default() };
    let registry = Registry::builder()
        .tool(std::sync::Arc::new(Adapter::new(Exec(Shell { limits, ..shell(&directory) }))))
        .build();
    // The loop waits for its limits before it works.
    let wait = "until grep -q 'Max file size  *1024' /proc/$$/limits; do :; done; ";
    for (work, signal) in [("while :; do :; done", 9), ("head -c 2000 /dev/zero > f", 0)] {
        let args = json!({ "command": ["sh", "-c", format!("{wait}{work}")] }).to_string();
        let (ran, _) = output(call(&registry, &owner(), "shell.exec", &args).await);
        let ended = (ran["signal"].as_i64().unwrap_or(0), ran["exit"].as_i64() == Some(0));
        assert_eq!(ended, (signal, false), "{work}: {ran}");
    }
}

#[tokio::test]
async fn a_folder_can_be_given() {
    let (scratch, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(work.path().join("here.txt"), "").unwrap();
    let shell = Shell { directory: Some(work.path().to_owned()), ..shell(&scratch) };
    let registry = Registry::builder().shell(shell).build();
    let (ran, _) = output(call(&registry, &owner(), "shell.exec", r#"{"command":["ls"]}"#).await);
    assert_eq!(inner(&ran["stdout"]), "here.txt\n");
}

#[test]
fn a_clip_keeps_both_ends_however_it_is_fed() {
    let bytes: Vec<u8> = (0..1_000u32).map(|n| b'a' + (n % 26) as u8).collect();
    for max in [8, 100, 999, 1_000, 2_000] {
        for step in [1, 7, 300, 1_000] {
            let mut clip = Clip::new(max);
            bytes.chunks(step).for_each(|chunk| clip.push(chunk));
            let (text, cut) = clip.finish();
            assert_eq!(cut, max < 1_000);
            assert!(text.starts_with("abcdef") && text.as_bytes().ends_with(&bytes[999..]));
            assert!(cut || text.as_bytes() == bytes);
        }
    }
}
