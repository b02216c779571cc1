//! The layers: defaults, then the file, then the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::Shown;
use crate::problem::{Problem, Provenance};
use crate::secret::SecretRef;
use crate::sections::{SECTIONS, default_of};
use crate::spec::{Section, SectionSpec, Spec, Value, Wrong};
use crate::suggest::closest;

/// Largest configuration file, in bytes.
pub const FILE_MAX: u64 = 256 * 1024;
/// The file that is read when nobody names one; it may be missing.
pub const DEFAULT_FILE: &str = "/etc/hearth/hearth.toml";
/// The variable that names another file.
pub const CONFIG_VARIABLE: &str = "HEARTH_CONFIG";
/// The variable in which systemd names the folder of the service's credentials.
pub const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// All settings in the environment begin so.
const PREFIX: &str = "HEARTH_";

/// What the settings are loaded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    file: PathBuf,
    /// A file that somebody named has to be there.
    named: bool,
    environment: BTreeMap<String, Option<String>>,
    credentials: Option<PathBuf>,
}

impl Sources {
    /// Takes the file that was named on the command line, if one was, and the
    /// environment (of which only `HEARTH_...` and `CREDENTIALS_DIRECTORY` are
    /// kept). Without a named file `HEARTH_CONFIG` counts, then the default file.
    pub fn new<K: Into<OsString>, V: Into<OsString>>(
        file: Option<PathBuf>,
        environment: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let (mut kept, mut credentials, mut from_variable) = (BTreeMap::new(), None, None);
        for (name, value) in environment {
            let (Ok(name), value) = (name.into().into_string(), value.into()) else { continue };
            match name.as_str() {
                CONFIG_VARIABLE => from_variable = Some(PathBuf::from(value)),
                CREDENTIALS_VARIABLE => credentials = Some(PathBuf::from(value)),
                _ if name.starts_with(PREFIX) => {
                    kept.insert(name, value.into_string().ok());
                }
                _ => {}
            }
        }
        let named = file.or(from_variable);
        Self {
            named: named.is_some(),
            file: named.unwrap_or_else(|| DEFAULT_FILE.into()),
            environment: kept,
            credentials,
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    value: Value,
    provenance: Provenance,
}

/// Every key with its value and where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    entries: BTreeMap<String, Entry>,
    rows: BTreeMap<&'static str, usize>,
    file: Option<Arc<Path>>,
    credentials: Option<PathBuf>,
}

impl Resolved {
    pub(crate) fn section<S: Section>(&self) -> S {
        S::build(|name| self.value(&format!("{}.{name}", S::SPEC.path)))
    }

    pub(crate) fn rows<S: Section>(&self) -> Vec<S> {
        let path = S::SPEC.path;
        (1..=self.rows[path]).map(|i| S::build(|name| self.value(&format!("{path}.{i}.{name}")))).collect()
    }

    fn value(&self, key: &str) -> Value {
        match self.entries.get(key).map(|entry| &entry.value) {
            Some(Value::Secret(SecretRef::Credential { name, .. })) => Value::Secret(self.credential(name)),
            other => other.cloned().unwrap_or(Value::Unset),
        }
    }

    pub(crate) fn credential(&self, name: &str) -> SecretRef {
        SecretRef::Credential { name: name.to_owned(), directory: self.credentials.clone() }
    }

    pub(crate) fn provenance(&self, key: &str) -> Provenance {
        self.entries.get(key).map_or(Provenance::Default, |entry| entry.provenance.clone())
    }

    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(crate) fn show(&self) -> Vec<Shown> {
        let mut shown = Vec::new();
        for section in SECTIONS {
            for prefix in prefixes(section, self.rows.get(section.path).copied()) {
                for spec in section.keys {
                    let key = format!("{prefix}.{}", spec.name);
                    let Some(entry) = self.entries.get(&key) else { continue };
                    let provenance = match &entry.value {
                        Value::Secret(SecretRef::Credential { name, .. }) => {
                            Provenance::Credential { name: name.clone() }
                        }
                        _ => entry.provenance.clone(),
                    };
                    shown.push(Shown { value: entry.value.shown(), provenance, key });
                }
            }
        }
        shown
    }
}

/// The section's own path, or the path of each row.
fn prefixes(section: &SectionSpec, rows: Option<usize>) -> Vec<String> {
    match section.rows {
        0 => vec![section.path.to_owned()],
        _ => (1..=rows.unwrap_or(0)).map(|i| format!("{}.{i}", section.path)).collect(),
    }
}

/// The name of a key in the environment.
pub(crate) fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_uppercase())
}

