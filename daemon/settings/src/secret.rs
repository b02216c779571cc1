//! Secrets and where they lie.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Largest secret, in bytes.
pub const SECRET_MAX: u64 = 64 * 1024;

/// The bytes of a secret: wiped when dropped, without `Debug` or `Display`.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The bytes as they lie in the file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The secret as one line of visible ASCII, without the line break at its end.
    pub fn text(&self) -> Result<&str, SecretError> {
        let text = std::str::from_utf8(&self.0).map_err(|_| SecretError::NotText)?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(SecretError::NotText);
        }
        Ok(text)
    }
}

/// Where a secret lies. Holds no secret itself, so it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretRef {
    /// A file that only its owner may read.
    File(PathBuf),
    /// A systemd credential.
    Credential {
        /// Its name.
        name: String,
        /// The folder that systemd made for this service, if it did.
        directory: Option<PathBuf>,
    },
}

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// No credential folder.
    #[error("the service has no credentials ($CREDENTIALS_DIRECTORY is not set)")]
    NoCredentials,
    /// No such file.
    #[error("{0} does not exist")]
    Missing(PathBuf),
    /// Others may read it.
    #[error("{path} can be read or changed by others (mode {mode:04o})")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A folder, a pipe, or the like.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// Empty, or more than 64 KiB.
    #[error("{0} is empty or larger than 64 KiB")]
    Size(PathBuf),
    /// Not one line of visible ASCII.
    #[error("the secret is not one line of visible ASCII")]
    NotText,
    /// The system refused.
    #[error("{path} cannot be read: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl SecretError {
    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            Self::NoCredentials => {
                "Start the daemon through its systemd unit with LoadCredential=, or name a file instead."
                    .into()
            }
            Self::Missing(_) => "Create the file, or correct the setting.".into(),
            Self::Open { path, .. } => format!("Run: chmod 400 {}", path.display()),
            Self::NotAFile(_) => "Name a regular file.".into(),
            Self::Size(_) | Self::NotText => "Put the secret, and nothing else, into the file.".into(),
            Self::Io { .. } => "Let the daemon's user own the file, with mode 0400.".into(),
        }
    }
}

impl SecretRef {
    /// Reads the secret. The permission check is made on the opened file, so
    /// it cannot be swapped in between. A file must be closed to group and
    /// others; of a credential, which systemd may open to the service by an
    /// access list that shows as group bits, only others are barred.
    pub fn read(&self) -> Result<Secret, SecretError> {
        let (path, barred) = match self {
            Self::File(path) => (path.clone(), 0o077),
            Self::Credential { name, directory } => {
                (directory.as_ref().ok_or(SecretError::NoCredentials)?.join(name), 0o037)
            }
        };
        read(&path, barred)
    }

    /// How `config show` names it.
    pub fn shown(&self) -> String {
        match self {
            Self::File(path) => format!("set (from file {})", path.display()),
            Self::Credential { name, .. } => format!("set (from credential {name})"),
        }
    }
}

fn read(path: &Path, barred: u32) -> Result<Secret, SecretError> {
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => SecretError::Missing(path.to_owned()),
        _ => SecretError::Io { path: path.to_owned(), source },
    };
    // A pipe would block the open: look first, then look again at what was opened.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(SecretError::NotAFile(path.to_owned()));
    }
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(SecretError::NotAFile(path.to_owned()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & barred != 0 {
        return Err(SecretError::Open { path: path.to_owned(), mode });
    }
    if metadata.len() == 0 || metadata.len() > SECRET_MAX {
        return Err(SecretError::Size(path.to_owned()));
    }
    // Room for all of it at once: a vector that grows leaves copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
    file.take(metadata.len()).read_to_end(&mut bytes).map_err(io)?;
    Ok(Secret(bytes))
}
