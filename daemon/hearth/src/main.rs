//! `hearth`: the daemon and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    hearth::cli::run()
}