/// Puts the layers on top of each other and collects everything that is wrong.
pub(crate) fn resolve(sources: &Sources) -> (Resolved, Vec<Problem>) {
    let mut loader = Loader {
        resolved: Resolved {
            entries: BTreeMap::new(),
            rows: BTreeMap::new(),
            file: None,
            credentials: sources.credentials.clone(),
        },
        problems: Vec::new(),
        path: Arc::from(sources.file.as_path()),
        text: String::new(),
    };
    match read(&sources.file, sources.named) {
        Ok(Some(text)) => {
            loader.text = text;
            loader.resolved.file = Some(loader.path.clone());
            loader.file();
        }
        Ok(None) => {}
        Err((what, remedy)) => loader.problem(None, "", what, remedy),
    }
    loader.environment(sources);
    loader.defaults();
    (loader.resolved, loader.problems)
}

/// The text of the file; nothing when it is missing and nobody named it.
fn read(path: &Path, named: bool) -> Result<Option<String>, Wrong> {
    let io = |e: std::io::Error| {
        let remedy = match e.kind() {
            ErrorKind::NotFound => "Create it, or name another one with --config or HEARTH_CONFIG.",
            ErrorKind::PermissionDenied => "Let the user that runs hearth read it.",
            _ => "Check the file and the disk it lies on.",
        };
        (format!("the file cannot be read ({e})"), remedy.to_owned())
    };
    let metadata = match std::fs::metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound && !named => return Ok(None),
        other => other.map_err(io)?,
    };
    if !metadata.is_file() {
        return Err(("this is not a regular file".into(), "Name a file.".into()));
    }
    if metadata.mode() & 0o002 != 0 {
        let remedy = format!("Run: chmod o-w {}", path.display());
        return Err(("everybody may change the file".into(), remedy));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|f| f.take(FILE_MAX + 1).read_to_end(&mut bytes)).map_err(io)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(("the file is larger than 256 KiB".into(), "Shorten it.".into()));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| ("the file is not UTF-8".into(), "Save it as UTF-8.".into()))
}

struct Loader {
    resolved: Resolved,
    problems: Vec<Problem>,
    path: Arc<Path>,
    text: String,
}

impl Loader {
    fn place(&self, offset: Option<usize>) -> Provenance {
        let line = offset.map_or(0, |offset| {
            let before = self.text.as_bytes().iter().take(offset);
            1 + before.filter(|b| **b == b'\n').count()
        });
        Provenance::File { path: self.path.clone(), line }
    }

    fn problem(
        &mut self,
        offset: Option<usize>,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let place = self.place(offset);
        self.problems.push(Problem::new(place, key, what, remedy));
    }

    fn file(&mut self) {
        let text = std::mem::take(&mut self.text);
        let (table, errors) = DeTable::parse_recoverable(&text);
        self.text.clone_from(&text);
        if errors.is_empty() {
            self.table("", table.get_ref(), None);
        }
        // What a parser recovered after an error is a guess: the syntax comes first.
        for error in errors.iter().take(20) {
            let offset = error.span().map(|s| s.start);
            // The message quotes no value; the rendered error would.
            let message = error.message().trim().replace('\n', ", ");
            self.problem(offset, "", message, "Correct the TOML here.");
        }
    }

    /// Walks one table of the file: `path` is where it stands, `section` what
    /// it may hold besides further sections.
    fn table(&mut self, path: &str, table: &DeTable<'_>, section: Option<(&SectionSpec, &str)>) {
        for (name, value) in table {
            let (offset, name) = (name.span().start, name.get_ref().as_ref());
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let leads = |s: &&SectionSpec| {
                s.path == below || s.path.strip_prefix(&below).is_some_and(|r| r.starts_with('.'))
            };
            if let Some((section, prefix)) = section
                && let Some(spec) = section.keys.iter().find(|spec| spec.name == name)
            {
                self.key(&format!("{prefix}.{name}"), spec, value.get_ref(), offset);
            } else if SECTIONS.iter().any(|s| leads(&s)) {
                self.below(&below, value.get_ref(), offset);
            } else {
                let shown: String = below.chars().filter(|c| !c.is_control()).take(80).collect();
                let remedy = nearest(path, name, section.map(|(s, _)| s));
                self.problem(Some(offset), &shown, "there is no such setting", remedy);
            }
        }
    }

    fn below(&mut self, path: &str, value: &DeValue<'_>, offset: usize) {
        let section = SECTIONS.iter().find(|s| s.path == path);
        match (section, value) {
            (Some(section), DeValue::Array(items)) if section.rows > 0 => {
                let rows: Vec<_> =
                    items.iter().filter_map(|i| Some((i.span().start, i.get_ref().as_table()?))).collect();
                if rows.len() != items.len() {
                    return self.problem(
                        Some(offset),
                        path,
                        "the list holds more than tables",
                        format!("Write [[{path}]]."),
                    );
                }
                if rows.is_empty() && section.default_rows > 0 {
                    let remedy = "Add a row, or leave it out altogether for the built-in one.";
                    return self.problem(Some(offset), path, "the list is empty", remedy);
                }
                if rows.len() > section.rows {
                    return self.problem(
                        Some(offset),
                        path,
                        format!("there are {} rows", rows.len()),
                        format!("At most {} are allowed.", section.rows),
                    );
                }
                self.resolved.rows.insert(section.path, rows.len());
                for (i, (at, row)) in rows.into_iter().enumerate() {
                    let prefix = format!("{path}.{}", i + 1);
                    self.table(path, row, Some((section, &prefix)));
                    for required in section.required {
                        if !row.iter().any(|(name, _)| name.get_ref() == required) {
                            self.problem(
                                Some(at),
                                &format!("{prefix}.{required}"),
                                "the row lacks this key",
                                "Add it.",
                            );
                        }
                    }
                }
            }
            (Some(section), DeValue::Table(table)) if section.rows == 0 => {
                self.table(path, table, Some((section, path)));
            }
            (None, DeValue::Table(table)) => self.table(path, table, None),
            (Some(section), _) if section.rows > 0 => {
                self.problem(Some(offset), path, "this is a repeated table", format!("Write [[{path}]]."));
            }
            _ => self.problem(Some(offset), path, "this is a table", format!("Write [{path}].")),
        }
    }

