//! Writes shell completions and man pages: `generate DIR`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::PathBuf;

use clap_complete::Shell;

fn main() -> std::io::Result<()> {
    let dir = PathBuf::from(std::env::args_os().nth(1).expect("usage: generate DIR"));
    std::fs::create_dir_all(&dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut hearth::cli::command(), "hearth", &dir)?;
    }
    clap_mangen::generate_to(hearth::cli::command(), &dir)
}
