//! What tools need, implemented over the store and the settings.

use hearth_scope::Integrity;
use std::path::PathBuf;
use std::sync::Arc;

use hearth_settings::Settings;
use hearth_store::{AuditLog, Batch, RealDisk, Store, StoreError, Table, memory};
use hearth_tools::{AuditPort, BoxFuture, ConfigPort, MemoryEntry, MemoryPort, NewMemory, Setting};
use hearth_turn::ToolError;
use hearth_vault::DataKey;
use serde_json::Value;
use ulid::Ulid;

use crate::clock::SystemClock;

fn failed(error: StoreError) -> ToolError {
    match error {
        StoreError::Full => ToolError::Limit("the disk is full".to_owned()),
        other => ToolError::Failed(other.to_string()),
    }
}

/// Runs a read of the store on a thread that may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(StoreError::Closed))
}

/// The memory of the household in the store.
#[derive(Clone)]
pub struct MemoryRows {
    /// The store.
    pub store: Store,
    /// Makes identities and times.
    pub clock: SystemClock,
}

fn to_label(label: Integrity) -> memory::Label {
    match label {
        Integrity::Owner => memory::Label::Owner,
        Integrity::Household => memory::Label::Household,
        Integrity::World => memory::Label::World,
    }
}

fn to_entry(row: memory::Row) -> MemoryEntry {
    let label = match row.label {
        memory::Label::Owner => Integrity::Owner,
        memory::Label::Household => Integrity::Household,
        memory::Label::World => Integrity::World,
    };
    let memory::Row { id, text, topic, source, created_ms, .. } = row;
    MemoryEntry { id, text, topic, label, source, created_ms }
}

impl MemoryPort for MemoryRows {
    fn version(&self) -> u64 {
        self.store.version(Table::Memory)
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<MemoryEntry>, ToolError>> {
        let store = self.store.clone();
        Box::pin(async move {
            let rows = blocking(move || memory::all(&store)).await.map_err(failed)?;
            Ok(rows.into_iter().map(to_entry).collect())
        })
    }

    fn get(&self, id: Ulid) -> BoxFuture<'_, Result<Option<MemoryEntry>, ToolError>> {
        let store = self.store.clone();
        Box::pin(async move {
            let row = blocking(move || memory::get(&store, id)).await.map_err(failed)?;
            Ok(row.map(to_entry))
        })
    }

    /// The row is in the journal before the outcome of the call is, and durable
    /// before the answer: no sync of its own.
    fn put(&self, entry: NewMemory) -> BoxFuture<'_, Result<Ulid, ToolError>> {
        let id = self.clock.new_id();
        let row = memory::Row {
            id,
            text: entry.text,
            topic: entry.topic,
            label: to_label(entry.label),
            source: entry.source,
            turn: Some(entry.turn.0),
            created_ms: self.clock.wall_ms(),
        };
        Box::pin(async move {
            self.store.append(Batch::new().put([memory::store(&row)])).await.map_err(failed)?;
            Ok(id)
        })
    }

    fn forget(&self, ids: Vec<Ulid>) -> BoxFuture<'_, Result<(), ToolError>> {
        let batch = Batch::new().put(ids.into_iter().map(memory::forget));
        Box::pin(async move { self.store.append(batch).await.map_err(failed) })
    }
}

/// The audit log on the disk of the store.
#[derive(Clone)]
pub struct AuditRows {
    /// Folder of the store.
    pub state: PathBuf,
    /// Opens it.
    pub key: DataKey,
}

impl MemoryRows {
    /// The newest entries, newest first.
    pub async fn newest(&self, limit: usize) -> Result<Vec<MemoryEntry>, StoreError> {
        let store = self.store.clone();
        let rows = blocking(move || memory::newest(&store, limit)).await?;
        Ok(rows.into_iter().map(to_entry).collect())
    }
}

impl AuditRows {
    /// The newest entries, newest first.
    pub async fn newest(&self, kind: Option<String>, limit: usize) -> Result<Vec<Value>, StoreError> {
        let this = self.clone();
        blocking(move || {
            let disk = RealDisk::read_only(&this.state);
            let wanted = kind.map(|k| format!("\"kind\":\"{k}\""));
            let keep = |line: &[u8]| {
                wanted.as_ref().is_none_or(|w| line.windows(w.len()).any(|part| part == w.as_bytes()))
            };
            let lines = AuditLog::new(&disk, &this.key).newest(limit, &keep)?;
            Ok(lines.iter().filter_map(|l| serde_json::from_slice(l).ok()).collect())
        })
        .await
    }
}

impl AuditPort for AuditRows {
    fn recent<'a>(
        &'a self,
        kind: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Value>, ToolError>> {
        let kind = kind.map(str::to_owned);
        Box::pin(async move { self.newest(kind, limit).await.map_err(failed) })
    }
}

/// The settings in force.
#[derive(Clone)]
pub struct SettingsRows(pub Arc<Settings>);

impl ConfigPort for SettingsRows {
    fn setting<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Setting>, ToolError>> {
        let shown = self.0.show().into_iter().find(|s| s.key == key);
        let setting = shown.map(|s| {
            if key.ends_with("api_key") || key.starts_with("unlock.") {
                Setting::Secret { set: !s.value.is_empty() }
            } else {
                Setting::Value(Value::String(s.value))
            }
        });
        Box::pin(async move { Ok(setting) })
    }
}
