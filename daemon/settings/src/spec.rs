//! How a key is declared, and how a value is checked against its declaration.

use std::path::PathBuf;
use std::time::Duration;

use hearth_scope::{CapabilitySet, Scope};
use toml::de::DeValue;

use crate::checks;
use crate::secret::SecretRef;

/// One key of a section.
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) default: Default,
    pub(crate) kind: Kind,
    pub(crate) doc: &'static [&'static str],
}

/// What holds when nobody sets a key; both sides are TOML text.
#[derive(Clone, Copy)]
pub(crate) enum Default {
    Set(&'static str),
    Unset { example: &'static str },
}

pub(crate) const fn set(text: &'static str) -> Default {
    Default::Set(text)
}

pub(crate) const fn unset(example: &'static str) -> Default {
    Default::Unset { example }
}

impl Default {
    pub(crate) fn example(self) -> &'static str {
        match self {
            Self::Set(text) | Self::Unset { example: text } => text,
        }
    }
}

/// Says what is wrong with a text, without quoting it.
pub(crate) type Check = fn(&str) -> Result<(), String>;

/// Type and range of a value.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Flag,
    Number { min: u64, max: u64, unit: &'static str },
    Real { min: f64, max: f64 },
    Choice(&'static [&'static str]),
    Text { max: usize, what: &'static str, check: Check },
    Texts { items: usize, max: usize, what: &'static str, check: Check },
    Secret,
}

pub(crate) const fn number(min: u64, max: u64, unit: &'static str) -> Kind {
    Kind::Number { min, max, unit }
}

pub(crate) const fn text(max: usize, what: &'static str, check: Check) -> Kind {
    Kind::Text { max, what, check }
}

pub(crate) const fn texts(items: usize, max: usize, what: &'static str, check: Check) -> Kind {
    Kind::Texts { items, max, what, check }
}

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Unset,
    Flag(bool),
    Number(u64),
    Real(f64),
    Text(String),
    Texts(Vec<String>),
    Secret(SecretRef),
}

/// What is wrong with a value, and what to do.
pub(crate) type Wrong = (String, String);

impl Kind {
    /// Type and range in words.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Flag => "true or false".into(),
            Self::Number { min, max, unit } => format!("a whole number, {min} to {max} {unit}"),
            Self::Real { min, max } => format!("a number, {min:.1} to {max:.1}"),
            Self::Choice(words) => {
                let quoted: Vec<_> = words.iter().map(|w| format!("\"{w}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Self::Text { max, what, .. } => format!("{what}, at most {max} bytes"),
            Self::Texts { items, max, what, .. } => {
                format!("a list of at most {items}, each {what} of at most {max} bytes")
            }
            Self::Secret => "{ file = \"/path\" } or { credential = \"name\" }".into(),
        }
    }

    /// Checks a value of the file.
    pub(crate) fn read_toml(self, value: &DeValue<'_>) -> Result<Value, Wrong> {
        let value = match (self, value) {
            (Self::Flag, DeValue::Boolean(b)) => Value::Flag(*b),
            (Self::Number { .. }, DeValue::Integer(n)) => {
                // Out of range of the type is out of the range of every key.
                let parsed = i128::from_str_radix(n.as_str(), n.radix()).unwrap_or(i128::MAX);
                return self.number(parsed);
            }
            (Self::Real { .. }, DeValue::Float(n)) => Value::Real(n.as_str().parse().unwrap_or(f64::NAN)),
            (Self::Real { .. }, DeValue::Integer(n)) => {
                Value::Real(i64::from_str_radix(n.as_str(), n.radix()).map_or(f64::NAN, |n| n as f64))
            }
            (Self::Choice(_) | Self::Text { .. }, DeValue::String(s)) => Value::Text(s.to_string()),
            (Self::Texts { .. }, DeValue::Array(items)) => {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                match texts.collect() {
                    Some(texts) => Value::Texts(texts),
                    None => return Err(self.mismatch("a list with something else than text")),
                }
            }
            (Self::Secret, DeValue::Table(table)) => {
                let mut entries = table.iter();
                match (entries.next(), entries.next()) {
                    (Some((kind, at)), None) => match at.get_ref().as_str() {
                        Some(at) => return secret(kind.get_ref(), at),
                        None => return Err(self.mismatch("something else")),
                    },
                    _ => {
                        return Err((
                            "names no or more than one source".into(),
                            format!("Write {}.", self.words()),
                        ));
                    }
                }
            }
            (Self::Secret, DeValue::String(_)) => {
                return Err((
                    "a secret must not be written into the configuration".into(),
                    format!(
                        "Move it to a file of mode 0400 and write {}. Treat the old one as known to others.",
                        self.words()
                    ),
                ));
            }
            (_, other) => {
                return Err(self.mismatch(match other {
                    DeValue::String(_) => "text",
                    DeValue::Integer(_) => "a whole number",
                    DeValue::Float(_) => "a number",
                    DeValue::Boolean(_) => "true or false",
                    DeValue::Datetime(_) => "a date",
                    DeValue::Array(_) => "a list",
                    DeValue::Table(_) => "a table",
                }));
            }
        };
        self.check(value)
    }

    /// Checks a value of the environment: lists are separated by commas, and a
    /// secret is named as `file:/path` or `credential:name`.
    pub(crate) fn read_text(self, text: &str) -> Result<Value, Wrong> {
        let value = match self {
            Self::Flag => Value::Flag(text.parse().map_err(|_| self.mismatch("something else"))?),
            Self::Number { .. } => {
                let parsed = text.parse::<i128>().map_err(|_| self.mismatch("something else"))?;
                return self.number(parsed);
            }
            Self::Real { .. } => Value::Real(text.parse().map_err(|_| self.mismatch("something else"))?),
            Self::Choice(_) | Self::Text { .. } => Value::Text(text.to_owned()),
            Self::Texts { .. } => Value::Texts(
                text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect(),
            ),
            Self::Secret => match text.split_once(':') {
                Some((kind @ ("file" | "credential"), at)) => return secret(kind, at),
                _ => {
                    return Err((
                        "a secret must not be put into the environment".into(),
                        "Use file:/path or credential:name. Treat the old secret as known to others.".into(),
                    ));
                }
            },
        };
        self.check(value)
    }

    fn number(self, n: i128) -> Result<Value, Wrong> {
        let Self::Number { min, max, unit } = self else { return Err(self.mismatch("a number")) };
        u64::try_from(n).ok().filter(|n| (min..=max).contains(n)).map(Value::Number).ok_or_else(|| {
            ("the number is out of range".to_owned(), format!("Allowed are {min} to {max} {unit}."))
        })
    }

    fn check(self, value: Value) -> Result<Value, Wrong> {
        match (self, &value) {
            (Self::Real { min, max }, Value::Real(n)) if !(min..=max).contains(n) => {
                Err(("the number is out of range".into(), format!("Allowed are {min:.1} to {max:.1}.")))
            }
            (Self::Choice(words), Value::Text(t)) if !words.contains(&t.as_str()) => {
                let hint = crate::suggest::closest(t, words.iter().copied())
                    .map_or(String::new(), |w| format!("Did you mean \"{w}\"? "));
                Err(("the word is not known here".into(), format!("{hint}Use {}.", self.words())))
            }
            (Self::Text { max, check, .. }, Value::Text(t)) => {
                one(t, max, check).map_err(|w| (w, format!("Use {}.", self.words())))?;
                Ok(value)
            }
            (Self::Texts { items, max, check, .. }, Value::Texts(list)) => {
                if list.len() > items {
                    return Err((
                        format!("the list has {} items", list.len()),
                        format!("Use {}.", self.words()),
                    ));
                }
                for (i, t) in list.iter().enumerate() {
                    one(t, max, check)
                        .map_err(|w| (format!("item {}: {w}", i + 1), format!("Use {}.", self.words())))?;
                }
                Ok(value)
            }
            _ => Ok(value),
        }
    }

    fn mismatch(self, found: &str) -> Wrong {
        (format!("holds {found}"), format!("Use {}.", self.words()))
    }
}

fn one(text: &str, max: usize, check: Check) -> Result<(), String> {
    if text.len() > max {
        return Err(format!("the text has {} bytes", text.len()));
    }
    if text.chars().any(|c| c.is_control() && c != '\n') {
        return Err("the text holds control characters".into());
    }
    check(text)
}

fn secret(kind: &str, at: &str) -> Result<Value, Wrong> {
    let wrong = |what: String| (what, format!("Use {}.", Kind::Secret.words()));
    match kind {
        "file" => {
            one(at, 1024, checks::absolute).map_err(wrong)?;
            Ok(Value::Secret(SecretRef::File(at.into())))
        }
        "credential" => {
            one(at, 128, checks::credential).map_err(wrong)?;
            // The folder is filled in when the layers are put together.
            Ok(Value::Secret(SecretRef::Credential { name: at.to_owned(), directory: None }))
        }
        _ => Err(wrong("names an unknown kind of source".into())),
    }
}

impl Value {
    /// The value as TOML, and a secret as words.
    pub(crate) fn shown(&self) -> String {
        // The same bytes as in TOML for every text without control characters.
        let quoted = |t: &String| toml::Value::String(t.clone()).to_string();
        match self {
            Self::Unset => "unset".into(),
            Self::Flag(b) => b.to_string(),
            Self::Number(n) => n.to_string(),
            Self::Real(n) => format!("{n:?}"),
            Self::Text(t) => quoted(t),
            Self::Texts(list) => {
                format!("[{}]", list.iter().map(quoted).collect::<Vec<_>>().join(", "))
            }
            Self::Secret(secret) => secret.shown(),
        }
    }
}

/// A Rust type that a checked value becomes. The declaration in `sections`
/// pairs each with a kind; a test loads the defaults and so proves each pair.
pub(crate) trait FromValue: Sized {
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty: $pattern:pat => $result:expr;)+) => {$(
        impl FromValue for $type {
            fn from_value(value: &Value) -> Option<Self> {
                match value { $pattern => $result, _ => None }
            }
        }
    )+};
}
from_value! {
    bool: Value::Flag(b) => Some(*b);
    u64: Value::Number(n) => Some(*n);
    u32: Value::Number(n) => u32::try_from(*n).ok();
    usize: Value::Number(n) => usize::try_from(*n).ok();
    f64: Value::Real(n) => Some(*n);
    Duration: Value::Number(n) => Some(Duration::from_secs(*n));
    String: Value::Text(t) => Some(t.clone());
    PathBuf: Value::Text(t) => Some(t.into());
    url::Url: Value::Text(t) => t.parse().ok();
    Vec<String>: Value::Texts(list) => Some(list.clone());
    SecretRef: Value::Secret(s) => Some(s.clone());
    CapabilitySet: Value::Texts(list) => Some(CapabilitySet::from_scopes(
        list.iter().map(|t| Scope::parse(t)).collect::<Result<Vec<_>, _>>().ok()?,
    ));
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Unset => Some(None),
            other => T::from_value(other).map(Some),
        }
    }
}

