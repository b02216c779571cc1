//! Creates and unlocks the store.

use std::fs::OpenOptions;
use std::io::{BufRead, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use hearth_settings::{SecretError, Settings, UnlockMethod};
use hearth_store::{Options, RealDisk, StoreError, create, read_header};
use hearth_vault::{
    Argon2Params, DataKey, Header, RecoveryError, Secret, SlotRandom, VaultError, parse_recovery_code,
    recovery_code,
};
use rustix::termios::{LocalModes, OptionalActions, isatty, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::cli::exit::{Exit, Failure};
use crate::clock::{SystemClock, fill};

/// Least characters of a new passphrase.
const PASSPHRASE_MIN: usize = 8;
/// The way in when a key file or credential is lost.
const RECOVER: &str =
    "When it is lost: HEARTH_UNLOCK_METHOD=passphrase hearth serve, then type the recovery code.";
/// Longest line that is read as a passphrase, in bytes.
const PASSPHRASE_MAX: usize = 1024;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::new(Exit::Store, error.to_string(), error.remedy())
    }
}

/// Where the store of these settings lies.
pub fn options(settings: &Settings, clock: &SystemClock, create: bool) -> Result<Options, Failure> {
    let clock = clock.clone();
    let stamp = Arc::new(move || clock.stamp());
    Options::at(&settings.paths.state, &settings.paths.marker, create, stamp).map_err(|error| {
        let remedy = "Check paths.state and paths.marker in the settings, and the rights on their folders.";
        Failure::new(Exit::Store, error.to_string(), remedy)
    })
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

fn slot_random() -> SlotRandom {
    SlotRandom { salt: random(), nonce: random() }
}

/// What creation has to tell the owner.
pub struct Created {
    /// Opens the store when everything else is lost. Shown once.
    pub recovery: Zeroizing<String>,
    /// True when a key file was written.
    pub wrote_key_file: bool,
}

/// Creates the store, its key file where the settings want one, and a recovery
/// code. `passphrase` adds another way to unlock.
pub fn initialise(
    settings: &Settings,
    clock: &SystemClock,
    passphrase: Option<&str>,
) -> Result<Created, Failure> {
    let options = options(settings, clock, true)?;
    let mut header = Header::new(random());
    let data_key = DataKey::from_bytes(*Zeroizing::new(random::<32>()));
    let recovery = recovery_code(*Zeroizing::new(random::<16>()));
    let add = |header: &mut Header, secret: &Secret<'_>, label: &str| {
        header.add_slot(&data_key, secret, label, Argon2Params::default(), &slot_random()).map_err(vault)
    };
    let mut wrote_key_file = false;
    match settings.unlock.method {
        UnlockMethod::KeyFile => {
            let path = &settings.unlock.key_file;
            if !path.exists() {
                // A store that exists already must not get a new key beside it.
                if settings.paths.marker.exists() {
                    return Err(StoreError::AlreadyInitialized.into());
                }
                write_key_file(path)?;
                wrote_key_file = true;
            }
            add(&mut header, &Secret::KeyFile(&secret(settings)?), "key file")?;
        }
        UnlockMethod::Credential => {
            add(&mut header, &Secret::Credential(&secret(settings)?), "credential")?;
        }
        UnlockMethod::Passphrase if passphrase.is_none() => {
            return Err(Failure::new(
                Exit::Config,
                "unlock.method is \"passphrase\"",
                "Run `hearth init --passphrase`.",
            ));
        }
        UnlockMethod::Passphrase => {}
    }
    if let Some(text) = passphrase {
        if text.chars().count() < PASSPHRASE_MIN {
            let what = format!("the passphrase has fewer than {PASSPHRASE_MIN} characters");
            return Err(Failure::new(
                Exit::Failed,
                what,
                "Choose a longer one; several words are easy to remember.",
            ));
        }
        add(&mut header, &Secret::Passphrase(text), "passphrase")?;
    }
    add(&mut header, &Secret::Recovery(&recovery), "recovery code")?;
    create(&options, &data_key, &header)?;
    Ok(Created { recovery, wrote_key_file })
}

