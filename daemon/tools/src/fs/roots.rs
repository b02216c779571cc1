//! The folders that file tools may touch, and how a path is opened inside them.
//!
//! A path is first made canonical as text: that text is what the gate checks.
//! It is then opened from the descriptor of its root without following any
//! symbolic link, so that text and file cannot be two different things, also
//! when somebody swaps a folder for a link in between.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use hearth_turn::ToolError;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat, openat2};
use rustix::io::Errno;

use crate::fs::sensitive::sensitive;
use hearth_scope::Integrity;

/// Longest path, in bytes.
pub const PATH_MAX: usize = 1000;
/// Longest name of a file or folder, in bytes.
const NAME_MAX: usize = 255;
/// How often an opening is tried again when files are renamed meanwhile.
const RETRIES: usize = 16;

/// A folder that file tools may touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Where it is.
    pub path: PathBuf,
    /// Who could have written what is in it.
    pub label: Integrity,
    /// Whether files in it may be written and deleted. In a root inside of
    /// another one its own word counts, in both directions.
    pub writable: bool,
}

/// Why a folder cannot be used.
#[derive(Debug)]
pub struct RootError {
    /// The folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl std::fmt::Display for RootError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the folder {} cannot be used by file tools: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for RootError {}

/// Open roots. The first one is where relative paths start.
#[derive(Debug)]
pub struct Roots {
    roots: Vec<Opened>,
    /// False once the kernel has said that it does not know `openat2`.
    openat2: AtomicBool,
}

#[derive(Debug)]
struct Opened {
    /// Canonical, without a slash at the end; empty for `/`.
    path: String,
    directory: OwnedFd,
    label: Integrity,
    writable: bool,
}

/// A path inside of a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    root: usize,
    /// Relative to the root; empty for the root itself.
    inner: String,
    /// Absolute and canonical: what the gate and the person see.
    pub(crate) path: String,
    pub(crate) label: Integrity,
}

impl Target {
    /// Folder and name; `None` for a root.
    pub(crate) fn split(&self) -> Option<(Target, &str)> {
        let (parent, name) = self.inner.rsplit_once('/').unwrap_or(("", &self.inner));
        let folder = Target {
            root: self.root,
            inner: parent.to_owned(),
            path: self.path[..self.path.len() - name.len()].trim_end_matches('/').to_owned(),
            label: self.label,
        };
        (!name.is_empty()).then_some((folder, name))
    }
}

