//! Makes the parts of the daemon out of the settings.

use std::path::PathBuf;
use std::sync::Arc;

use hearth_egress::{FetchLimits, Fetcher, LanHost, SecretValue};
use hearth_models::{Models, Place, Provider, Timeouts};
use hearth_scope::{CapabilitySet, Integrity, Scope, TrustTier};
use hearth_settings::{Access, Endpoint, FileRoot, Settings};
use hearth_tools::Registry;
use hearth_tools::fs::{Root, Roots};
use hearth_tools::shell::Shell;
use hearth_turn::Limits;
use jiff::tz::TimeZone;

use crate::cli::exit::{Exit, Failure};
use crate::runtime::ports::{AuditRows, MemoryRows, SettingsRows};

/// System text that every turn begins with.
const SYSTEM: &str = include_str!("../system.txt");

/// Below this much memory a model gets the smaller context, in bytes.
const SMALL_MEMORY: u64 = 6 * 1024 * 1024 * 1024;

fn bad(what: impl Into<String>, remedy: impl Into<String>) -> Failure {
    Failure::new(Exit::Config, what, remedy)
}

/// The time zone of the household.
pub fn zone(settings: &Settings) -> Result<TimeZone, Failure> {
    match &settings.home.time_zone {
        None => Ok(TimeZone::system()),
        Some(name) => TimeZone::get(name).map_err(|e| {
            bad(format!("home.time_zone: {e}"), "Name a zone such as \"Europe/Berlin\", and install tzdata.")
        }),
    }
}

/// Tokens of context for an endpoint that names none, by the memory of this box.
fn default_context() -> u32 {
    let info = rustix::system::sysinfo();
    let bytes = info.totalram.saturating_mul(u64::from(info.mem_unit));
    if bytes < SMALL_MEMORY { 4096 } else { 8192 }
}

/// The model servers.
pub fn models(settings: &Settings) -> Result<Models, Failure> {
    let providers: Result<Vec<_>, Failure> =
        settings.endpoints.iter().map(|e| provider(settings, e)).collect();
    Models::new(providers?)
        .map_err(|e| bad(e.to_string(), "Check the addresses and keys of the model endpoints."))
}

fn provider(settings: &Settings, endpoint: &Endpoint) -> Result<Provider, Failure> {
    let api_key = match &endpoint.api_key {
        None => None,
        Some(place) => {
            let read = place.read().and_then(|secret| secret.text().map(SecretValue::new));
            Some(
                read.map_err(|e| bad(format!("the key of endpoint \"{}\": {e}", endpoint.name), e.remedy()))?,
            )
        }
    };
    let place = if endpoint.remote { Place::Remote } else { Place::Local };
    Ok(Provider {
        name: endpoint.name.clone(),
        wire: match endpoint.wire {
            hearth_settings::Wire::Ollama => hearth_models::Wire::Ollama,
            hearth_settings::Wire::OpenAi => hearth_models::Wire::OpenAi,
            hearth_settings::Wire::Anthropic => hearth_models::Wire::Anthropic,
        },
        place,
        endpoint: endpoint.url.clone(),
        model: endpoint.model.clone(),
        api_key,
        context_tokens: endpoint.context_tokens.unwrap_or_else(default_context),
        max_tokens: Some(endpoint.max_tokens),
        keep_alive_s: i64::try_from(settings.model.keep_alive_s.as_secs()).unwrap_or(i64::MAX),
        temperature: endpoint.temperature.map(|t| t as f32),
        timeouts: Timeouts {
            connect: endpoint.connect_s,
            first_token: endpoint.first_token(),
            between_tokens: endpoint.between_tokens_s,
            ..Timeouts::of(place)
        },
    })
}

/// The highest trust that the settings leave to the console.
pub fn console_ceiling(settings: &Settings) -> TrustTier {
    match settings.console.ceiling {
        hearth_settings::Ceiling::Trusted => TrustTier::Trusted,
        hearth_settings::Ceiling::SemiTrusted => TrustTier::SemiTrusted,
        hearth_settings::Ceiling::Untrusted => TrustTier::Untrusted,
    }
}

/// The limits of a turn; `remote` tells whether the first server that is asked
/// is outside of the home.
pub fn limits(settings: &Settings, remote: bool) -> Limits {
    Limits {
        steps: settings.turn.max_steps,
        calls_per_step: settings.turn.max_calls_per_step,
        budget: if remote { settings.turn.budget_remote_s } else { settings.turn.budget_local_s },
        tool_result_bytes: settings.turn.tool_result_bytes,
        // Each server lowers it to its own.
        max_tokens: settings.endpoints.iter().map(|e| e.max_tokens).max().unwrap_or(1024),
    }
}

/// The system text; the same bytes for every turn of this daemon.
pub fn system_text(settings: &Settings) -> String {
    let mut text = SYSTEM.trim_end().to_owned();
    if let Some(language) = &settings.agent.language {
        text.push_str(&format!("\nAlways answer in {language}."));
    }
    if let Some(persona) = &settings.agent.persona {
        text.push_str(&format!("\n{}", persona.trim()));
    }
    text
}

