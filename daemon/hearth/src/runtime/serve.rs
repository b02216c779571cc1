//! Start-up in stages, each of which can fail before the next; the end with a limit.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hearth_audit::Kind;
use hearth_console::{Policy, bind, serve as serve_console};
use hearth_scope::TrustTier;
use hearth_settings::Settings;
use hearth_store::{AuditLog, Batch, RealDisk, Store};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::exit::{Exit, Failure};
use crate::clock::{SystemClock, fill};
use crate::runtime::assemble;
use crate::runtime::control::{ControlDesk, ControlGateway};
use crate::runtime::drive::Shared;
use crate::runtime::gateway::{Agent, Desk, DeskGateway};
use crate::runtime::ports::{AuditRows, MemoryRows, SettingsRows};
use crate::runtime::{unlock, upkeep};

/// Time for turns that were stopped to record their end.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The clocks in the time zone of the household.
pub fn clock(settings: &Settings) -> Result<SystemClock, Failure> {
    let mut fallback = [0; 16];
    fill(&mut fallback);
    Ok(SystemClock::new(assemble::zone(settings)?, fallback))
}

/// Runs the daemon until a signal ends it. Prints one line that begins with
/// `ready` when messages are taken.
pub async fn serve(settings: Settings) -> Result<(), Failure> {
    let settings = Arc::new(settings);
    let clock = clock(&settings)?;
    let started = clock.since_boot();
    hearth_egress::install_tls();
    let models = assemble::models(&settings)?;
    let options = unlock::options(&settings, &clock, false)?;
    let unlocking = settings.clone();
    let key = tokio::task::spawn_blocking(move || unlock::unlock(&unlocking)).await.map_err(joined)??;
    let opening = key.clone();
    let (store, opened) =
        tokio::task::spawn_blocking(move || Store::open(options, &opening)).await.map_err(joined)??;
    for gap in &opened.gaps {
        if let Kind::Gap { tool, turn, .. } = gap {
            log::warn!("turn {turn}: it is not known whether {tool} took effect; it is not repeated");
        }
    }
    let state = settings.paths.state.clone();
    let reading = key.clone();
    let identity = crate::runtime::ports::blocking(move || {
        AuditLog::new(&RealDisk::read_only(&state), &reading).identity()
    })
    .await?;
    let memory = MemoryRows { store: store.clone(), clock: clock.clone() };
    let audit = AuditRows { state: settings.paths.state.clone(), key };
    let scratch = scratch(&settings)?;
    let shown = SettingsRows(settings.clone());
    let tools =
        assemble::tools(&settings, scratch, Arc::new(clock.clone()), memory.clone(), audit.clone(), shown)?;
    let ceiling = assemble::console_ceiling(&settings);
    let shared = Shared { store: store.clone(), models: Arc::new(models.clone()), tools: Arc::new(tools) };
    let desk = Desk::new(shared, agent(&settings, ceiling), clock.clone(), settings.limits.turns);
    let entry = Kind::Startup { version: env!("CARGO_PKG_VERSION").to_owned(), unclean: opened.unclean };
    // From the reserve where the disk is full: the owner has to be able to act.
    store.commit(Batch::new().audit(entry).closing()).await?;
    desk.recover().await?;
    let owner = settings.console.owner_uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let listener = bind(&settings.console.socket, owner)
        .map_err(|e| Failure::new(Exit::Failed, e.to_string(), e.remedy()))?;
    let control = Arc::new(ControlDesk {
        desk: desk.clone(),
        settings: settings.clone(),
        models: models.clone(),
        memory,
        audit,
        clock: clock.clone(),
        started,
        identity,
        ceiling,
    });
    let stop = CancellationToken::new();
    let mut console = JoinSet::new();
    console.spawn(serve_console(
        listener,
        Arc::new(DeskGateway(desk.clone())),
        Arc::new(ControlGateway(control)),
        policy(&settings, owner),
        stop.clone(),
    ));
    // Ended when this is dropped.
    let mut background = JoinSet::new();
    background.spawn(upkeep::when_idle(desk.clone(), clock.clone()));
    background.spawn(upkeep::watch_clock(store.clone(), clock.clone()));
    if settings.model.warm_up {
        let models = models.clone();
        background.spawn(async move { models.warm_up().await });
    }
    // Who reads `ready` may end the daemon at once, and it must end in order.
    let signals = signals()?;
    println!("ready: version {}, console {}", env!("CARGO_PKG_VERSION"), settings.console.socket.display());
    let reason = tokio::select! {
        reason = ended_by(signals) => reason,
        // Without its console the daemon cannot be reached; the supervisor starts it again.
        _ = console.join_next() => "the console ended",
    };
    log::info!("stopping: {reason}");
    desk.stopping.cancel();
    desk.tasks.close();
    if tokio::time::timeout(settings.limits.shutdown_s, desk.tasks.wait()).await.is_err() {
        log::warn!("answers that are not finished are stopped");
        desk.stop.cancel();
        if tokio::time::timeout(LAST_WAIT, desk.tasks.wait()).await.is_err() {
            log::warn!("a turn did not end; it is closed as interrupted at the next start");
        }
    }
    stop.cancel();
    let _ = tokio::time::timeout(settings.limits.shutdown_s, console.join_next()).await;
    drop(background);
    store.commit(Batch::new().audit(Kind::Shutdown { reason: reason.to_owned() }).closing()).await?;
    store.close().await?;
    Ok(())
}

