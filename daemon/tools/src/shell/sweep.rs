//! Finding processes that left the group of their run.
//!
//! A program that starts a session of its own is out of reach of a signal to
//! the group, but it still has the run's environment. One that changes that too
//! stays until the daemon's own control group ends.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that marks the processes of a run.
pub(crate) const TAG: &str = "HEARTH_RUN";
/// How often the processes are looked through while new ones appear.
const ROUNDS: usize = 8;
/// How much of an environment is read.
const ENVIRONMENT_MAX: u64 = 64 * 1024;

/// Kills every process whose environment carries the tag.
pub(crate) fn kill(tag: &str) {
    for _ in 0..ROUNDS {
        let found = find(tag);
        if found.is_empty() {
            return;
        }
        for process in found {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}

/// The processes whose environment carries the tag. Each is held by a
/// descriptor that was opened before the look, so it cannot be mistaken for a
/// later process with the same number.
pub(crate) fn find(tag: &str) -> Vec<OwnedFd> {
    let wanted = format!("{TAG}={tag}\0").into_bytes();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let tagged = |number: i32| {
        let descriptor = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let mut environment = Vec::new();
        let file = fs::File::open(format!("/proc/{number}/environ")).ok()?;
        file.take(ENVIRONMENT_MAX).read_to_end(&mut environment).ok()?;
        environment.windows(wanted.len()).any(|w| w == wanted).then_some(descriptor)
    };
    numbers.filter_map(tagged).collect()
}
