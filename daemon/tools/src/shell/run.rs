//! Starting a program, waiting for it, and leaving nothing of it behind.
//!
//! The program leads its own process group. Its end is waited for without
//! reaping it, so that its number, and with it the number of the group, cannot
//! belong to anyone else when the group is killed.

use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use hearth_turn::ToolError;
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit, waitid,
};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::clip::Clip;
use super::{Shell, sweep};
use crate::text::RESULT_MAX;

/// Bytes of each stream that reach the model.
const STDOUT_MAX: usize = RESULT_MAX / 4 * 3 - 512;
const STDERR_MAX: usize = RESULT_MAX / 4 - 512;
/// A program that writes more than this is ended.
const FLOOD: u64 = 8 * 1024 * 1024;
/// How long a stream may stay open after everything was killed.
const DRAIN: Duration = Duration::from_secs(2);

/// Limits that the kernel enforces on a program. They are set right after its
/// start: its very first instructions run without them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramLimits {
    /// Processor time, in seconds.
    pub cpu_s: u64,
    /// Address space, in bytes.
    pub memory: u64,
    /// Largest file that it can write, in bytes.
    pub file: u64,
    /// Open files.
    pub files: u64,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self { cpu_s: 30, memory: 256 << 20, file: 64 << 20, files: 256 }
    }
}

impl ProgramLimits {
    fn apply(&self, pid: Pid) -> io::Result<()> {
        for (resource, limit) in [
            (Resource::Cpu, self.cpu_s),
            (Resource::As, self.memory),
            (Resource::Fsize, self.file),
            (Resource::Nofile, self.files),
            (Resource::Core, 0),
        ] {
            prlimit(Some(pid), resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
        }
        Ok(())
    }
}

/// A program that ended by itself.
pub(crate) struct Ran {
    /// Exit code, when it was not killed by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) truncated: bool,
}

enum End {
    Exited,
    Flooded,
    TimedOut,
    Cancelled,
}

/// Runs `command` until it ends, `limit` is reached or `cancel` is called.
pub(crate) async fn run(
    shell: &Shell,
    command: &[String],
    limit: Instant,
    cancel: &CancellationToken,
) -> Result<Ran, ToolError> {
    let started = Instant::now();
    let scratch = Scratch::new(&shell.scratch)?;
    let mut group = start(shell, command, &scratch)?;
    let child = &mut group.child;

    let flooded = CancellationToken::new();
    let mut readers = JoinSet::new();
    let streams: [(Option<Box<dyn AsyncRead + Send + Unpin>>, usize); 2] = [
        (child.stdout.take().map(|s| Box::new(s) as _), STDOUT_MAX),
        (child.stderr.take().map(|s| Box::new(s) as _), STDERR_MAX),
    ];
    for (n, (stream, max)) in streams.into_iter().enumerate() {
        let flooded = flooded.clone();
        readers.spawn(async move { (n, read(stream, max, &flooded).await) });
    }

    let end = tokio::select! {
        biased;
        () = cancel.cancelled() => End::Cancelled,
        () = sleep_until(limit) => End::TimedOut,
        () = flooded.cancelled() => End::Flooded,
        _ = &mut group.exit => End::Exited,
    };
    let status = group.end().await.map_err(|e| broken(&e))?;
    let mut outputs = [(String::new(), false), (String::new(), false)];
    // Whoever wrote is dead; a stream that is still open is given up.
    while let Ok(Some(Ok((n, clip)))) = timeout(DRAIN, readers.join_next()).await {
        outputs[n] = clip.finish();
    }

    match end {
        End::Exited => {
            let [(stdout, a), (stderr, b)] = outputs;
            Ok(Ran { code: status.code(), signal: status.signal(), stdout, stderr, truncated: a || b })
        }
        End::Flooded => Err(ToolError::Limit(format!("the program wrote over {FLOOD} bytes and was ended"))),
        End::TimedOut => Err(ToolError::TimedOut(started.elapsed())),
        End::Cancelled => Err(ToolError::Cancelled),
    }
}

fn broken(error: &io::Error) -> ToolError {
    ToolError::Failed(format!("the program could not be watched: {error}"))
}

async fn read(stream: Option<impl AsyncRead + Unpin>, max: usize, flooded: &CancellationToken) -> Clip {
    let mut clip = Clip::new(max);
    let Some(mut stream) = stream else { return clip };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        clip.push(&buffer[..read]);
        if clip.total() > FLOOD {
            flooded.cancel();
            break;
        }
    }
    clip
}

fn start(shell: &Shell, command: &[String], scratch: &Scratch) -> Result<Group, ToolError> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| ToolError::InvalidArguments("command is empty".into()))?;
    #[expect(clippy::disallowed_methods, reason = "this is the runner of programs")]
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", &shell.path)
        .env("HOME", &scratch.path)
        .env("TMPDIR", &scratch.path)
        .env("LANG", "C.UTF-8")
        .env(sweep::TAG, &scratch.tag)
        .current_dir(shell.directory.as_deref().unwrap_or(&scratch.path))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => ToolError::NotFound(format!("program {program}")),
            ErrorKind::PermissionDenied => ToolError::Refused(format!("{program} cannot be executed")),
            _ => ToolError::Failed(format!("{program} could not be started: {e}")),
        })?;
    let pid = child.id().and_then(|id| Pid::from_raw(id as i32));
    let pid = pid.ok_or_else(|| ToolError::Failed("the program has no process number".into()))?;
    let exit = tokio::task::spawn_blocking(move || await_exit(pid));
    let group = Group { child, pid: Some(pid), exit, tag: scratch.tag.clone() };
    shell.limits.apply(pid).map_err(|e| broken(&e))?;
    Ok(group)
}

/// Returns when the leader has ended. It stays to be reaped.
fn await_exit(pid: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
}

/// A running process group. Dropping it kills the group and what left it.
struct Group {
    child: Child,
    /// The leader, until it was reaped.
    pid: Option<Pid>,
    /// Ready when the leader has ended.
    exit: JoinHandle<()>,
    tag: String,
}

impl Group {
    /// Kills what is left of the group and what left it, and reaps the leader.
    async fn end(&mut self) -> io::Result<std::process::ExitStatus> {
        self.kill();
        let tag = self.tag.clone();
        let _ = tokio::task::spawn_blocking(move || sweep::kill(&tag)).await;
        self.pid = None;
        self.child.wait().await
    }

    fn kill(&self) {
        if let Some(pid) = self.pid {
            // An error means that nobody is left.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.pid.is_some() {
            self.kill();
            let tag = std::mem::take(&mut self.tag);
            std::thread::spawn(move || sweep::kill(&tag));
        }
    }
}

/// The folder of one run; removed with everything in it when dropped.
struct Scratch {
    path: PathBuf,
    tag: String,
}

impl Scratch {
    fn new(parent: &Path) -> Result<Self, ToolError> {
        let tag = Ulid::generate().to_string();
        let path = parent.join(sweep::folder(&tag));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|e| ToolError::Failed(format!("no folder for the program could be made: {e}")))?;
        Ok(Self { path, tag })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.path) {
            log::warn!("a program's folder could not be removed: {e}");
        }
    }
}
