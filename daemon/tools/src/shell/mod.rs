//! `shell.exec`: runs one program, without a shell in between.

mod clip;
mod run;
mod sweep;

use std::path::PathBuf;
use std::time::Duration;

use hearth_scope::{EffectClass, Label, Scope};
use hearth_turn::ToolError;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::context::ToolContext;
use crate::text;
use crate::tool::{Done, Meta, Reach, Typed, scope};
pub use run::ProgramLimits;

/// Most words of a command.
const WORDS_MAX: usize = 64;
/// Longest command, all words together, in bytes.
const COMMAND_MAX: usize = 32 * 1024;
/// Time that a program gets, and that it can be given, in seconds.
const SECONDS_DEFAULT: u64 = 30;
const SECONDS_MAX: u64 = 120;

/// Where and how programs run.
#[derive(Debug, Clone)]
pub struct Shell {
    /// A folder that only the daemon can enter; each run gets a folder in it,
    /// which is its home and is removed afterwards.
    pub scratch: PathBuf,
    /// Where programs start; the run's own folder when absent.
    pub directory: Option<PathBuf>,
    /// Where programs are looked for, separated by colons.
    pub path: String,
    /// What the kernel allows a program.
    pub limits: ProgramLimits,
}

impl Shell {
    /// Usual folders for programs, usual limits.
    pub fn new(scratch: PathBuf) -> Self {
        let path = "/usr/local/bin:/usr/bin:/bin".to_owned();
        Self { scratch, directory: None, path, limits: ProgramLimits::default() }
    }
}

/// `shell.exec`
pub(crate) struct Exec(pub(crate) Shell);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Args {
    command: Vec<String>,
    timeout_s: Option<u64>,
}

impl Typed for Exec {
    type Args = Args;
    const META: Meta = Meta {
        name: "shell.exec",
        version: 1,
        description: "Run a program (no shell syntax).",
        schema: r#"{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},"description":"program, then arguments"},"timeout_s":{"type":"integer","minimum":1,"maximum":120}},"required":["command"]}"#,
        effect: EffectClass::Destroy,
        // Longer than what a call can ask for: the runner ends the program itself.
        timeout: Duration::from_secs(SECONDS_MAX + 10),
        reach: Reach::Qualified("shell.exec"),
    };

    fn need(&self, args: &Args) -> Result<(Vec<Scope>, String), ToolError> {
        let invalid = |text: &str| Err(ToolError::InvalidArguments(text.into()));
        let Some(program) = args.command.first() else {
            return invalid("command is empty");
        };
        if args.command.len() > WORDS_MAX || args.command.iter().map(String::len).sum::<usize>() > COMMAND_MAX
        {
            return invalid("command is too long");
        }
        if args.command.iter().any(|word| word.contains('\0')) {
            return invalid("command holds a NUL character");
        }
        if args.timeout_s.is_some_and(|s| s == 0 || s > SECONDS_MAX) {
            return invalid("timeout_s is 1 to 120");
        }
        if program.contains('/') && !program.starts_with('/') {
            return invalid("give the program as a plain name or an absolute path");
        }
        let scope = scope("shell.exec", Some(program))?;
        // A list or a pattern would mean more than this one program.
        if scope.qualifier() != Some(program) || program.contains([',', '*', ' ']) {
            return invalid("command begins with the name of one program");
        }
        Ok((vec![scope], program.clone()))
    }

    async fn call(&self, args: Args, ctx: &ToolContext) -> Result<Done, ToolError> {
        let time = Duration::from_secs(args.timeout_s.unwrap_or(SECONDS_DEFAULT));
        let limit = ctx.deadline.min(Instant::now() + time);
        let ran = run::run(&self.0, &args.command, limit, &ctx.cancel).await?;
        let shown = |text: String| match text.is_empty() {
            true => text,
            false => text::fence(&text, &ctx.fence),
        };
        let mut output = json!({
            "exit": ran.code, "stdout": shown(ran.stdout), "stderr": shown(ran.stderr),
            "label": "world", "source": "program",
        });
        if let Some(signal) = ran.signal {
            output["signal"] = signal.into();
        }
        if ran.truncated {
            output["truncated"] = true.into();
        }
        Ok(Done::unverified(output, Label::UNKNOWN))
    }
}

#[cfg(test)]
mod tests;