/// What the agent holds. File and program scopes without a qualifier are
/// narrowed to the folders and programs that the settings name, so that they
/// also hold where a tier asks for a qualified form.
pub fn capabilities(settings: &Settings) -> CapabilitySet {
    let roots = roots(settings);
    let narrowed =
        settings.agent.capabilities.iter().flat_map(|scope| match (scope.base(), scope.qualifier()) {
            (base, None) if base.starts_with("fs.") => roots
                .iter()
                .filter(|root| root.writable || matches!(base, "fs.read" | "fs.metadata"))
                .filter_map(|root| Scope::parse(&format!("{base}:{}", root.path.display())).ok())
                .collect(),
            ("shell.exec", None) => {
                Scope::parse(&format!("shell.exec:{}", settings.shell.commands.join(",")))
                    .ok()
                    .into_iter()
                    .collect()
            }
            _ => vec![scope.clone()],
        });
    CapabilitySet::from_scopes(narrowed)
}

/// The folders of the file tools, without symbolic links: scopes and tools name
/// them alike. A folder that does not exist keeps its name.
fn roots(settings: &Settings) -> Vec<Root> {
    let root = |r: &FileRoot| Root {
        path: r.path.canonicalize().unwrap_or_else(|_| r.path.clone()),
        label: Integrity::Household,
        writable: r.mode == Access::Write,
    };
    settings.roots.iter().map(root).collect()
}

/// The tools that the settings allow.
pub fn tools(
    settings: &Settings,
    scratch: PathBuf,
    clock: Arc<dyn hearth_tools::Clock>,
    memory: MemoryRows,
    audit: AuditRows,
    shown: SettingsRows,
) -> Result<Registry, Failure> {
    let roots = Roots::open(&roots(settings)).map_err(|e| {
        bad(
            format!("the folder {} cannot be used: {}", e.path.display(), e.reason),
            "Create it, or remove its [[tools.root]].",
        )
    })?;
    let mut builder = Registry::builder().clock(clock).memory(Arc::new(memory)).roots(roots);
    builder = builder.audit(Arc::new(audit)).config(Arc::new(shown));
    if settings.fetch.enabled {
        let fetcher = Fetcher::new(lan_hosts(settings)).with_limits(fetch_limits(settings));
        builder = builder.fetch(Arc::new(fetcher));
    }
    if settings.shell.enabled {
        builder = builder.shell(Shell::new(scratch));
    }
    let disabled: Vec<&str> = settings.tools.disabled.iter().map(String::as_str).collect();
    Ok(builder.without(&disabled).build())
}

fn lan_hosts(settings: &Settings) -> Vec<LanHost> {
    let hosts = settings.fetch.lan_hosts.iter().flat_map(|text| match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => {
            vec![LanHost { host: host.to_lowercase(), port: port.parse().unwrap_or(80) }]
        }
        _ => [80, 443].map(|port| LanHost { host: text.to_lowercase(), port }).to_vec(),
    });
    hosts.collect()
}

fn fetch_limits(settings: &Settings) -> FetchLimits {
    FetchLimits {
        body_bytes: settings.fetch.max_bytes,
        redirects: settings.fetch.redirects,
        connect: settings.fetch.connect_s,
        first_byte: settings.fetch.first_byte_s,
        total: settings.fetch.total_s,
    }
}

#[cfg(test)]
mod tests {
    use hearth_scope::{CallId, Decision, ToolName};
    use hearth_settings::Sources;

    use super::*;

    /// What the file tools need is what the settings give, however a folder is
    /// spelled.
    #[test]
    fn scopes_and_file_tools_agree_on_folders() {
        #[track_caller]
        fn check(root: &str, mode: &str, path: &str, tool: &str, granted: bool) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(dir.path().join("real/notes")).unwrap();
            std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
            let file = dir.path().join("h.toml");
            let text = format!("[[tools.root]]\npath = {:?}\nmode = \"{mode}\"\n", dir.path().join(root));
            std::fs::write(&file, text).unwrap();
            let none = Vec::<(String, String)>::new();
            let settings = Settings::load(&Sources::new(Some(file), none)).unwrap();
            let tools = Registry::builder().roots(Roots::open(&roots(&settings)).unwrap()).build();
            let name = ToolName::parse(tool).unwrap();
            let mut args = serde_json::Map::from_iter([("path".to_owned(), path.into())]);
            if tool == "fs.write" {
                args.insert("text".to_owned(), "x".into());
            }
            let effective = capabilities(&settings).under(TrustTier::Trusted);
            let through = tools
                .need(&name, &args)
                .is_ok_and(|need| matches!(effective.check(&name, CallId(1), &need), Decision::Grant(_)));
            assert_eq!(through, granted, "{root} {mode} {path} {tool}");
        }
        for root in ["real/notes", "link/notes"] {
            for tool in ["fs.read", "fs.metadata", "fs.write", "fs.delete"] {
                check(root, "write", "list.txt", tool, true);
                check(root, "read", "list.txt", tool, matches!(tool, "fs.read" | "fs.metadata"));
            }
            check(root, "write", "/etc/passwd", "fs.read", false);
        }
    }
}
