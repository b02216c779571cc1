//! The trait that the daemon calls, and the typed form that tools are written in.

use std::future::Future;
use std::time::Duration;

use hearth_scope::{CapabilitySet, EffectClass, Exposure, Grant, Integrity, Label, Need, Scope, ToolName};
use hearth_turn::{ToolError, ToolOutcome, ToolSpec, Verification};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::context::ToolContext;
use crate::port::BoxFuture;
use crate::text;

/// A tool.
pub trait Tool: Send + Sync {
    /// What the model and the daemon know of it.
    fn spec(&self) -> &ToolSpec;

    /// True when some call of it could be granted by `held`.
    fn reachable(&self, held: &CapabilitySet) -> bool;

    /// What a call with these arguments needs; an error when they do not fit.
    fn need(&self, args: &Map<String, Value>) -> Result<Need, ToolError>;

    /// Runs one call. Use [`crate::Registry::run`], which checks that the grant
    /// was given for this tool and these arguments.
    fn run<'a>(
        &'a self,
        grant: Grant,
        args: Map<String, Value>,
        ctx: &'a ToolContext,
    ) -> BoxFuture<'a, ToolOutcome>;
}

/// Which scope a tool stands under.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reach {
    /// None: callable in every turn.
    Always,
    /// Every call needs this scope without a qualifier.
    Bare(&'static str),
    /// Calls need this base with a qualifier that depends on the arguments.
    Qualified(&'static str),
}

/// The constant part of a [`ToolSpec`].
pub(crate) struct Meta {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) description: &'static str,
    /// JSON Schema of the arguments. Kept short: it is sent with every request.
    pub(crate) schema: &'static str,
    pub(crate) effect: EffectClass,
    pub(crate) timeout: Duration,
    pub(crate) reach: Reach,
}

/// What a call did.
pub(crate) struct Done {
    output: Value,
    verified: Verification,
    label: Label,
}

impl Done {
    /// A result without an effect, and who could have written what is in it.
    pub(crate) fn read(output: Value, label: Label) -> Self {
        Self { output, verified: Verification::NotApplicable, label }
    }

    /// An effect that was looked at afterwards and is there. The result is made
    /// of our own words and of what the call itself said.
    pub(crate) fn verified(output: Value) -> Self {
        Self { output, verified: Verification::Verified, label: PRIVATE }
    }

    /// An effect that was not looked at, and what came back from it.
    pub(crate) fn unverified(output: Value, label: Label) -> Self {
        Self { output, verified: Verification::Unverified, label }
    }
}

/// Our own words about the home.
pub(crate) const PRIVATE: Label = Label::new(Integrity::Owner, Exposure::Home);

/// A tool with typed arguments.
pub(crate) trait Typed: Send + Sync + 'static {
    /// Arguments; the type denies unknown fields.
    type Args: DeserializeOwned + Send;
    const META: Meta;

    /// The scopes that a call needs, and its redacted subject.
    fn need(&self, args: &Self::Args) -> Result<(Vec<Scope>, String), ToolError>;

    fn call(
        &self,
        args: Self::Args,
        ctx: &ToolContext,
    ) -> impl Future<Output = Result<Done, ToolError>> + Send;
}

/// Makes a [`Tool`] of a typed one.
pub(crate) struct Adapter<T> {
    spec: ToolSpec,
    tool: T,
}

impl<T: Typed> Adapter<T> {
    pub(crate) fn new(tool: T) -> Self {
        let Meta { name, version, description, schema, effect, timeout, .. } = T::META;
        let spec = ToolSpec {
            name: ToolName::parse(name).expect("names of built-in tools are checked by a test"),
            version,
            description: description.to_owned(),
            schema: serde_json::from_str(schema).expect("built-in schemas are checked by a test"),
            effect,
            timeout,
        };
        Self { spec, tool }
    }

    fn parse(args: Map<String, Value>) -> Result<T::Args, ToolError> {
        serde_json::from_value(Value::Object(args))
            .map_err(|e| ToolError::InvalidArguments(text::shorten(&e.to_string(), 200)))
    }
}

impl<T: Typed> Tool for Adapter<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn reachable(&self, held: &CapabilitySet) -> bool {
        match T::META.reach {
            Reach::Always => true,
            Reach::Bare(base) => scope(base, None).is_ok_and(|s| held.grants(&s)),
            Reach::Qualified(base) => held.iter().any(|s| s.base() == base),
        }
    }

    fn need(&self, args: &Map<String, Value>) -> Result<Need, ToolError> {
        let (scopes, subject) = self.tool.need(&Self::parse(args.clone())?)?;
        Ok(Need { scopes, subject: text::shorten(&subject, 256), effect: self.spec.effect })
    }

    fn run<'a>(
        &'a self,
        _grant: Grant,
        args: Map<String, Value>,
        ctx: &'a ToolContext,
    ) -> BoxFuture<'a, ToolOutcome> {
        Box::pin(async move {
            let limit = ctx.deadline.min(Instant::now() + self.spec.timeout);
            let work = async { self.tool.call(Self::parse(args)?, ctx).await };
            match guarded(work, self.spec.effect, limit, ctx).await {
                Ok(Done { output, verified, label }) => ToolOutcome::Completed { output, verified, label },
                Err(error) => ToolOutcome::Failed(error),
            }
        })
    }
}

/// How much longer than its limit an effect that cannot be stopped is waited for.
/// Shorter than the time after which the driver of a turn gives a call up.
const GRACE: Duration = Duration::from_secs(1);

/// Ends a call at its limit, and at once on cancel when that cannot leave an
/// effect behind that nobody saw. Dropping work that writes does not stop what it
/// already handed to a thread: it is waited for a little longer, and after that
/// it is [`ToolError::Unfinished`].
async fn guarded(
    work: impl Future<Output = Result<Done, ToolError>>,
    effect: EffectClass,
    limit: Instant,
    ctx: &ToolContext,
) -> Result<Done, ToolError> {
    let started = Instant::now();
    if ctx.cancel.is_cancelled() {
        return Err(ToolError::Cancelled);
    }
    if limit <= started {
        return Err(ToolError::TimedOut(Duration::ZERO));
    }
    let stoppable = effect.is_read_only() || effect == EffectClass::Send;
    let (end, late): (_, fn(Duration) -> ToolError) = match stoppable {
        true => (limit, ToolError::TimedOut),
        false => (limit + GRACE, ToolError::Unfinished),
    };
    tokio::select! {
        biased;
        () = ctx.cancel.cancelled(), if stoppable => Err(ToolError::Cancelled),
        result = tokio::time::timeout_at(end, work) => {
            result.unwrap_or_else(|_| Err(late(started.elapsed())))
        }
    }
}

/// `base`, or `base:qualifier`.
pub(crate) fn scope(base: &str, qualifier: Option<&str>) -> Result<Scope, ToolError> {
    let parsed = match qualifier {
        Some(qualifier) => Scope::qualified(base, qualifier),
        None => Scope::parse(base),
    };
    parsed.map_err(|e| ToolError::InvalidArguments(e.to_string()))
}