impl Roots {
    /// Opens folders; each must exist, with a name in UTF-8.
    pub fn open(roots: &[Root]) -> Result<Self, RootError> {
        let open = |root: &Root| {
            let failed = |reason: String| RootError { path: root.path.clone(), reason };
            let path = std::fs::canonicalize(&root.path).map_err(|e| failed(e.to_string()))?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(CWD, &path, flags, Mode::empty()).map_err(|e| failed(e.to_string()))?;
            let path = path.to_str().ok_or_else(|| failed("its name is not UTF-8".into()))?;
            let path = path.trim_end_matches('/').to_owned();
            Ok(Opened { path, directory, label: root.label, writable: root.writable })
        };
        let roots = roots.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { roots, openat2: AtomicBool::new(true) })
    }

    /// The same as on a kernel older than 5.6.
    #[cfg(test)]
    pub(crate) fn without_openat2(self) -> Self {
        self.openat2.store(false, Ordering::Relaxed);
        self
    }

    /// True when there is no root: file tools are then left out.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// Makes a path canonical and finds its root, without touching the disk.
    /// Refused where it holds keys or makes something run, whatever its root says.
    pub(crate) fn locate(&self, path: &str) -> Result<Target, ToolError> {
        if path.len() > PATH_MAX {
            return Err(ToolError::InvalidArguments(format!("path is longer than {PATH_MAX} bytes")));
        }
        if path.chars().any(char::is_control) {
            return Err(ToolError::InvalidArguments("path holds control characters".into()));
        }
        let absolute = path.starts_with('/');
        let mut parts: Vec<&str> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." if parts.pop().is_none() && !absolute => return Err(self.outside()),
                ".." => {}
                _ if part.len() > NAME_MAX => {
                    return Err(ToolError::InvalidArguments(format!("a name has over {NAME_MAX} bytes")));
                }
                _ => parts.push(part),
            }
        }
        // A relative path can lead into a root inside of the first one.
        let start = match self.roots.first() {
            Some(first) if !absolute && !first.path.is_empty() => Some(&first.path[1..]),
            _ => None,
        };
        let joined = start.into_iter().chain(parts).collect::<Vec<_>>().join("/");
        let (root, inner) = self.split(&joined).ok_or_else(|| self.outside())?;
        let Opened { path: base, label, .. } = &self.roots[root];
        let path = match (base.as_str(), inner) {
            ("", "") => "/".to_owned(),
            (base, "") => base.to_owned(),
            (base, inner) => format!("{base}/{inner}"),
        };
        if let Some(why) = sensitive(&path) {
            return Err(ToolError::Refused(format!("{path} {}", why.reason())));
        }
        Ok(Target { root, inner: inner.to_owned(), path, label: *label })
    }

    /// As [`Self::locate`], for a path that will be changed. Refused where the
    /// deepest root that holds it may only be read, whatever scopes are held.
    pub(crate) fn locate_writable(&self, path: &str) -> Result<Target, ToolError> {
        let target = self.locate(path)?;
        let root = &self.roots[target.root];
        let base = if root.path.is_empty() { "/" } else { &root.path };
        let why = || {
            let path = &target.path;
            format!(
                "{path}: {base} may only be read; the owner can set mode = \"write\" in its [[tools.root]]"
            )
        };
        if root.writable { Ok(target) } else { Err(ToolError::Refused(why())) }
    }

    /// The deepest root that holds the absolute path (given without its first
    /// slash), and the rest of the path. Of two rows for one folder the one
    /// that may only be read counts.
    fn split<'a>(&self, path: &'a str) -> Option<(usize, &'a str)> {
        let inner = |root: &Opened| {
            let base = root.path.trim_start_matches('/');
            match path.strip_prefix(base)? {
                rest if base.is_empty() => Some(rest),
                "" => Some(""),
                rest => rest.strip_prefix('/'),
            }
        };
        let holding = self.roots.iter().enumerate().filter_map(|(n, root)| Some((n, inner(root)?)));
        holding.min_by_key(|(n, rest)| (rest.len(), self.roots[*n].writable))
    }

    fn outside(&self) -> ToolError {
        let paths: Vec<&str> =
            self.roots.iter().map(|r| if r.path.is_empty() { "/" } else { r.path.as_str() }).collect();
        ToolError::Refused(format!("outside of the allowed folders ({})", paths.join(", ")))
    }

    /// Opens a target; no link is followed on the way or at its end.
    pub(crate) fn open_at(&self, target: &Target, flags: OFlags) -> Result<OwnedFd, Errno> {
        let root = self.roots[target.root].directory.as_fd();
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if target.inner.is_empty() {
            return openat(root, ".", flags, Mode::empty());
        }
        if self.openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            for _ in 0..RETRIES {
                match openat2(root, &target.inner, flags, Mode::empty(), resolve) {
                    Err(Errno::AGAIN) => {}
                    Err(Errno::NOSYS) => {
                        self.openat2.store(false, Ordering::Relaxed);
                        return self.walk(target, flags);
                    }
                    other => return other,
                }
            }
            return Err(Errno::AGAIN);
        }
        self.walk(target, flags)
    }

    /// Component by component, for kernels without `openat2`.
    fn walk(&self, target: &Target, flags: OFlags) -> Result<OwnedFd, Errno> {
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = openat(&self.roots[target.root].directory, ".", through, Mode::empty())?;
        let (folders, name) = target.inner.rsplit_once('/').unwrap_or(("", &target.inner));
        for folder in folders.split('/').filter(|f| !f.is_empty()) {
            directory = openat(&directory, folder, through, Mode::empty())?;
        }
        openat(&directory, name, flags, Mode::empty())
    }

    /// Opens a folder for reading and syncing.
    pub(crate) fn folder(&self, target: &Target) -> Result<OwnedFd, ToolError> {
        self.open_at(target, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| explain(e, &target.path))
    }

    /// Opens a folder and makes it, and those above it inside of the root, when
    /// they are missing.
    pub(crate) fn make_folder(&self, target: &Target) -> Result<OwnedFd, ToolError> {
        match self.open_at(target, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(|e| explain(e, &target.path)),
        }
        let (parent, name) = target.split().ok_or_else(|| self.outside())?;
        let above = self.make_folder(&parent)?;
        match mkdirat(&above, name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(explain(e, &target.path)),
        }
        rustix::fs::fsync(&above).map_err(|e| explain(e, &parent.path))?;
        self.folder(target)
    }

    /// Opens a regular file for reading. Its kind is looked at before it is
    /// opened, so that opening a device or a pipe has no side effect.
    pub(crate) fn regular(&self, target: &Target) -> Result<(std::fs::File, Stat), ToolError> {
        let failed = |e| explain(e, &target.path);
        let look = fstat(self.open_at(target, OFlags::PATH).map_err(failed)?).map_err(failed)?;
        match FileType::from_raw_mode(look.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => {
                return Err(ToolError::Refused(format!("{} is a folder", target.path)));
            }
            _ => return Err(ToolError::Refused(format!("{} is not a regular file", target.path))),
        }
        let file =
            self.open_at(target, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        if (stat.st_dev, stat.st_ino) != (look.st_dev, look.st_ino) {
            return Err(ToolError::Failed(format!("{} changed while it was opened; try again", target.path)));
        }
        Ok((file.into(), stat))
    }
}

/// What an error of the system means for the caller.
pub(crate) fn explain(errno: Errno, path: &str) -> ToolError {
    match errno {
        Errno::NOENT => ToolError::NotFound(path.to_owned()),
        Errno::LOOP | Errno::XDEV => ToolError::Refused(format!("{path} leads through a symbolic link")),
        Errno::NOTDIR => {
            ToolError::Refused(format!("{path} is not a folder, or leads through what is not one"))
        }
        Errno::ACCESS | Errno::PERM => ToolError::Refused(format!("the daemon has no permission for {path}")),
        Errno::ROFS => ToolError::Refused(format!("{path} is on a read-only file system")),
        Errno::NOSPC | Errno::DQUOT => ToolError::Limit("the disk is full".into()),
        Errno::NOTEMPTY | Errno::EXIST => ToolError::Refused(format!("{path} is not empty")),
        errno => {
            let text = std::io::Error::from(errno).to_string();
            ToolError::Failed(format!("{}: {text}", Path::new(path).display()))
        }
    }
}
