//! `fs.read`, `fs.list`, `fs.metadata`, `fs.write` and `fs.delete`.

mod roots;
mod sensitive;

use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hearth_scope::{EffectClass, Exposure, Integrity, Label, Scope};
use hearth_turn::ToolError;
use jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::fs::{fchmod, fstat, fsync, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::json;

use crate::context::ToolContext;
use crate::text::{self, RESULT_MAX};
use crate::tool::{Done, Meta, PRIVATE, Reach, Typed, scope};
pub use roots::{PATH_MAX, Root, RootError, Roots};
use roots::{Target, explain};

/// Longest text that is written, in bytes.
pub const WRITE_MAX: usize = 1024 * 1024;
/// Most entries of a folder that are looked at.
const LOOK_MAX: usize = 10_000;
/// Most entries of a folder that are shown.
const SHOW_MAX: usize = 500;

const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathArgs {
    path: String,
}

const PATH_SCHEMA: &str = r#"{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}"#;

fn need(base: &str, target: Target) -> Result<(Vec<Scope>, String), ToolError> {
    Ok((vec![scope(base, Some(&target.path))?], target.path))
}

/// Runs file work on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    let gone = |_| ToolError::Failed("the file work was interrupted".into());
    tokio::task::spawn_blocking(work).await.map_err(gone)?
}

/// `fs.read`
pub(crate) struct Read(pub(crate) Arc<Roots>);

impl Typed for Read {
    type Args = PathArgs;
    const META: Meta = Meta {
        name: "fs.read",
        version: 1,
        description: "Read a text file.",
        schema: PATH_SCHEMA,
        effect: EffectClass::PrivateRead,
        timeout: TIMEOUT,
        reach: Reach::Qualified("fs.read"),
    };

    fn need(&self, args: &PathArgs) -> Result<(Vec<Scope>, String), ToolError> {
        need("fs.read", self.0.locate(&args.path)?)
    }

    async fn call(&self, args: PathArgs, ctx: &ToolContext) -> Result<Done, ToolError> {
        let target = self.0.locate(&args.path)?;
        let (roots, fence) = (self.0.clone(), ctx.fence.clone());
        blocking(move || {
            let (file, stat) = roots.regular(&target)?;
            let (text, size) = head_and_tail(&file, stat.st_size as u64)
                .map_err(|e| ToolError::Failed(format!("{}: {e}", target.path)))?
                .ok_or_else(|| ToolError::Refused(format!("{} is not a text file", target.path)))?;
            let text = if target.label == Integrity::World { text::fence(&text, &fence) } else { text };
            let output =
                json!({ "path": target.path, "size": size, "label": target.label, "source": "file", "text": text });
            Ok(Done::read(output, Label::new(target.label, Exposure::Home)))
        })
        .await
    }
}

/// The text of a file as far as it fits, and its size; `None` for binary data.
fn head_and_tail(file: &std::fs::File, size: u64) -> std::io::Result<Option<(String, u64)>> {
    let mut head = Vec::new();
    file.take(RESULT_MAX as u64 + 1).read_to_end(&mut head)?;
    if head.contains(&0) {
        return Ok(None);
    }
    if head.len() <= RESULT_MAX {
        let size = head.len() as u64;
        return Ok(Some((text::readable(&head), size)));
    }
    let size = size.max(head.len() as u64);
    let room = RESULT_MAX - 64;
    head.truncate(room - room / 4);
    let mut tail = vec![0; room / 4];
    let start = size - tail.len() as u64;
    let read = file.read_at(&mut tail, start)?;
    tail.truncate(read);
    let left_out = size as usize - head.len() - tail.len();
    Ok(Some((format!("{}{}{}", text::readable(&head), text::mark(left_out), text::readable(&tail)), size)))
}

