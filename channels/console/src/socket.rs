//! The socket: made so that nobody else can reach it at any moment.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tokio::net::{UnixListener, UnixStream};

/// Longest path that a socket address holds on Linux.
const PATH_MAX: usize = 107;

/// Why the socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon listens there.
    #[error("another daemon listens on {0}")]
    InUse(PathBuf),
    /// Something else than a socket lies there.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// The folder is not closed to others.
    #[error("the folder {path} can be entered by others (mode {mode:04o}, owner {uid})")]
    OpenFolder {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        uid: u32,
    },
    /// The path is too long for a socket address.
    #[error("the socket path {0} is longer than {PATH_MAX} bytes or has no folder")]
    BadPath(PathBuf),
    /// The daemon runs as another user than the owner and may not hand the socket over.
    #[error("the socket cannot be handed over to the owner (user id {owner})")]
    NotOurs {
        /// The owner.
        owner: u32,
    },
    /// The system refused.
    #[error("the socket {path} cannot be made: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl BindError {
    /// What to do.
    pub fn remedy(&self) -> String {
        match self {
            Self::InUse(_) => "Stop the other one, or set console.socket to another path.".into(),
            Self::NotASocket(path) => {
                format!("Remove {}, or set console.socket to another path.", path.display())
            }
            Self::OpenFolder { path, .. } => format!(
                "Give the daemon a folder of its own and close it: chmod 700 {}; or set console.socket to a path in a folder that does not exist yet.",
                path.display()
            ),
            Self::BadPath(_) => "Set console.socket to a shorter absolute path.".into(),
            Self::NotOurs { .. } => {
                "Run the daemon as the owner, let systemd make the socket (SocketUser=), or set console.owner_uid to the daemon's user."
                    .into()
            }
            Self::Io { .. } => "Check console.socket and the permissions of its folder.".into(),
        }
    }
}

/// A listening socket. The file goes away with it, if it is still the same one.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    /// The file that we made, with device and inode; absent for a socket that
    /// was handed over.
    file: Option<(PathBuf, (u64, u64))>,
    /// Held as long as the socket lives, so that two daemons never race for it.
    _lock: Option<File>,
}

impl Listener {
    /// Takes a socket that somebody else made, for example systemd.
    pub fn from_std(socket: std::os::unix::net::UnixListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { inner: UnixListener::from_std(socket)?, file: None, _lock: None })
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.inner.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, identity)) = &self.file
            && identity_of(path).is_ok_and(|now| now == *identity)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn identity_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Makes the socket at `path` for `owner`, in a folder of mode 0700 that is
/// made if it is missing. A socket that a dead daemon left is replaced; one
/// that somebody answers on is not. Must be called inside of a tokio runtime.
///
/// The socket is bound under another name, closed to others, handed to the
/// owner and only then renamed, so there is no moment in which it can be
/// reached with other permissions.
pub fn bind(path: &Path, owner: u32) -> Result<Listener, BindError> {
    let error = |source| BindError::Io { path: path.to_owned(), source };
    let bad_path = || BindError::BadPath(path.to_owned());
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Err(bad_path()) };
    let hidden = |suffix: &str| {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(suffix);
        folder.join(hidden)
    };
    let temporary = hidden(".new");
    if !path.is_absolute() || temporary.as_os_str().len() > PATH_MAX {
        return Err(bad_path());
    }
    let us = rustix::process::geteuid().as_raw();

    if !folder.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(error)?;
    }
    let metadata = std::fs::metadata(folder).map_err(error)?;
    let (mode, uid) = (metadata.mode() & 0o7777, metadata.uid());
    if mode & 0o077 != 0 || !(uid == us || uid == owner) {
        return Err(BindError::OpenFolder { path: folder.to_owned(), mode, uid });
    }

    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(hidden(".lock"))
        .map_err(error)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(BindError::InUse(path.to_owned())),
        other => other.map_err(|e| error(e.into()))?,
    }
    refuse_if_alive(path)?;

    // What lies under the temporary name is ours: we hold the lock.
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(error(e)),
        _ => {}
    }
    let inner = UnixListener::bind(&temporary).map_err(error)?;
    std::fs::set_permissions(&temporary, Permissions::from_mode(0o600)).map_err(error)?;
    if owner != us {
        for path in [temporary.as_path(), folder] {
            std::os::unix::fs::chown(path, Some(owner), None).map_err(|_| BindError::NotOurs { owner })?;
        }
    }
    let identity = identity_of(&temporary).map_err(error)?;
    std::fs::rename(&temporary, path).map_err(error)?;
    Ok(Listener { inner, file: Some((path.to_owned(), identity)), _lock: Some(lock) })
}

/// Nothing there, or a socket that nobody answers on: fine.
fn refuse_if_alive(path: &Path) -> Result<(), BindError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(BindError::Io { path: path.to_owned(), source }),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    // A full backlog would make a connect wait; the kernel answers at once
    // when nobody listens.
    match StdStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        _ => Err(BindError::InUse(path.to_owned())),
    }
}
