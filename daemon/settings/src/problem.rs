//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance {
    /// Built in.
    Default,
    /// A line of the configuration file; 0 stands for the file as a whole.
    File {
        /// The file.
        path: Arc<Path>,
        /// Line, counted from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment {
        /// Its name.
        name: String,
    },
    /// A systemd credential.
    Credential {
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { name } => write!(f, "environment {name}"),
            Self::Credential { name } => write!(f, "credential {name}"),
        }
    }
}

/// One thing that is wrong, in words that quote no text value: a misplaced
/// secret must not reach a log through the message that complains about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where to look.
    pub place: Provenance,
    /// The dotted key; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub remedy: String,
    /// True when the daemon starts nevertheless.
    pub warning: bool,
}

impl Problem {
    pub(crate) fn new(
        place: Provenance,
        key: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (key, what, remedy) = (key.into(), what.into(), remedy.into());
        Self { place, key, what, remedy, warning: false }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}. {}", self.what, self.remedy)
    }
}

/// All problems of a configuration, in order of their place; at most 100.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub(crate) fn sorted(mut problems: Vec<Problem>) -> Self {
        let rank = |p: &Problem| match &p.place {
            Provenance::File { line, .. } => (0, *line),
            Provenance::Environment { .. } => (1, 0),
            Provenance::Credential { .. } => (2, 0),
            Provenance::Default => (3, 0),
        };
        problems.sort_by(|a, b| (rank(a), &a.key).cmp(&(rank(b), &b.key)));
        problems.truncate(100);
        Self(problems)
    }
}
