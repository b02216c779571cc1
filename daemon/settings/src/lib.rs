//! The configuration: defaults, one TOML file, environment and credentials,
//! layered into typed values that each know where they came from.
//!
//! Every key is declared once, in [`sections`]: type, range, default and words.
//! Parsing, range checks, `config show`, the reference page and the example
//! file all come from that declaration, so none can drift from the others.
//!
//! Nothing here reads the environment of the process: the caller passes it in.
//! Secrets never lie in the file or the environment; a setting only names the
//! file or the credential that holds one.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod checks;
mod cross;
mod layers;
mod problem;
mod reference;
mod secret;
pub mod sections;
mod spec;
mod suggest;

pub use layers::{CONFIG_VARIABLE, CREDENTIALS_VARIABLE, DEFAULT_FILE, FILE_MAX, Sources};
pub use problem::{Problem, Problems, Provenance};
pub use reference::{example, reference};
pub use secret::{SECRET_MAX, Secret, SecretError, SecretRef};
pub use sections::{
    Access, Agent, Ceiling, Console, Endpoint, FetchTool, FileRoot, Home, Limits, Log, LogLevel, Model,
    Paths, ShellTool, Tools, Turn, Unlock, UnlockMethod, Wire,
};

use layers::Resolved;

/// One setting as `hearth config show` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Dotted key; rows of a repeated table are numbered from 1.
    pub key: String,
    /// The value as TOML, or words about where a secret lies.
    pub value: String,
    /// Where the value came from.
    pub provenance: Provenance,
}

/// The whole configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `[home]`
    pub home: Home,
    /// `[paths]`
    pub paths: Paths,
    /// `[unlock]`
    pub unlock: Unlock,
    /// `[model]`
    pub model: Model,
    /// `[[model.endpoint]]` in order of preference; never empty.
    pub endpoints: Vec<Endpoint>,
    /// `[turn]`
    pub turn: Turn,
    /// `[agent]`
    pub agent: Agent,
    /// `[tools]`
    pub tools: Tools,
    /// `[[tools.root]]`: the folders that file tools may use.
    pub roots: Vec<FileRoot>,
    /// `[tools.fetch]`
    pub fetch: FetchTool,
    /// `[tools.shell]`
    pub shell: ShellTool,
    /// `[console]`
    pub console: Console,
    /// `[limits]`
    pub limits: Limits,
    /// `[log]`
    pub log: Log,
    /// What is odd but does not stop the daemon, for example an environment
    /// variable that looks like a setting and is none. Worth a line in the log.
    pub warnings: Vec<Problem>,
    resolved: Resolved,
}

impl Settings {
    /// Loads every layer. On failure all problems are returned, in order of
    /// their place. Secrets are not read: see [`Settings::check_secrets`].
    pub fn load(sources: &Sources) -> Result<Self, Problems> {
        let (resolved, mut problems) = layers::resolve(sources);
        let (warnings, errors): (Vec<_>, Vec<_>) =
            std::mem::take(&mut problems).into_iter().partition(|p| p.warning);
        if !errors.is_empty() {
            return Err(Problems::sorted(errors));
        }
        let settings = Self {
            home: resolved.section(),
            paths: resolved.section(),
            unlock: resolved.section(),
            model: resolved.section(),
            endpoints: resolved.rows(),
            turn: resolved.section(),
            agent: resolved.section(),
            tools: resolved.section(),
            roots: resolved.rows(),
            fetch: resolved.section(),
            shell: resolved.section(),
            console: resolved.section(),
            limits: resolved.section(),
            log: resolved.section(),
            warnings,
            resolved,
        };
        let conflicts = cross::conflicts(&settings);
        if conflicts.is_empty() { Ok(settings) } else { Err(Problems::sorted(conflicts)) }
    }

    /// Everything that is wrong or odd with these sources, secrets included.
    /// Empty means that the daemon would start with them.
    pub fn check(sources: &Sources) -> Vec<Problem> {
        match Self::load(sources) {
            Err(Problems(problems)) => problems,
            Ok(settings) => {
                let mut problems = settings.check_secrets();
                problems.extend(settings.warnings);
                problems
            }
        }
    }

    /// Reads every secret that is in use and drops it again: what is missing,
    /// readable by others, or not usable is found before anything is started.
    pub fn check_secrets(&self) -> Vec<Problem> {
        let keys = self.endpoints.iter().enumerate().filter_map(|(i, endpoint)| {
            let secret = endpoint.api_key.as_ref()?;
            Some((
                format!("model.endpoint.{}.api_key", i + 1),
                secret.read().and_then(|s| s.text().map(drop)),
            ))
        });
        let unlock = self
            .unlock
            .secret(&self.resolved)
            .map(|secret| (format!("unlock.{}", self.unlock.method.as_str()), secret.read().map(drop)));
        keys.chain(unlock)
            .filter_map(|(key, result)| {
                let error = result.err()?;
                let place = self.resolved.provenance(&key);
                Some(Problem::new(place, key, error.to_string(), error.remedy()))
            })
            .collect()
    }

    /// The secret that opens the store without a person, if that is how it is
    /// unlocked.
    pub fn unlock_secret(&self) -> Option<SecretRef> {
        self.unlock.secret(&self.resolved)
    }

    /// Every setting in the order of the reference, with where it came from.
    pub fn show(&self) -> Vec<Shown> {
        self.resolved.show()
    }

    /// The configuration file that was read, if there was one.
    pub fn file(&self) -> Option<&std::path::Path> {
        self.resolved.file()
    }
}

#[cfg(test)]
mod tests;
