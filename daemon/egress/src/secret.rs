//! Values that must not be printed.

use std::fmt;

use zeroize::Zeroizing;

/// A secret text: wiped when dropped, never shown by `Debug`, no `Display`.
///
/// Copies made by the HTTP library are outside of our reach; wiping is hygiene,
/// not proof.
#[derive(Clone)]
pub struct SecretValue(Zeroizing<String>);

impl SecretValue {
    /// Takes a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// The secret itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A value with a text in front, for example `Bearer `.
    pub fn prefixed(&self, prefix: &str) -> Self {
        let mut text = Zeroizing::new(String::with_capacity(prefix.len() + self.0.len()));
        text.push_str(prefix);
        text.push_str(&self.0);
        Self(text)
    }

    /// `text` with every occurrence of the secret replaced. Secrets of fewer
    /// than four bytes are left alone: they would match everywhere.
    pub fn redact(&self, text: &str) -> String {
        if self.0.len() < 4 {
            return text.to_owned();
        }
        text.replace(self.0.as_str(), "[secret]")
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}
