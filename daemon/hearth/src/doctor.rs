//! Checks of the box; each finding comes with its remedy.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hearth_settings::{Settings, UnlockMethod};
use serde_json::{Value, json};

/// Below this much free space a warning is due, in bytes.
const SPACE_MIN: u64 = 64 * 1024 * 1024;
/// Below this much memory a passphrase takes long to check, in bytes.
const MEMORY_MIN: u64 = 400 * 1024 * 1024;

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub name: String,
    /// True when it is well.
    pub ok: bool,
    /// What was seen.
    pub what: String,
    /// What to do, when it is not well.
    pub remedy: String,
}

impl Finding {
    /// All is well.
    pub fn good(name: impl Into<String>, what: String) -> Self {
        Self { name: name.into(), ok: true, what, remedy: String::new() }
    }

    /// Something has to be done.
    pub fn bad(name: impl Into<String>, what: String, remedy: &str) -> Self {
        Self { name: name.into(), ok: false, what, remedy: remedy.to_owned() }
    }
}

/// As JSON.
pub fn to_json(findings: &[Finding]) -> Value {
    let rows =
        findings.iter().map(|f| json!({"name": f.name, "ok": f.ok, "what": f.what, "remedy": f.remedy}));
    Value::Array(rows.collect())
}

/// Resident memory of this process, in KiB.
pub fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What can be checked without the daemon.
pub fn local(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for problem in settings.check_secrets().into_iter().chain(settings.warnings.clone()) {
        findings.push(Finding::bad("settings", problem.to_string(), ""));
    }
    findings.push(store(settings));
    if settings.paths.marker.exists() {
        findings.push(private("store folder", &settings.paths.state));
    }
    if settings.unlock.method == UnlockMethod::KeyFile && settings.unlock.key_file.exists() {
        findings.push(private("key file", &settings.unlock.key_file));
        if same_device(&settings.unlock.key_file, &settings.paths.state) {
            let what =
                "lies on the same disk as the store: whoever takes the disk can read everything".to_owned();
            findings.push(Finding::bad(
                "key file",
                what,
                "Use a passphrase, or a key file on a stick, if that matters to you.",
            ));
        }
    }
    findings.push(space(&settings.paths.state));
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    findings.push(if memory < MEMORY_MIN {
        Finding::bad(
            "memory",
            format!("{} MiB", memory >> 20),
            "Unlocking by passphrase needs 64 MiB at once; a key file does not.",
        )
    } else {
        Finding::good("memory", format!("{} MiB", memory >> 20))
    });
    findings
}

fn store(settings: &Settings) -> Finding {
    let marker = settings.paths.marker.exists();
    let there = settings.paths.state.join("store.redb").exists();
    match (marker, there) {
        (true, true) => Finding::good("store", format!("is at {}", settings.paths.state.display())),
        (true, false) => Finding::bad(
            "store",
            "was created once and is missing".to_owned(),
            "Attach the disk that it lies on, or restore a backup.",
        ),
        _ => Finding::bad("store", "does not exist yet".to_owned(), "Run `hearth init`."),
    }
}

fn private(name: &str, path: &Path) -> Finding {
    match std::fs::metadata(path) {
        Ok(meta) if meta.permissions().mode() & 0o077 == 0 => {
            Finding::good(name, "is readable by its owner only".to_owned())
        }
        Ok(meta) => Finding::bad(
            name,
            format!("{} has mode {:o}", path.display(), meta.permissions().mode() & 0o777),
            &format!("Run: chmod go-rwx {}", path.display()),
        ),
        Err(e) => Finding::bad(name, format!("{}: {e}", path.display()), "Check the path in the settings."),
    }
}

fn same_device(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.dev() == b.dev(),
        _ => false,
    }
}

fn space(path: &Path) -> Finding {
    match rustix::fs::statvfs(path) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let what = format!("{} MiB free", free >> 20);
            if free < SPACE_MIN {
                Finding::bad("disk", what, "Free some space: below this, messages may be refused.")
            } else {
                Finding::good("disk", what)
            }
        }
        Err(_) => Finding::good("disk", "not looked at: there is no store yet".to_owned()),
    }
}