/// `fs.list`
pub(crate) struct List(pub(crate) Arc<Roots>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListArgs {
    path: Option<String>,
}

impl ListArgs {
    fn path(&self) -> &str {
        self.path.as_deref().unwrap_or(".")
    }
}

impl Typed for List {
    type Args = ListArgs;
    const META: Meta = Meta {
        name: "fs.list",
        version: 1,
        description: "List a folder.",
        schema: r#"{"type":"object","properties":{"path":{"type":"string","description":"default: home folder"}}}"#,
        effect: EffectClass::PrivateRead,
        timeout: TIMEOUT,
        reach: Reach::Qualified("fs.read"),
    };

    fn need(&self, args: &ListArgs) -> Result<(Vec<Scope>, String), ToolError> {
        need("fs.read", self.0.locate(args.path())?)
    }

    async fn call(&self, args: ListArgs, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let target = self.0.locate(args.path())?;
        let roots = self.0.clone();
        blocking(move || list(&roots, &target)).await
    }
}

fn list(roots: &Roots, target: &Target) -> Result<Done, ToolError> {
    let failed = |e| explain(e, &target.path);
    let folder = roots.folder(target)?;
    let mut names = Vec::new();
    let mut total = 0usize;
    for entry in Dir::read_from(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() == c"." || entry.file_name() == c".." {
            continue;
        }
        total += 1;
        if names.len() < LOOK_MAX {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    let mut entries = Vec::new();
    let mut used = 0;
    for name in names.iter().take(SHOW_MAX) {
        let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let shown = text::shorten(&name.to_string_lossy(), 255);
        let shown = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => format!("{shown}/"),
            FileType::RegularFile => format!("{shown} ({} bytes)", stat.st_size),
            FileType::Symlink => format!("{shown} (link)"),
            _ => format!("{shown} (special)"),
        };
        used += shown.len() + 4;
        if used > RESULT_MAX - 2048 {
            break;
        }
        entries.push(shown);
    }
    let left_out = total - entries.len();
    let mut output = json!({ "path": target.path, "entries": entries, "label": target.label });
    if left_out > 0 {
        output["left_out"] = left_out.into();
    }
    Ok(Done::read(output, Label::new(target.label, Exposure::Home)))
}

/// `fs.metadata`
pub(crate) struct Metadata(pub(crate) Arc<Roots>);

impl Typed for Metadata {
    type Args = PathArgs;
    const META: Meta = Meta {
        name: "fs.metadata",
        version: 1,
        description: "Kind, size and date of a file.",
        schema: PATH_SCHEMA,
        effect: EffectClass::PrivateRead,
        timeout: TIMEOUT,
        reach: Reach::Qualified("fs.metadata"),
    };

    fn need(&self, args: &PathArgs) -> Result<(Vec<Scope>, String), ToolError> {
        need("fs.metadata", self.0.locate(&args.path)?)
    }

    async fn call(&self, args: PathArgs, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let target = self.0.locate(&args.path)?;
        let roots = self.0.clone();
        blocking(move || {
            let failed = |e| explain(e, &target.path);
            let stat = fstat(roots.open_at(&target, OFlags::PATH).map_err(failed)?).map_err(failed)?;
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => "file",
                FileType::Directory => "folder",
                FileType::Symlink => "link",
                FileType::Fifo => "pipe",
                FileType::Socket => "socket",
                _ => "device",
            };
            let modified = Timestamp::from_second(stat.st_mtime).ok();
            let modified = modified.map(|t| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            let output = json!({
                "path": target.path, "kind": kind, "size": stat.st_size, "modified": modified,
                "mode": format!("{:o}", stat.st_mode & 0o7777),
            });
            Ok(Done::read(output, PRIVATE))
        })
        .await
    }
}

/// `fs.write`
pub(crate) struct Write(pub(crate) Arc<Roots>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteArgs {
    path: String,
    text: String,
}

impl Typed for Write {
    type Args = WriteArgs;
    const META: Meta = Meta {
        name: "fs.write",
        version: 1,
        description: "Create or replace a text file.",
        schema: r#"{"type":"object","properties":{"path":{"type":"string"},"text":{"type":"string"}},"required":["path","text"]}"#,
        effect: EffectClass::Persist,
        timeout: TIMEOUT,
        reach: Reach::Qualified("fs.write"),
    };

    fn need(&self, args: &WriteArgs) -> Result<(Vec<Scope>, String), ToolError> {
        if args.text.len() > WRITE_MAX {
            return Err(ToolError::InvalidArguments(format!("text is longer than {WRITE_MAX} bytes")));
        }
        need("fs.write", self.0.locate_writable(&args.path)?)
    }

    async fn call(&self, args: WriteArgs, ctx: &ToolContext) -> Result<Done, ToolError> {
        let target = self.0.locate_writable(&args.path)?;
        let (roots, turn) = (self.0.clone(), ctx.turn);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let temporary = format!(".{turn}.{}.tmp", COUNT.fetch_add(1, Ordering::Relaxed));
        blocking(move || replace(&roots, &target, &temporary, args.text.as_bytes())).await
    }
}

/// Writes beside the target, syncs, renames over it, syncs the folder, and
/// reads it back. A reader sees the old file or the new one, never a part.
fn replace(roots: &Roots, target: &Target, temporary: &str, bytes: &[u8]) -> Result<Done, ToolError> {
    let failed = |e| explain(e, &target.path);
    let is_folder = || ToolError::Refused(format!("{} is a folder", target.path));
    let (parent, name) = target.split().ok_or_else(is_folder)?;
    let folder = roots.make_folder(&parent)?;
    let mode = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => None,
        Err(e) => return Err(failed(e)),
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Some(Mode::from_raw_mode(stat.st_mode & 0o777)),
            FileType::Directory => return Err(is_folder()),
            _ => return Err(ToolError::Refused(format!("{} is not a regular file", target.path))),
        },
    };
    let write = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, temporary, flags, Mode::from_raw_mode(0o640))?;
        if let Some(mode) = mode {
            fchmod(&file, mode)?;
        }
        let mut file = std::fs::File::from(file);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        renameat(&folder, temporary, &folder, name)?;
        fsync(&folder)
    };
    write().map_err(|e| {
        // The rename may have happened: then there is nothing to remove.
        let _ = unlinkat(&folder, temporary, AtFlags::empty());
        failed(e)
    })?;

    if !reads_back(roots, target, bytes)? {
        return Err(ToolError::Failed(format!(
            "{} reads back differently from what was written",
            target.path
        )));
    }
    Ok(Done::verified(json!({ "path": target.path, "bytes": bytes.len(), "replaced": mode.is_some() })))
}

