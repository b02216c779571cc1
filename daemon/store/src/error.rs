//! What can go wrong, in words for the owner.

use std::io;

use hearth_vault::VaultError;

/// Why the store refused. Display says what happened; [`StoreError::remedy`]
/// says what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// There is no store yet.
    #[error("there is no store yet")]
    NotInitialized,
    /// There is a store already.
    #[error("the store exists already")]
    AlreadyInitialized,
    /// A store cannot be made in a folder that holds something else.
    #[error("the folder of the store is not empty: \"{0}\" is in it")]
    NotEmpty(String),
    /// A store that was used has lost its marker.
    #[error("a store lies here without its marker: \"{0}\" is a part of it")]
    Unmarked(String),
    /// A store was created once, and a part of it is gone.
    #[error("the store was created here once, but \"{0}\" is missing")]
    Missing(String),
    /// A file is not what was written.
    #[error("\"{file}\" is damaged: {what}")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// The key does not open this store.
    #[error("the key does not open this store")]
    WrongKey,
    /// Written by a newer version.
    #[error("\"{0}\" was written by a newer version of Hearth")]
    NewerFormat(String),
    /// Another process has it open.
    #[error("another process uses this store")]
    Locked,
    /// The disk is full.
    #[error("the disk is full")]
    Full,
    /// A batch is too large.
    #[error("a record of {0} bytes is too large for the store")]
    TooLarge(usize),
    /// There are more rows than are read at once.
    #[error("there are more than {limit} {what}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many are read at most.
        limit: usize,
    },
    /// Reading or writing failed.
    #[error("\"{file}\": {what}")]
    Io {
        /// The file.
        file: String,
        /// The system's words.
        what: String,
    },
    /// More requests wait than the disk can serve.
    #[error("the disk does not keep up")]
    Busy,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// An earlier write failed: nothing is written any more until a restart.
    #[error("writing has stopped after a failure: {0}")]
    Frozen(String),
}

impl StoreError {
    /// What the owner can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotInitialized => "Run `hearth init` once.",
            Self::AlreadyInitialized => {
                "Nothing was changed. To begin anew, move its folder and the marker file away."
            }
            Self::Unmarked(_) => {
                "Nothing was changed. To use the store, put the file named as paths.marker back, even an empty one; to begin anew, move the folder away."
            }
            Self::NotEmpty(_) => "Nothing was changed. Name an empty or a new folder as paths.state.",
            Self::Missing(_) => {
                "If it lies on another disk, attach that and start again; else restore a backup. To give the old data up, move its folder and the marker file away and run `hearth init`."
            }
            Self::Damaged { .. } => "Do not delete anything. Check the disk, then restore a backup.",
            Self::WrongKey => {
                "Use the key file, credential or passphrase that belongs to this store. With the recovery code: HEARTH_UNLOCK_METHOD=passphrase hearth serve, then type it."
            }
            Self::NewerFormat(_) => "Install that version or a newer one.",
            Self::Locked => "Stop the other daemon first; only one can serve this store.",
            Self::Full => "Free some space on the disk, then try again.",
            Self::TooLarge(_) => "Use smaller messages or files.",
            Self::TooMany { .. } => "Forget what is not needed any more (`hearth memory forget`).",
            Self::Io { .. } | Self::Busy | Self::Frozen(_) => {
                "Check the disk (see `hearth doctor`), then restart the daemon."
            }
            Self::Closed => "Start the daemon again.",
        }
    }

    pub(crate) fn io(file: &str, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io { file: file.to_owned(), what: error.to_string() },
        }
    }

    pub(crate) fn damaged(file: &str, what: impl Into<String>) -> Self {
        Self::Damaged { file: file.to_owned(), what: what.into() }
    }

    pub(crate) fn vault(file: &str, error: VaultError) -> Self {
        match error {
            VaultError::NewerFormat(_) => Self::NewerFormat(file.to_owned()),
            VaultError::WrongSecret | VaultError::NoSuchSlot(_) => Self::WrongKey,
            other => Self::damaged(file, other.to_string()),
        }
    }
}
