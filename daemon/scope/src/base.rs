//! The table of known permissions: each base, the form of its qualifier, and
//! its row of ceilings. A base without a ceiling cannot be written down.

use crate::TrustTier;

/// How the qualifier of a base is written and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Absolute path; `*` within a segment, `**` for any depth. Stands for what
    /// it names and everything below.
    Path,
    /// `http` or `https` URL: same scheme, host and port, path by segment.
    Url,
    /// Host name, or `*.` and a suffix for every name below it.
    Domain,
    /// Comma-separated program names.
    Commands,
    /// Text in which `*` stands for any run of characters.
    Glob,
    /// `group` or `group/member`, with `*` inside either.
    Pair,
    /// MQTT topic filter with `+` and `#`.
    Topic,
    /// No qualifier is possible.
    Bare,
}

/// What a tier's ceiling lets through for one base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every held form.
    Granted,
    /// Held forms whose qualifier narrows something; the bare base does not count.
    QualifiedOnly,
    /// What a held form has in common with this scope.
    Only(&'static str),
    /// Nothing.
    Denied,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    /// The dotted name.
    pub name: &'static str,
    /// The form of its qualifier.
    pub form: Form,
    trusted: Rule,
    semi_trusted: Rule,
    untrusted: Rule,
}

impl Base {
    /// The ceiling of `tier` for this base.
    pub fn rule(&self, tier: TrustTier) -> Rule {
        match tier {
            TrustTier::Kernel => Rule::Granted,
            TrustTier::Trusted => self.trusted,
            TrustTier::SemiTrusted => self.semi_trusted,
            TrustTier::Untrusted => self.untrusted,
        }
    }

    /// Finds the row of `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        BASES.iter().find(|base| base.name == name)
    }
}

const fn row(name: &'static str, form: Form, semi_trusted: Rule, untrusted: Rule) -> Base {
    Base { name, form, trusted: Rule::Granted, semi_trusted, untrusted }
}

use Rule::{Denied, Granted, Only, QualifiedOnly};

/// Every known base. Narrower tools get a row of their own; rows are not loosened.
#[rustfmt::skip]
pub const BASES: &[Base] = &[
    //  base                form            semi-trusted   untrusted
    row("fs.read",          Form::Path,     QualifiedOnly, Denied),
    row("fs.write",         Form::Path,     QualifiedOnly, Denied),
    row("fs.delete",        Form::Path,     Denied,        Denied),
    row("fs.metadata",      Form::Path,     Granted,       Denied),
    row("git.read",         Form::Path,     QualifiedOnly, Denied),
    row("git.write",        Form::Path,     Denied,        Denied),
    row("net.fetch",        Form::Url,      Granted,       Denied),
    row("net.post",         Form::Url,      QualifiedOnly, Denied),
    row("net.dns",          Form::Domain,   Granted,       Denied),
    row("shell.exec",       Form::Commands, Denied,        Denied),
    row("shell.spawn",      Form::Commands, Denied,        Denied),
    row("llm.call",         Form::Glob,     Granted,       Denied),
    row("llm.embed",        Form::Glob,     Granted,       Denied),
    row("memory.read",      Form::Glob,     Granted,       Only("memory.read:scope:public:*")),
    row("memory.write",     Form::Glob,     Granted,       Denied),
    row("memory.forget",    Form::Glob,     QualifiedOnly, Denied),
    row("channel.send",     Form::Glob,     QualifiedOnly, Denied),
    row("channel.receive",  Form::Glob,     QualifiedOnly, Denied),
    row("audit.read",       Form::Glob,     QualifiedOnly, Only("audit.read:public")),
    row("config.read",      Form::Glob,     Granted,       Denied),
    row("config.write",     Form::Glob,     Denied,        Denied),
    row("home.read",        Form::Pair,     Granted,       Denied),
    row("home.control",     Form::Pair,     QualifiedOnly, Denied),
    row("mqtt.publish",     Form::Topic,    QualifiedOnly, Denied),
    row("schedule.create",  Form::Glob,     QualifiedOnly, Denied),
    row("schedule.read",    Form::Glob,     Granted,       Denied),
    row("schedule.delete",  Form::Glob,     QualifiedOnly, Denied),
    row("schedule.run",     Form::Glob,     QualifiedOnly, Denied),
    row("mission.create",   Form::Glob,     QualifiedOnly, Denied),
    row("mission.read",     Form::Glob,     Granted,       Denied),
    row("mission.cancel",   Form::Glob,     QualifiedOnly, Denied),
    row("mission.gate",     Form::Glob,     QualifiedOnly, Denied),
    row("approval.resolve", Form::Bare,     Denied,        Denied),
    row("skills.propose",   Form::Bare,     Denied,        Denied),
    row("skills.list",      Form::Bare,     Denied,        Denied),
    row("skills.invoke",    Form::Bare,     Denied,        Denied),
    row("agent.delegate",   Form::Glob,     Denied,        Denied),
    row("mcp.call",         Form::Pair,     QualifiedOnly, Denied),
];