/// A word of a fixed list as an enum.
macro_rules! choice {
    ($(#[doc = $about:literal])+ $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)+ }) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            pub(crate) const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in the configuration.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl crate::spec::FromValue for $name {
            fn from_value(value: &crate::spec::Value) -> Option<Self> {
                match value {
                    crate::spec::Value::Text(t) => match t.as_str() {
                        $($word => Some(Self::$variant),)+
                        _ => None,
                    },
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use choice;

/// A section as the parser sees it.
pub(crate) struct SectionSpec {
    /// Dotted path of its header.
    pub(crate) path: &'static str,
    /// Most rows of a repeated table; 0 for a plain one.
    pub(crate) rows: usize,
    /// Rows that exist when nobody writes one.
    pub(crate) default_rows: usize,
    /// Keys that a row in the file must have.
    pub(crate) required: &'static [&'static str],
    pub(crate) about: &'static [&'static str],
    pub(crate) keys: &'static [Spec],
}

/// A section that can be built from checked values.
pub(crate) trait Section: Sized {
    const SPEC: SectionSpec;
    fn build(get: impl Fn(&str) -> Value) -> Self;
}

/// Declares a section once: the struct, its keys, and how one becomes the other.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident = $path:literal $([rows $rows:literal, default $default_rows:literal, required $required:expr])? {
            $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr, $kind:expr;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($(#[doc = $doc])+ pub $field: $type,)+ }

        impl crate::spec::Section for $name {
            const SPEC: crate::spec::SectionSpec = crate::spec::SectionSpec {
                path: $path,
                rows: 0 $(+ $rows)?,
                default_rows: 0 $(+ $default_rows)?,
                required: section!(@required $($required)?),
                about: &[$($about),+],
                keys: &[$(crate::spec::Spec {
                    name: stringify!($field),
                    default: $default,
                    kind: $kind,
                    doc: &[$($doc),+],
                }),+],
            };

            fn build(get: impl Fn(&str) -> crate::spec::Value) -> Self {
                Self { $($field: <$type as crate::spec::FromValue>::from_value(&get(stringify!($field)))
                    .expect("the kind of each key fits its type: a test loads them all")),+ }
            }
        }
    };
    (@required) => { &[] };
    (@required $required:expr) => { $required };
}
pub(crate) use section;
