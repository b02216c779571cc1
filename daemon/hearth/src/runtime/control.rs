//! Answers requests that need no turn.

use std::sync::Arc;
use std::time::Duration;

use hearth_audit::{Kind, Remembered, hex, short_code};
use hearth_contract::{BoxFuture, Control, ControlRequest, Refusal, RefusalKind};
use hearth_models::{Models, ServerKind};
use hearth_scope::{Origin, TrustTier};
use hearth_settings::Settings;
use hearth_store::{Batch, StoreError, memory, outbox, sessions};
use hearth_tools::{MemoryPort, memory::search};
use serde_json::{Value, json};
use ulid::Ulid;

use crate::clock::SystemClock;
use crate::doctor::{self, Finding};
use crate::runtime::gateway::Desk;
use crate::runtime::ports::{AuditRows, MemoryRows, blocking};

/// Longest look at the model servers.
const PROBE: Duration = Duration::from_secs(30);

/// The channel of the console.
const CONSOLE: &str = "console";
/// Waiting answers that are looked through for those of one conversation.
const ANSWERS_READ: usize = 1_000;

/// What the answers are made of.
pub struct ControlDesk {
    /// The desk.
    pub desk: Arc<Desk>,
    /// The settings in force.
    pub settings: Arc<Settings>,
    /// The model servers.
    pub models: Models,
    /// The memory.
    pub memory: MemoryRows,
    /// The audit log.
    pub audit: AuditRows,
    /// The clock.
    pub clock: SystemClock,
    /// When the daemon started, as time since boot.
    pub started: Duration,
    /// Public identity of the audit log.
    pub identity: [u8; 32],
    /// Ceiling that the settings put on the console.
    pub ceiling: TrustTier,
}

fn failed(error: StoreError) -> Refusal {
    Refusal::new(RefusalKind::Internal, error.to_string(), error.remedy())
}

fn unknown(id: &str) -> Refusal {
    let what = format!("nothing is remembered under \"{id}\"");
    Refusal::new(RefusalKind::NotFound, what, "See `hearth memory list`.")
}

fn shown(entry: &hearth_tools::MemoryEntry) -> Value {
    json!({
        "id": entry.id.to_string(), "text": entry.text, "topic": entry.topic,
        "label": entry.label, "source": entry.source, "created_ms": entry.created_ms,
    })
}

impl ControlDesk {
    async fn answer(&self, origin: Origin, request: ControlRequest) -> Result<Value, Refusal> {
        request.check()?;
        let tier = origin.tier().min(self.ceiling);
        let open = matches!(request, ControlRequest::Status {} | ControlRequest::StopTurn { .. });
        if tier < TrustTier::Trusted && !open {
            let what = format!("{} is not allowed with trust {tier}", request.verb());
            return Err(Refusal::new(RefusalKind::NotPermitted, what, "Use the owner's console."));
        }
        match request {
            ControlRequest::Status {} => Ok(self.status().await),
            ControlRequest::Doctor {} => {
                let mut findings = doctor::local(&self.settings);
                findings.extend(self.model_findings().await);
                Ok(doctor::to_json(&findings))
            }
            ControlRequest::MemoryList { query, limit } => self.list(query, limit as usize).await,
            ControlRequest::MemoryShow { id } => self.entry(&id).await.map(|e| shown(&e)),
            ControlRequest::MemoryForget { id } => self.forget(&id).await,
            ControlRequest::ConfigShow {} => {
                let rows = self
                    .settings
                    .show()
                    .into_iter()
                    .map(|s| json!({"key": s.key, "value": s.value, "from": s.provenance.to_string()}));
                Ok(Value::Array(rows.collect()))
            }
            ControlRequest::AuditTail { count } => {
                let mut rows = self.audit.newest(None, count as usize).await.map_err(failed)?;
                rows.reverse();
                Ok(Value::Array(rows))
            }
            ControlRequest::StopTurn { conversation } => {
                Ok(json!({"stopped": self.desk.cancel(&conversation)}))
            }
            ControlRequest::Answers { conversation, limit } => {
                self.answers(&conversation, limit as usize).await.map_err(failed)
            }
            ControlRequest::AnswerShown { message } => {
                let id = Ulid::from_string(&message).map_err(|_| {
                    let what = format!("there is no message \"{message}\"");
                    Refusal::new(RefusalKind::NotFound, what, "See `hearth chat`.")
                })?;
                let shown = Batch::new().put([outbox::delivered(CONSOLE, id)]);
                self.memory.store.append(shown).await.map_err(failed)?;
                Ok(json!({}))
            }
            ControlRequest::Unlock { .. } => Err(Refusal::new(
                RefusalKind::Unsupported,
                "the store is open already",
                "Nothing has to be done.",
            )),
        }
    }

    /// What the console was not there to hear.
    async fn answers(&self, conversation: &str, limit: usize) -> Result<Value, StoreError> {
        let (store, name) = (self.memory.store.clone(), conversation.to_owned());
        let rows = blocking(move || {
            let Some(session) = sessions::find(&store, &name)? else { return Ok(Vec::new()) };
            let mut rows = outbox::pending(&store, CONSOLE, ANSWERS_READ)?;
            rows.retain(|row| row.session == session.id);
            Ok(rows)
        });
        let rows = rows.await?.into_iter().take(limit);
        Ok(rows.map(|row| json!({"message": row.message.to_string(), "outcome": row.outcome})).collect())
    }

