//! Exit codes.

use std::process::ExitCode;

use hearth_turn::TurnOutcome;

/// Printed below `--help` and in the man page.
pub const HELP: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage; 10 needs approval; 11 timed out; \
12 stopped; 13 went in circles; 14 the turn failed; 64 bad settings; 65 bad store or audit log; \
69 the daemon cannot be reached.";

/// An exit code with its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed for another reason.
    Failed = 1,
    /// A call needs the owner's word.
    Escalated = 10,
    /// The turn used up its time.
    TimedOut = 11,
    /// The turn was stopped.
    Cancelled = 12,
    /// The turn went in circles.
    Looping = 13,
    /// The turn failed.
    TurnFailed = 14,
    /// The settings are wrong.
    Config = 64,
    /// The store or the audit log is damaged, missing or altered.
    Store = 65,
    /// The daemon cannot be reached.
    Unavailable = 69,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&TurnOutcome> for Exit {
    fn from(outcome: &TurnOutcome) -> Self {
        match outcome {
            TurnOutcome::Completed { .. } => Self::Done,
            TurnOutcome::Escalated { .. } => Self::Escalated,
            TurnOutcome::TimedOut { .. } => Self::TimedOut,
            TurnOutcome::Cancelled { .. } => Self::Cancelled,
            TurnOutcome::Looping { .. } => Self::Looping,
            TurnOutcome::Failed { .. } => Self::TurnFailed,
        }
    }
}

/// A failure for a person: two lines, what happened and what to do.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl Failure {
    /// A failure with its code and both sentences.
    pub fn new(exit: Exit, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { exit, what: what.into(), remedy: remedy.into() }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hearth: {}", self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n        {}", self.remedy) }
    }
}
