//! The tools of the daemon, in a fixed order.

use std::sync::Arc;

use hearth_scope::{Effective, Grant, Need, ToolName};
use hearth_turn::{ToolCall, ToolError, ToolOutcome, ToolSpec};
use serde_json::{Map, Value};

use crate::context::ToolContext;
use crate::fs::{self, Roots};
use crate::introspect::{Audit, Config};
use crate::memory::{Forget, Memory, Read, Write};
use crate::net::{Fetch, FetchPort};
use crate::port::{AuditPort, Clock, ConfigPort, MemoryPort};
use crate::shell::{Exec, Shell};
use crate::time::Now;
use crate::tool::{Adapter, Tool, Typed};

/// Every tool that the configuration allows.
pub struct Registry {
    tools: Vec<Arc<dyn Tool>>,
}

/// Collects what tools need. A tool whose port is missing is left out.
#[derive(Default)]
pub struct Builder {
    clock: Option<Arc<dyn Clock>>,
    memory: Option<Arc<dyn MemoryPort>>,
    roots: Option<Arc<Roots>>,
    fetch: Option<Arc<dyn FetchPort>>,
    audit: Option<Arc<dyn AuditPort>>,
    config: Option<Arc<dyn ConfigPort>>,
    shell: Option<Shell>,
    extra: Vec<Arc<dyn Tool>>,
    disabled: Vec<String>,
}

impl Builder {
    /// Adds `time.now`; the memory tools need it for ages.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Adds `memory.read`, `memory.write` and `memory.forget`.
    pub fn memory(mut self, memory: Arc<dyn MemoryPort>) -> Self {
        self.memory = Some(memory);
        self
    }

    /// Adds the file tools, when there is a root.
    pub fn roots(mut self, roots: Roots) -> Self {
        self.roots = (!roots.is_empty()).then(|| Arc::new(roots));
        self
    }

    /// Adds `net.fetch`.
    pub fn fetch(mut self, fetch: Arc<dyn FetchPort>) -> Self {
        self.fetch = Some(fetch);
        self
    }

    /// Adds `audit.read`.
    pub fn audit(mut self, audit: Arc<dyn AuditPort>) -> Self {
        self.audit = Some(audit);
        self
    }

    /// Adds `config.read`.
    pub fn config(mut self, config: Arc<dyn ConfigPort>) -> Self {
        self.config = Some(config);
        self
    }

    /// Adds `shell.exec`.
    pub fn shell(mut self, shell: Shell) -> Self {
        self.shell = Some(shell);
        self
    }

    /// Adds a tool after the built-in ones.
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        self.extra.push(tool);
        self
    }

    /// Leaves out the tools of these names.
    pub fn without(mut self, names: &[&str]) -> Self {
        self.disabled.extend(names.iter().map(|n| (*n).to_owned()));
        self
    }

    /// The registry, in an order that does not depend on the order of the calls.
    pub fn build(self) -> Registry {
        let mut tools = Vec::new();
        if let Some(clock) = self.clock.clone() {
            add(&mut tools, Now { clock });
        }
        if let (Some(port), Some(clock)) = (self.memory, self.clock) {
            let memory = Arc::new(Memory::new(port, clock));
            add(&mut tools, Read(memory.clone()));
            add(&mut tools, Write(memory.clone()));
            add(&mut tools, Forget(memory));
        }
        if let Some(roots) = self.roots {
            add(&mut tools, fs::Read(roots.clone()));
            add(&mut tools, fs::List(roots.clone()));
            add(&mut tools, fs::Metadata(roots.clone()));
            add(&mut tools, fs::Write(roots.clone()));
            add(&mut tools, fs::Delete(roots));
        }
        if let Some(port) = self.fetch {
            add(&mut tools, Fetch(port));
        }
        if let Some(port) = self.audit {
            add(&mut tools, Audit(port));
        }
        if let Some(port) = self.config {
            add(&mut tools, Config(port));
        }
        if let Some(shell) = self.shell {
            add(&mut tools, Exec(shell));
        }
        tools.extend(self.extra);
        tools.retain(|t| !self.disabled.contains(&t.spec().name.to_string()));
        Registry { tools }
    }
}

fn add(tools: &mut Vec<Arc<dyn Tool>>, tool: impl Typed) {
    tools.push(Arc::new(Adapter::new(tool)));
}

impl Registry {
    /// Starts an empty registry.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Every tool.
    pub fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.iter().map(|t| t.spec())
    }

    /// The tools of which some call could be granted, in the fixed order.
    pub fn offered(&self, effective: &Effective) -> Vec<ToolSpec> {
        let reachable = self.tools.iter().filter(|t| t.reachable(effective.set()));
        reachable.map(|t| t.spec().clone()).collect()
    }

    /// The tool of that name.
    pub fn get(&self, name: &ToolName) -> Option<&dyn Tool> {
        self.tools.iter().find(|t| t.spec().name == *name).map(|t| &**t)
    }

    /// What a call needs; an error when there is no such tool or the arguments
    /// do not fit.
    pub fn need(&self, name: &ToolName, args: &Map<String, Value>) -> Result<Need, ToolError> {
        self.find(name)?.need(args)
    }

    /// Runs a call. The grant has to be for this tool, this call and the scopes
    /// that these arguments need.
    pub async fn run(&self, grant: Grant, call: ToolCall, ctx: &ToolContext) -> ToolOutcome {
        let checked = self.find(&call.name).and_then(|tool| {
            let need = tool.need(&call.arguments)?;
            let fits = *grant.tool() == call.name
                && grant.call() == call.id
                && need.scopes.iter().all(|s| grant.scopes().contains(s));
            let mismatch = || ToolError::Refused("the grant is for another call".into());
            fits.then_some(tool).ok_or_else(mismatch)
        });
        match checked {
            Ok(tool) => tool.run(grant, call.arguments, ctx).await,
            Err(error) => ToolOutcome::Failed(error),
        }
    }

    fn find(&self, name: &ToolName) -> Result<&dyn Tool, ToolError> {
        self.get(name).ok_or_else(|| ToolError::NotFound(format!("tool {name}")))
    }
}

#[cfg(test)]
mod tests;
