//! The command line: what can be typed, and the exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use hearth_settings::{Settings, Sources};

use crate::cli::exit::Failure;
use crate::logger;

pub mod exit;
mod offline;
mod online;
mod talk;

pub use exit::Exit;

/// Hearth, the agent of the household.
#[derive(Debug, Parser)]
#[command(name = "hearth", version, about = "Hearth, the agent of the household", long_about = None, after_help = exit::HELP)]
pub struct Cli {
    /// Settings file. Without it: $HEARTH_CONFIG, then /etc/hearth/hearth.toml.
    #[arg(long, short, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run the daemon in the foreground.
    Serve,
    /// Create the store and its key, once.
    Init(Init),
    /// Talk to the daemon in the terminal. Ctrl-C stops an answer, twice leaves.
    Chat {
        /// The conversation to go on with.
        #[arg(long, default_value = "default", value_name = "NAME")]
        conversation: String,
    },
    /// Ask once, print the answer, leave.
    Ask(Ask),
    /// Show the state of the daemon.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Wait up to this many seconds for the daemon to be ready.
        #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3600))]
        wait: u64,
    },
    /// Check the box; each finding comes with its remedy.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Read and verify the audit log.
    #[command(subcommand)]
    Audit(Audit),
    /// Look at what is remembered, and forget.
    #[command(subcommand)]
    Memory(Memory),
    /// Look at the settings.
    #[command(subcommand)]
    Config(Config),
    /// Print the version.
    Version,
}

/// How to unlock the new store.
#[derive(Debug, Args)]
pub struct Init {
    /// Also add a passphrase as a way to unlock; asked for on the terminal, or
    /// read as one line from the standard input when that is no terminal.
    #[arg(long)]
    pub passphrase: bool,
}

/// One question.
#[derive(Debug, Args)]
pub struct Ask {
    /// Print every event as a line of JSON.
    #[arg(long)]
    pub json: bool,
    /// The conversation to go on with.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub conversation: String,
    /// Identity of the message: the same one again gives the same answer and
    /// runs nothing twice.
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// The question; "-" reads it from the standard input.
    pub text: String,
}

/// The audit log. Works without the daemon; `tail` and `export` need the key.
#[derive(Debug, Subcommand)]
pub enum Audit {
    /// Verify the log of this box, or an exported file without any secret.
    Verify {
        /// An exported file. Without it: the log of this box.
        file: Option<PathBuf>,
        /// Identity of the log, as `hearth status` prints it; without it the
        /// file's own is believed.
        #[arg(long, value_name = "HEX")]
        identity: Option<String>,
        /// A head that was noted earlier ("ENTRIES:HASH"): an older copy is found out.
        #[arg(long, value_name = "HEAD")]
        head: Option<String>,
    },
    /// Write the whole log to a file that anyone can verify.
    Export {
        /// The file; it must not exist. "-" is the standard output.
        file: PathBuf,
    },
    /// Show the newest entries.
    Tail {
        /// How many.
        #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        lines: u32,
    },
}

/// What is remembered.
#[derive(Debug, Subcommand)]
pub enum Memory {
    /// List entries, newest first, or best match first.
    List {
        /// Words to look for.
        query: Option<String>,
        /// How many.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Show one entry with its source.
    Show {
        /// Identity, as `list` prints it.
        id: String,
    },
    /// Forget one entry.
    Forget {
        /// Identity, as `list` prints it.
        id: String,
    },
}

/// The settings.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Every setting in force and where it comes from. Secrets are not shown.
    Show,
    /// Check the settings file and say everything that is wrong with it.
    Check,
    /// Print the reference of all settings.
    Reference,
}

/// The command, for generated completions and man pages.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Parses the command line, does it, and prints a failure in two lines.
pub fn run() -> ExitCode {
    logger::quiet_panics();
    let cli = Cli::parse();
    match perform(cli) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit.into()
        }
    }
}

fn perform(cli: Cli) -> Result<Exit, Failure> {
    let sources = sources(cli.config);
    match cli.verb {
        Verb::Version => {
            println!("hearth {}", env!("CARGO_PKG_VERSION"));
            Ok(Exit::Done)
        }
        Verb::Config(Config::Check) => offline::check_settings(&sources),
        Verb::Config(Config::Reference) => offline::print(&hearth_settings::reference()),
        Verb::Audit(Audit::Verify { file: Some(file), identity, head }) => {
            offline::verify_file(&file, identity.as_deref(), head.as_deref())
        }
        verb => with_settings(load(&sources)?, verb),
    }
}

fn with_settings(settings: Settings, verb: Verb) -> Result<Exit, Failure> {
    match verb {
        Verb::Serve => {
            logger::install(settings.log.level);
            runtime(2)?.block_on(crate::runtime::serve::serve(settings)).map(|()| Exit::Done)
        }
        Verb::Init(init) => offline::init(&settings, &init),
        Verb::Chat { conversation } => runtime(1)?.block_on(talk::chat(&settings, &conversation)),
        Verb::Ask(ask) => runtime(1)?.block_on(talk::ask(&settings, &ask)),
        Verb::Status { json, wait } => runtime(1)?.block_on(online::status(&settings, json, wait)),
        Verb::Doctor { json } => runtime(1)?.block_on(online::doctor(&settings, json)),
        Verb::Audit(Audit::Verify { identity, head, .. }) => {
            offline::verify_store(&settings, identity.as_deref(), head.as_deref())
        }
        Verb::Audit(Audit::Export { file }) => offline::export(&settings, &file),
        Verb::Audit(Audit::Tail { lines }) => offline::tail(&settings, lines as usize),
        Verb::Memory(memory) => runtime(1)?.block_on(online::memory(&settings, memory)),
        Verb::Config(_) => offline::show_settings(&settings),
        Verb::Version => Ok(Exit::Done),
    }
}

/// The sources of the settings. The only place that reads the environment.
#[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
fn sources(config: Option<PathBuf>) -> Sources {
    Sources::new(config, std::env::vars_os())
}

fn load(sources: &Sources) -> Result<Settings, Failure> {
    Settings::load(sources).map_err(|problems| {
        let lines: Vec<_> = problems.0.iter().map(ToString::to_string).collect();
        Failure::new(
            Exit::Config,
            lines.join("\n        "),
            "See `hearth config reference` for every setting.",
        )
    })
}

fn runtime(workers: usize) -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .map_err(|e| {
            Failure::new(
                Exit::Failed,
                format!("the runtime cannot start: {e}"),
                "Free some memory, then try again.",
            )
        })
}

/// Prints to the standard output; a reader that went away is no failure.
pub(crate) fn out(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failed, format!("the output cannot be written: {e}"), ""))
        }
        _ => Ok(()),
    }
}
