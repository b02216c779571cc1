//! Verbs that need no daemon.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hearth_audit::{Remembered, Report, Verifier, hex, unhex};
use hearth_settings::{Settings, Sources};
use hearth_store::{AuditLog, RealDisk};

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Init, online, out};
use crate::runtime::serve::clock;
use crate::runtime::unlock;

/// Longest line of an exported log, in bytes.
const LINE_MAX: u64 = 256 * 1024;

/// Prints a text.
pub(crate) fn print(text: &str) -> Result<Exit, Failure> {
    out(text)?;
    Ok(Exit::Done)
}

/// `hearth init`
pub(crate) fn init(settings: &Settings, init: &Init) -> Result<Exit, Failure> {
    if settings.paths.marker.exists() && settings.paths.state.join("keys").exists() {
        out("The store exists already; nothing was changed.\n")?;
        return Ok(Exit::Done);
    }
    let passphrase = init.passphrase.then(|| unlock::ask_passphrase("New passphrase: ")).transpose()?;
    let created = unlock::initialise(settings, &clock(settings)?, passphrase.as_ref().map(|p| p.as_str()))?;
    let mut text = format!("The store was created at {}.\n", settings.paths.state.display());
    if created.wrote_key_file {
        text.push_str(&format!(
            "Its key file is {}. Whoever has both can read everything.\n",
            settings.unlock.key_file.display()
        ));
    }
    text.push_str("\nRecovery code, shown only now. Write it down and keep it away from the box:\n\n    ");
    text.push_str(&created.recovery);
    text.push_str("\n\n");
    print(&text)
}

/// `hearth config check`
pub(crate) fn check_settings(sources: &Sources) -> Result<Exit, Failure> {
    let problems = Settings::check(sources);
    for problem in &problems {
        out(&format!("{problem}\n"))?;
    }
    if problems.iter().any(|p| !p.warning) {
        return Ok(Exit::Config);
    }
    out("The settings are sound.\n")?;
    Ok(Exit::Done)
}

/// `hearth config show`
pub(crate) fn show_settings(settings: &Settings) -> Result<Exit, Failure> {
    for row in settings.show() {
        out(&format!("{} = {}    # {}\n", row.key, row.value, row.provenance))?;
    }
    Ok(Exit::Done)
}

fn expectations(
    identity: Option<&str>,
    head: Option<&str>,
) -> Result<(Option<[u8; 32]>, Option<Remembered>), Failure> {
    let wrong = |what: &str, remedy: &str| Failure::new(Exit::Failed, what, remedy);
    let identity = identity
        .map(|text| {
            unhex(&text.trim().to_lowercase()).ok_or_else(|| {
                wrong("the identity is not 64 hexadecimal digits", "Copy it from `hearth status`.")
            })
        })
        .transpose()?;
    let head = head
        .map(|text| {
            Remembered::parse(text).ok_or_else(|| {
                wrong(
                    "the head is not ENTRIES:HASH",
                    "Copy it from `hearth status` or an earlier verification.",
                )
            })
        })
        .transpose()?;
    Ok((identity, head))
}

fn conclude(report: &Report, what: &str) -> Result<Exit, Failure> {
    let identity = report.identity.map(|key| hex(&key)).unwrap_or_default();
    match &report.finding {
        None => {
            out(&format!(
                "{what} verifies: {} entries, {} epochs, {} signed heads.\nidentity {identity}\nhead     {}\n",
                report.entries, report.epochs, report.heads, report.end
            ))?;
            Ok(Exit::Done)
        }
        Some(finding) => Err(Failure::new(
            Exit::Store,
            format!("{what} was tampered with or damaged: {finding}"),
            format!(
                "The {} entries before that are as they were written. Keep the file, and compare it with an older export.",
                report.entries
            ),
        )),
    }
}

/// `hearth audit verify FILE`
pub(crate) fn verify_file(file: &Path, identity: Option<&str>, head: Option<&str>) -> Result<Exit, Failure> {
    let (identity, head) = expectations(identity, head)?;
    let failed =
        |e: std::io::Error| Failure::new(Exit::Failed, format!("{}: {e}", file.display()), "Check the path.");
    let mut reader = BufReader::new(File::open(file).map_err(failed)?);
    let mut verifier = Verifier::new(identity, head);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut reader, LINE_MAX + 1);
        if limited.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        verifier.push(&line);
    }
    conclude(&verifier.finish(true), "The exported log")
}

fn with_log<T>(
    settings: &Settings,
    work: impl FnOnce(&AuditLog<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let key = unlock::unlock(settings)?;
    let disk = RealDisk::read_only(&settings.paths.state);
    work(&AuditLog::new(&disk, &key))
}

/// `hearth audit verify`
pub(crate) fn verify_store(
    settings: &Settings,
    identity: Option<&str>,
    head: Option<&str>,
) -> Result<Exit, Failure> {
    let (identity, noted) = expectations(identity, head)?;
    with_log(settings, |log| {
        let head = match noted {
            Some(noted) => Some(noted),
            None => known_head(settings, log)?,
        };
        conclude(&log.verify(identity, head)?, "The audit log")
    })
}

/// Where the log ends, as far as anyone here knows: who has the store open knows
/// it, else its index remembers it.
fn known_head(settings: &Settings, log: &AuditLog<'_>) -> Result<Option<Remembered>, Failure> {
    match log.remembered()? {
        Some(remembered) => Ok(Some(remembered)),
        None => online::head(settings),
    }
}

/// `hearth audit export`
pub(crate) fn export(settings: &Settings, file: &Path) -> Result<Exit, Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("{}: {e}", file.display()),
            "Name a file that does not exist yet, on a disk with space.",
        )
    };
    with_log(settings, |log| {
        let head = known_head(settings, log)?;
        if file == Path::new("-") {
            let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
            log.export(head, &mut |line| writeln!(stdout, "{line}"))?;
            stdout.flush().map_err(failed)?;
            return Ok(Exit::Done);
        }
        let opened =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(failed)?;
        let mut writer = std::io::BufWriter::new(opened);
        if let Err(error) = log.export(head, &mut |line| writeln!(writer, "{line}")) {
            // Half an export is not left behind as if it were one.
            let _ = std::fs::remove_file(file);
            return Err(error.into());
        }
        writer.flush().and_then(|()| writer.get_ref().sync_all()).map_err(failed)?;
        out(&format!(
            "Exported to {}. Anyone can verify it: hearth audit verify {}\n",
            file.display(),
            file.display()
        ))?;
        Ok(Exit::Done)
    })
}

/// `hearth audit tail`
pub(crate) fn tail(settings: &Settings, lines: usize) -> Result<Exit, Failure> {
    with_log(settings, |log| {
        for line in log.newest(lines, &|_| true)?.iter().rev() {
            out(&format!("{}\n", String::from_utf8_lossy(line)))?;
        }
        Ok(Exit::Done)
    })
}