    fn key(&mut self, key: &str, spec: &Spec, value: &DeValue<'_>, offset: usize) {
        let place = self.place(Some(offset));
        self.checked(key, spec.kind.read_toml(value), place);
    }

    fn checked(&mut self, key: &str, value: Result<Value, Wrong>, place: Provenance) {
        match value {
            Ok(value) => {
                let entry = Entry { value, provenance: place };
                self.resolved.entries.insert(key.to_owned(), entry);
            }
            Err((what, remedy)) => self.problems.push(Problem::new(place, key, what, remedy)),
        }
    }

    fn environment(&mut self, sources: &Sources) {
        let names = all_variables();
        // Rows first, so that a later row can stand on an earlier one.
        let mut set: Vec<_> = Vec::new();
        for (name, value) in &sources.environment {
            match names.get(name.as_str()) {
                Some(target) => set.push((target, name, value)),
                None => {
                    let place = Provenance::Environment { name: name.clone() };
                    let hint = closest(name, names.keys().map(String::as_str))
                        .map_or("Remove it.".to_owned(), |known| format!("Did you mean {known}?"));
                    let mut problem = Problem::new(place, "", "no setting has this variable", hint);
                    problem.warning = true;
                    self.problems.push(problem);
                }
            }
        }
        set.sort_by_key(|((_, _, row, _), ..)| *row);
        for ((key, section, row, spec), name, value) in set {
            let place = Provenance::Environment { name: name.clone() };
            if *row > 0 {
                let rows = self.resolved.rows.entry(section.path).or_insert(section.default_rows);
                if *row > *rows + 1 {
                    let what = format!("row {row} is set, and there are {rows} rows");
                    self.problems.push(Problem::new(place, key, what, "Number the rows without gaps."));
                    continue;
                }
                *rows = (*rows).max(*row);
            }
            let value = match value {
                Some(text) if text.len() as u64 <= FILE_MAX => spec.kind.read_text(text),
                _ => Err(("the variable is too long or not UTF-8".into(), "Correct it.".into())),
            };
            self.checked(key, value, place);
        }
    }

    fn defaults(&mut self) {
        for section in SECTIONS {
            if section.rows > 0 {
                self.resolved.rows.entry(section.path).or_insert(section.default_rows);
            }
            for prefix in prefixes(section, self.resolved.rows.get(section.path).copied()) {
                for spec in section.keys {
                    self.resolved.entries.entry(format!("{prefix}.{}", spec.name)).or_insert_with(|| Entry {
                        value: default_of(spec),
                        provenance: Provenance::Default,
                    });
                }
            }
        }
    }
}

type Target = (String, &'static SectionSpec, usize, &'static Spec);

/// Every variable there is, with the key that it sets.
pub(crate) fn all_variables() -> BTreeMap<String, Target> {
    let mut names = BTreeMap::new();
    for section in SECTIONS {
        for (i, prefix) in prefixes(section, Some(section.rows)).into_iter().enumerate() {
            for spec in section.keys {
                let key = format!("{prefix}.{}", spec.name);
                let row = if section.rows == 0 { 0 } else { i + 1 };
                names.insert(variable(&key), (key, section, row, spec));
            }
        }
    }
    names
}

/// What somebody may have meant by an unknown key.
fn nearest(path: &str, name: &str, section: Option<&SectionSpec>) -> String {
    let here = section.map_or(&[][..], |s| s.keys).iter().map(|spec| spec.name);
    let below = SECTIONS.iter().filter_map(|s| match path {
        "" => s.path.split('.').next(),
        _ => s.path.strip_prefix(path)?.strip_prefix('.')?.split('.').next(),
    });
    if let Some(word) = closest(name, here.chain(below)) {
        return format!("Did you mean \"{word}\"?");
    }
    match SECTIONS.iter().find(|s| s.keys.iter().any(|spec| spec.name == name)) {
        Some(other) => format!("It belongs to [{}].", other.path),
        None => "Remove it; `hearth config reference` lists all settings.".to_owned(),
    }
}