/// A folder for what programs write, next to the socket and closed to others.
/// What programs of an earlier run left there is removed, and nothing else; the
/// store is open by now, so that no other daemon uses it.
fn scratch(settings: &Settings) -> Result<PathBuf, Failure> {
    let folder = settings.console.socket.with_file_name("hearth-programs");
    if settings.shell.enabled {
        clean(&folder).map_err(|e| {
            let what = format!("{} cannot be used: {e}", folder.display());
            Failure::new(Exit::Failed, what, "Check console.socket and the rights on its folder.")
        })?;
    }
    Ok(folder)
}

fn clean(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(folder)?;
    let own = meta.is_dir() && meta.mode() & 0o077 == 0 && meta.uid() == rustix::process::geteuid().as_raw();
    if !own {
        return Err(io::Error::other("it is no folder of the daemon's own with mode 0700"));
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"run-") && entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// The error is not shown: it quotes the message of a panic.
fn joined(_: tokio::task::JoinError) -> Failure {
    Failure::new(Exit::Failed, "start-up was interrupted", "Look into the log above, then try again.")
}

/// The signals that end the daemon, received from here on.
fn signals() -> Result<(Signal, Signal), Failure> {
    let received = |kind| {
        signal(kind).map_err(|e| {
            let what = format!("signals cannot be received: {e}");
            Failure::new(Exit::Failed, what, "Check the limits under which the daemon runs.")
        })
    };
    Ok((received(SignalKind::terminate())?, received(SignalKind::interrupt())?))
}

async fn ended_by((mut term, mut int): (Signal, Signal)) -> &'static str {
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}

fn agent(settings: &Settings, ceiling: TrustTier) -> Agent {
    Agent {
        capabilities: assemble::capabilities(settings),
        system: assemble::system_text(settings),
        limits: assemble::limits(settings, false),
        remote_conversations: settings.model.remote_conversations.clone(),
        remote_limits: assemble::limits(settings, settings.endpoints[0].remote),
        message_bytes: settings.limits.message_bytes,
        waiting: settings.limits.waiting,
        history_bytes: settings.turn.history_bytes,
        history_exchanges: settings.turn.history_exchanges as u64,
        ceiling,
    }
}

fn policy(settings: &Settings, owner: u32) -> Policy {
    let console = &settings.console;
    Policy {
        connections: console.connections,
        connections_per_uid: console.connections_per_uid,
        frame: console.frame_s,
        idle: console.idle_s,
        text_max: settings.limits.message_bytes,
        cancel_on_disconnect: settings.turn.cancel_on_disconnect,
        drain: settings.limits.shutdown_s,
        server: format!("hearth {}", env!("CARGO_PKG_VERSION")),
        ..Policy::for_owner(owner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_what_programs_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("hearth-programs");
        clean(&folder).unwrap();
        for made in ["run-1/deep", "runs", "other"] {
            std::fs::create_dir_all(folder.join(made)).unwrap();
        }
        std::fs::write(folder.join("run-2"), "a file of that name").unwrap();
        std::fs::write(folder.join("run-1/deep/file"), "left over").unwrap();
        symlink(dir.path(), folder.join("run-3")).unwrap();
        clean(&folder).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["other", "run-2", "run-3", "runs"]);
    }

    #[test]
    fn a_folder_that_is_not_our_own_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let check = |name: &str| {
            let refused = clean(&dir.path().join(name)).unwrap_err().to_string();
            assert!(refused.contains("the daemon's own"), "{name}: {refused}");
        };
        std::fs::create_dir(dir.path().join("open")).unwrap();
        std::fs::set_permissions(dir.path().join("open"), PermissionsExt::from_mode(0o750)).unwrap();
        std::fs::create_dir_all(dir.path().join("elsewhere/run-1")).unwrap();
        symlink(dir.path().join("elsewhere"), dir.path().join("link")).unwrap();
        check("open");
        check("link");
        assert!(dir.path().join("elsewhere/run-1").exists());
    }
}
