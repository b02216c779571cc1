//! The log: one line an event on the standard error, with a priority that
//! systemd understands. No message text, no secret.

use std::io::Write as _;

use hearth_settings::LogLevel;
use log::{Level, LevelFilter, Log, Metadata, Record};

/// Longest text of a line, in characters.
const LINE_MAX: usize = 4096;

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries talk about connections; only their warnings are of interest.
        metadata.target().starts_with("hearth") || metadata.level() <= Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let priority = match record.level() {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let text = one_line(&record.args().to_string());
        // A log that cannot be written must not stop the daemon.
        let _ = writeln!(std::io::stderr().lock(), "<{priority}>{text}");
    }

    fn flush(&self) {}
}

/// A text as the rest of one line: without control characters, so that none can
/// forge a line or move a terminal's cursor, and with a limit.
fn one_line(text: &str) -> String {
    let mut line: String =
        text.chars().take(LINE_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(LINE_MAX).is_some() {
        line.push_str(" [cut]");
    }
    line
}

/// Installs the log at a level; a second call changes nothing.
pub fn install(level: LogLevel) {
    let filter = match level {
        LogLevel::Error => LevelFilter::Error,
        LogLevel::Warn => LevelFilter::Warn,
        LogLevel::Info => LevelFilter::Info,
        LogLevel::Debug => LevelFilter::Debug,
    };
    if log::set_logger(&Stderr).is_ok() {
        log::set_max_level(filter);
    }
}

/// Makes a panic say where it happened and nothing more: its message may quote
/// what a person said, or a secret.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        let _ = writeln!(std::io::stderr().lock(), "<3>a bug: panicked at {place}. Please report it.");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_on_its_line() {
        #[track_caller]
        fn check(text: &str, line: &str) {
            assert_eq!(one_line(text), line);
        }
        check("plain – text", "plain – text");
        check("a\n<3>forged\r\x1b[2J\u{9b}", "a <3>forged  [2J ");
        check(&"é".repeat(LINE_MAX), &"é".repeat(LINE_MAX));
        check(&"é".repeat(LINE_MAX + 1), &format!("{} [cut]", "é".repeat(LINE_MAX)));
    }
}
