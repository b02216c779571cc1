//! Finding processes that left the group of their run.
//!
//! A program that starts a session of its own is out of reach of a signal to
//! the group, but it still has the run's environment, or stands in the run's
//! folder. One that changes both stays until the daemon's own control group ends.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that marks the processes of a run.
pub(crate) const TAG: &str = "HEARTH_RUN";
/// How often the processes are looked through while new ones appear.
const ROUNDS: usize = 16;
/// Time between two looks. A program has no environment for a moment while it
/// is being replaced by another, so one look that finds nothing is not enough.
const PAUSE: Duration = Duration::from_millis(3);
/// How much of an environment is read.
const ENVIRONMENT_MAX: u64 = 64 * 1024;

/// The folder of a run, as its processes see it.
pub(crate) fn folder(tag: &str) -> String {
    format!("run-{tag}")
}

/// Kills every process of the run; ends when two looks in a row find none.
pub(crate) fn kill(tag: &str) {
    let mut empty = 0;
    for _ in 0..ROUNDS {
        let found = find(tag);
        empty = if found.is_empty() { empty + 1 } else { 0 };
        if empty == 2 {
            return;
        }
        for process in found {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The processes whose environment carries the tag or that stand in its folder.
/// Each is held by a descriptor that was opened before the look, so it cannot be
/// mistaken for a later process with the same number.
pub(crate) fn find(tag: &str) -> Vec<OwnedFd> {
    let wanted = format!("{TAG}={tag}\0").into_bytes();
    // A folder that was removed keeps its name, with a note behind it.
    let (folder, removed) = (folder(tag), format!("{} (deleted)", folder(tag)));
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let tagged = |number: i32| {
        let descriptor = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
        let inside = fs::read_link(format!("/proc/{number}/cwd"))
            .is_ok_and(|path| path.iter().any(|part| part == folder.as_str() || part == removed.as_str()));
        let mut environment = Vec::new();
        if let Ok(file) = fs::File::open(format!("/proc/{number}/environ")) {
            let _ = file.take(ENVIRONMENT_MAX).read_to_end(&mut environment);
        }
        (inside || environment.windows(wanted.len()).any(|w| w == wanted)).then_some(descriptor)
    };
    numbers.filter_map(tagged).collect()
}
