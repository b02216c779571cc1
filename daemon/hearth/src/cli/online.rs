//! Verbs that ask the daemon.

use std::time::Duration;

use hearth_audit::Remembered;
use hearth_console::{Client, ClientError};
use hearth_contract::{ControlRequest, RefusalKind};
use hearth_settings::Settings;
use serde_json::Value;
use tokio::time::Instant;

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Memory, out, runtime};
use crate::doctor;

/// Time between two tries while the daemon starts.
const RETRY: Duration = Duration::from_millis(50);

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match error {
            ClientError::NotRunning(_) | ClientError::Closed | ClientError::TimedOut(_) => Exit::Unavailable,
            ClientError::Refused(ref refusal) if refusal.kind == RefusalKind::ShuttingDown => {
                Exit::Unavailable
            }
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string(), error.remedy())
    }
}

/// Connects to the daemon of these settings.
pub(crate) async fn connect(settings: &Settings) -> Result<Client, ClientError> {
    Client::connect(&settings.console.socket, concat!("hearth ", env!("CARGO_PKG_VERSION"))).await
}

async fn request(settings: &Settings, request: ControlRequest) -> Result<Value, Failure> {
    Ok(connect(settings).await?.control(request).await?)
}

/// Where the audit log of the running daemon ends; `None` when none runs.
pub(crate) fn head(settings: &Settings) -> Result<Option<Remembered>, Failure> {
    match runtime(1)?.block_on(request(settings, ControlRequest::Status {})) {
        Ok(status) => Ok(Remembered::parse(text(&status["audit"], "head"))),
        Err(failure) if failure.exit == Exit::Unavailable => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// `hearth status`
pub(crate) async fn status(settings: &Settings, json: bool, wait: u64) -> Result<Exit, Failure> {
    let until = Instant::now() + Duration::from_secs(wait);
    let status = loop {
        match request(settings, ControlRequest::Status {}).await {
            Ok(status) => break status,
            Err(failure) if failure.exit == Exit::Unavailable && Instant::now() < until => {
                tokio::time::sleep(RETRY).await;
            }
            Err(failure) => return Err(failure),
        }
    };
    if json {
        out(&format!("{status}\n"))?;
        return Ok(Exit::Done);
    }
    let models: Vec<_> =
        status["models"].as_array().into_iter().flatten().map(|m| text(m, "model")).collect();
    let clock = if status["clock_set"] == true { "set" } else { "not set yet" };
    let rows = [
        ("version", text(&status, "version").to_owned()),
        ("home", text(&status, "home").to_owned()),
        ("up", format!("{} s", status["uptime_s"])),
        ("answering", format!("{} messages", status["turns"])),
        ("models", models.join(", ")),
        ("memory", format!("{} KiB", status["memory_kib"])),
        ("clock", clock.to_owned()),
        (
            "audit log",
            format!("{} entries, code {}", status["audit"]["entries"], text(&status["audit"], "code")),
        ),
        ("identity", text(&status["audit"], "identity").to_owned()),
        ("head", text(&status["audit"], "head").to_owned()),
    ];
    for (name, value) in rows {
        out(&format!("{name:<10} {value}\n"))?;
    }
    Ok(Exit::Done)
}

/// `hearth doctor`
pub(crate) async fn doctor(settings: &Settings, json: bool) -> Result<Exit, Failure> {
    let findings = match request(settings, ControlRequest::Doctor {}).await {
        Ok(findings) => findings,
        Err(failure) if failure.exit == Exit::Unavailable => {
            let mut findings = doctor::local(settings);
            findings.push(doctor::Finding::bad("daemon", failure.what, &failure.remedy));
            doctor::to_json(&findings)
        }
        Err(failure) => return Err(failure),
    };
    let rows = findings.as_array().cloned().unwrap_or_default();
    let bad = rows.iter().any(|row| row["ok"] != true);
    if json {
        out(&format!("{findings}\n"))?;
    } else {
        for row in &rows {
            let mark = if row["ok"] == true { "ok " } else { "-- " };
            out(&format!("{mark} {}: {}\n", text(row, "name"), text(row, "what")))?;
            if !text(row, "remedy").is_empty() {
                out(&format!("       {}\n", text(row, "remedy")))?;
            }
        }
    }
    Ok(if bad { Exit::Failed } else { Exit::Done })
}

/// `hearth memory ...`
pub(crate) async fn memory(settings: &Settings, verb: Memory) -> Result<Exit, Failure> {
    match verb {
        Memory::List { query, limit } => {
            let rows = request(settings, ControlRequest::MemoryList { query, limit }).await?;
            let rows = rows.as_array().cloned().unwrap_or_default();
            if rows.is_empty() {
                out("Nothing is remembered. Say \"Remember that ...\" to change that.\n")?;
            }
            for row in rows {
                let line: String = text(&row, "text").replace('\n', " ").chars().take(100).collect();
                out(&format!("{}  {line}\n", text(&row, "id")))?;
            }
        }
        Memory::Show { id } => {
            let row = request(settings, ControlRequest::MemoryShow { id }).await?;
            for key in ["id", "topic", "label", "source"] {
                if !text(&row, key).is_empty() {
                    out(&format!("{key:<8} {}\n", text(&row, key)))?;
                }
            }
            if let Some(created) =
                row["created_ms"].as_i64().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            {
                let local = created.to_zoned_datetime(jiff::tz::TimeZone::system());
                out(&format!("created  {}\n", local.strftime("%Y-%m-%d %H:%M")))?;
            }
            out(&format!("\n{}\n", text(&row, "text")))?;
        }
        Memory::Forget { id } => {
            request(settings, ControlRequest::MemoryForget { id: id.clone() }).await?;
            out(&format!("Forgotten: {id}\n"))?;
        }
    }
    Ok(Exit::Done)
}