fn vault(error: VaultError) -> Failure {
    Failure::new(Exit::Store, error.to_string(), "Check the key file, credential or passphrase.")
}

fn write_key_file(path: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        Failure::new(
            Exit::Failed,
            format!("the key file {} cannot be written: {e}", path.display()),
            "Check unlock.key_file and the rights on its folder.",
        )
    };
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    let key = Zeroizing::new(random::<64>());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(path).map_err(failed)?;
    file.write_all(&*key).and_then(|()| file.sync_all()).map_err(failed)?;
    // The key must be on the disk before anything is sealed with it.
    let folder = path.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(folder).and_then(|f| f.sync_all()).map_err(failed)
}

fn secret(settings: &Settings) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let place = settings
        .unlock_secret()
        .ok_or_else(|| Failure::new(Exit::Config, "no secret is configured", "Set unlock.method."))?;
    let secret = place.read().map_err(|error| {
        // What opens a store must not be made anew.
        let lost = matches!(error, SecretError::Missing(_)) && settings.paths.marker.exists();
        let remedy = if lost { format!("Put it back. {RECOVER}") } else { error.remedy() };
        Failure::new(Exit::Store, error.to_string(), remedy)
    })?;
    Ok(Zeroizing::new(secret.bytes().to_vec()))
}

fn mistyped(mistake: RecoveryError) -> Failure {
    Failure::new(Exit::Store, mistake.to_string(), "Compare it with your note and type it again.")
}

/// The key of the store, by the way that the settings name. A passphrase is
/// asked for on the terminal; the recovery code may be typed in its place.
pub fn unlock(settings: &Settings) -> Result<DataKey, Failure> {
    if !settings.paths.marker.exists() {
        return Err(StoreError::NotInitialized.into());
    }
    let header = read_header(&RealDisk::read_only(&settings.paths.state))?;
    let opened = match settings.unlock.method {
        UnlockMethod::KeyFile => header.unlock(&Secret::KeyFile(&secret(settings)?)),
        UnlockMethod::Credential => header.unlock(&Secret::Credential(&secret(settings)?)),
        UnlockMethod::Passphrase => {
            let typed = ask_passphrase("Passphrase or recovery code: ")?;
            // What has the form and the check digits of a recovery code is one.
            match parse_recovery_code(&typed) {
                Ok(_) => header
                    .unlock(&Secret::Recovery(&typed))
                    .or_else(|_| header.unlock(&Secret::Passphrase(&typed))),
                Err(mistake) => match header.unlock(&Secret::Passphrase(&typed)) {
                    Err(_) if mistake == RecoveryError::Check => return Err(mistyped(mistake)),
                    opened => opened,
                },
            }
        }
    };
    opened.map_err(|error| match error {
        VaultError::WrongSecret | VaultError::NoSuchSlot(_) => StoreError::WrongKey.into(),
        other => vault(other),
    })
}

/// A passphrase: typed without echo on a terminal, else one line of the
/// standard input.
pub fn ask_passphrase(prompt: &str) -> Result<Zeroizing<String>, Failure> {
    let failed =
        |e: std::io::Error| Failure::new(Exit::Failed, format!("the passphrase cannot be read: {e}"), "");
    let stdin = std::io::stdin();
    let saved = isatty(&stdin).then(|| tcgetattr(&stdin)).transpose().map_err(|e| failed(e.into()))?;
    if let Some(saved) = &saved {
        let mut silent = saved.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Flush, &silent).map_err(|e| failed(e.into()))?;
        eprint!("{prompt}");
    }
    let mut line = Zeroizing::new(String::new());
    let read = std::io::Read::take(stdin.lock(), PASSPHRASE_MAX as u64).read_line(&mut line);
    if let Some(saved) = &saved {
        let _ = tcsetattr(&stdin, OptionalActions::Flush, saved);
        eprintln!();
    }
    read.map_err(failed)?;
    Ok(Zeroizing::new(line.trim_end_matches(['\r', '\n']).to_owned()))
}