    async fn status(&self) -> Value {
        let figures = self.memory.store.figures();
        let (size, hash) = self.memory.store.audit_end();
        let head = Remembered { size, hash };
        let models: Vec<_> = self
            .settings
            .endpoints
            .iter()
            .map(|e| json!({"name": e.name, "model": e.model, "remote": e.remote}))
            .collect();
        let uptime = self.clock.since_boot().saturating_sub(self.started);
        json!({
            "ready": true,
            "version": env!("CARGO_PKG_VERSION"),
            "home": self.settings.home.name,
            "uptime_s": uptime.as_secs(),
            "turns": self.desk.busy(),
            "models": models,
            "clock_set": self.clock.wall_ms().is_some(),
            "memory_kib": doctor::resident_kib(),
            "audit": {
                "identity": hex(&self.identity), "entries": size, "head": head.to_string(), "code": short_code(&hash),
            },
            "store": {
                "syncs": figures.syncs, "journal_bytes": figures.journal_bytes, "entries": figures.entries,
                "commits": figures.checkpoints, "segment": figures.segment,
            },
        })
    }

    async fn model_findings(&self) -> Vec<Finding> {
        let reports = tokio::time::timeout(PROBE, self.models.probe()).await.unwrap_or_default();
        let mut findings = Vec::new();
        for (report, provider) in reports.iter().zip(self.settings.endpoints.iter()) {
            let name = format!("model server \"{}\"", report.name);
            match &report.server {
                Err(failure) => {
                    findings.push(Finding::bad(
                        name,
                        failure.to_string(),
                        "Start the server, or correct its address in the settings.",
                    ));
                    continue;
                }
                Ok(ServerKind::Ollama(version)) => {
                    findings.push(Finding::good(name, format!("Ollama {version} answers")))
                }
                Ok(_) => findings.push(Finding::good(name, format!("answers at {}", report.endpoint))),
            }
            let name = format!("model \"{}\"", report.model);
            match report.model_present {
                Some(false) => findings.push(Finding::bad(
                    name.clone(),
                    "is not on the server".to_owned(),
                    &format!("Install it (for Ollama: ollama pull {}).", report.model),
                )),
                Some(true) => findings.push(Finding::good(name.clone(), "is on the server".to_owned())),
                None => {}
            }
            if report.tools == Some(false) {
                findings.push(Finding::bad(
                    name.clone(),
                    "cannot call tools".to_owned(),
                    "Choose a model that can.",
                ));
            }
            let wanted = provider.context_tokens.map(u64::from);
            if let (Some(has), Some(wanted)) = (report.context_tokens, wanted)
                && has < wanted
            {
                findings.push(Finding::bad(
                    name,
                    format!("has a context of {has} tokens, and {wanted} are configured"),
                    "Lower context_tokens of this endpoint.",
                ));
            }
        }
        findings
    }

    async fn list(&self, query: Option<String>, limit: usize) -> Result<Value, Refusal> {
        let rows: Vec<Value> = match query {
            Some(query) => {
                let entries = self.memory.all().await.map_err(|e| {
                    let remedy = "Without a search text the newest are listed; forget some of them.";
                    Refusal::new(RefusalKind::Internal, e.to_string(), remedy)
                })?;
                search(&entries, &query, limit).into_iter().map(shown).collect()
            }
            // However many there are, the newest can be listed and forgotten.
            None => self.memory.newest(limit).await.map_err(failed)?.iter().map(shown).collect(),
        };
        Ok(Value::Array(rows))
    }

    async fn entry(&self, id: &str) -> Result<hearth_tools::MemoryEntry, Refusal> {
        let parsed = Ulid::from_string(id).map_err(|_| unknown(id))?;
        let found = self.memory.get(parsed).await.map_err(|_| unknown(id))?;
        found.ok_or_else(|| unknown(id))
    }

    /// Forgetting is an effect like any other: in the audit log, and durable.
    async fn forget(&self, id: &str) -> Result<Value, Refusal> {
        let entry = self.entry(id).await?;
        let scope = hearth_scope::Scope::parse("memory.forget")
            .map_err(|e| Refusal::new(RefusalKind::Internal, e.to_string(), ""))?;
        let entry_kind =
            Kind::MemoryAccess { turn: Ulid(0), operation: "forget".to_owned(), scope, entries: 1 };
        let batch = Batch::new().audit(entry_kind).put([memory::forget(entry.id)]);
        self.memory.store.commit(batch).await.map_err(failed)?;
        let store = self.memory.store.clone();
        let gone = blocking(move || memory::get(&store, entry.id)).await.map_err(failed)?.is_none();
        Ok(json!({"forgotten": id, "verified": gone}))
    }
}

/// A channel's way to the answers.
#[derive(Clone)]
pub struct ControlGateway(pub Arc<ControlDesk>);

impl Control for ControlGateway {
    fn request(&self, origin: &Origin, request: ControlRequest) -> BoxFuture<'_, Result<Value, Refusal>> {
        let origin = origin.clone();
        Box::pin(async move { self.0.answer(origin, request).await })
    }
}