/// True when the file holds exactly these bytes.
fn reads_back(roots: &Roots, target: &Target, bytes: &[u8]) -> Result<bool, ToolError> {
    let (file, _) = roots.regular(target)?;
    let mut seen = Vec::new();
    Ok(file.take(bytes.len() as u64 + 1).read_to_end(&mut seen).is_ok() && seen == bytes)
}

/// `fs.delete`
pub(crate) struct Delete(pub(crate) Arc<Roots>);

impl Typed for Delete {
    type Args = PathArgs;
    const META: Meta = Meta {
        name: "fs.delete",
        version: 1,
        description: "Delete a file or an empty folder.",
        schema: PATH_SCHEMA,
        effect: EffectClass::Destroy,
        timeout: TIMEOUT,
        reach: Reach::Qualified("fs.delete"),
    };

    fn need(&self, args: &PathArgs) -> Result<(Vec<Scope>, String), ToolError> {
        need("fs.delete", self.0.locate_writable(&args.path)?)
    }

    async fn call(&self, args: PathArgs, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let target = self.0.locate_writable(&args.path)?;
        let roots = self.0.clone();
        blocking(move || {
            let failed = |e| explain(e, &target.path);
            let is_root = || ToolError::Refused(format!("{} is one of the allowed folders", target.path));
            let (parent, name) = target.split().ok_or_else(is_root)?;
            let folder = roots.folder(&parent)?;
            let stat = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            let flags = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => AtFlags::REMOVEDIR,
                FileType::RegularFile | FileType::Symlink => AtFlags::empty(),
                _ => return Err(ToolError::Refused(format!("{} is a special file", target.path))),
            };
            unlinkat(&folder, name, flags).map_err(failed)?;
            fsync(&folder).map_err(failed)?;
            match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(Done::verified(json!({ "path": target.path, "deleted": true }))),
                _ => Err(ToolError::Failed(format!("{} is still there", target.path))),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests;
