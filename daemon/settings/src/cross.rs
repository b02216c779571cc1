//! Settings that are sound alone and wrong together.

use std::path::{Path, PathBuf};

use hearth_scope::Scope;

use crate::Settings;
use crate::problem::Problem;
use crate::secret::SecretRef;
use crate::sections::{UnlockMethod, Wire};

/// The user id that the kernel shows for a user that it cannot map.
pub(crate) const OVERFLOW_UID: u32 = 65_534;

pub(crate) fn conflicts(settings: &Settings) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |key: &str, what: &str, remedy: &str| {
        found.push(Problem::new(settings.resolved.provenance(key), key, what, remedy));
    };
    let (state, key_file) = (&settings.paths.state, &settings.unlock.key_file);

    if within(&settings.paths.marker, state) {
        add(
            "paths.marker",
            "the marker lies in the store's folder",
            "Put it elsewhere: it tells when that folder is gone.",
        );
    }
    if settings.unlock.method == UnlockMethod::KeyFile && within(key_file, state) {
        add("unlock.key_file", "the key lies beside what it unlocks", "Put it outside of paths.state.");
    }

    for (i, endpoint) in settings.endpoints.iter().enumerate() {
        let key = |name: &str| format!("model.endpoint.{}.{name}", i + 1);
        if settings.endpoints[..i].iter().any(|other| other.name == endpoint.name) {
            add(&key("name"), "an earlier row has the same name", "Give each row its own name.");
        }
        if endpoint.remote && endpoint.url.scheme() != "https" {
            add(
                &key("url"),
                "a remote server would be reached without encryption",
                "Use https, or set remote = false for a server in the home.",
            );
        }
        if endpoint.wire == Wire::Anthropic && endpoint.remote && endpoint.api_key.is_none() {
            add(&key("api_key"), "this server needs a key", "Name the file or credential that holds it.");
        }
        let known_remote = ["api.openai.com", "api.anthropic.com", "openrouter.ai", "ollama.com"];
        if !endpoint.remote && endpoint.url.host_str().is_some_and(|h| known_remote.contains(&h)) {
            add(&key("remote"), "this server is not in the home", "Set remote = true.");
        }
        if endpoint.context_tokens.is_some_and(|context| endpoint.max_tokens >= context) {
            add(
                &key("max_tokens"),
                "an answer could be larger than the context",
                "Lower it, or raise context_tokens.",
            );
        }
    }

    if settings.endpoints.iter().all(|e| e.remote) && settings.model.remote_conversations.is_empty() {
        add(
            "model.remote_conversations",
            "every model server is remote, and no conversation may leave the home",
            "Name the conversations that may, or all of them with [\"*\"].",
        );
    }

    let keys = settings.endpoints.iter().filter_map(|e| match &e.api_key {
        Some(SecretRef::File(path)) => Some(path.as_path()),
        _ => None,
    });
    let own = [state.as_path(), &settings.paths.marker, key_file];
    let private: Vec<_> = own.into_iter().chain(settings.file()).chain(keys).collect();
    for (i, root) in settings.roots.iter().enumerate() {
        if private.iter().any(|p| within(p, &root.path)) || within(&root.path, state) {
            add(
                &format!("tools.root.{}.path", i + 1),
                "the folder holds the store, a key or this configuration",
                "Choose a narrower folder.",
            );
        }
    }

    if settings.shell.enabled {
        if settings.shell.commands.is_empty() {
            add(
                "tools.shell.enabled",
                "no program may be run",
                "List some in tools.shell.commands, or disable the tool.",
            );
        }
        let held = settings.agent.capabilities.iter().any(|s: &Scope| s.base() == "shell.exec");
        if !held {
            add(
                "tools.shell.enabled",
                "the agent may not use it",
                "Add \"shell.exec\" to agent.capabilities, or disable the tool.",
            );
        }
    }
    let fetch = &settings.fetch;
    if fetch.total_s < fetch.first_byte_s || fetch.total_s < fetch.connect_s {
        add(
            "tools.fetch.total_s",
            "the whole is shorter than a part of it",
            "Raise it above connect_s and first_byte_s.",
        );
    }
    if settings.console.connections < settings.console.connections_per_uid {
        add(
            "console.connections_per_uid",
            "one user may have more connections than all",
            "Lower it to console.connections.",
        );
    }
    if settings.console.owner_uid == Some(OVERFLOW_UID) {
        add(
            "console.owner_uid",
            "65534 stands for any user that the kernel cannot name",
            "Use the id of a real user.",
        );
    }
    found
}

/// True when `inner` is `outer` or lies below it, by whole path segments, as
/// they are written or where symbolic links lead.
fn within(inner: &Path, outer: &Path) -> bool {
    let outer = [outer.to_owned(), resolved(outer)];
    [inner.to_owned(), resolved(inner)].iter().any(|inner| outer.iter().any(|o| inner.starts_with(o)))
}

/// The path without symbolic links, as far as it exists; the rest stays as written.
fn resolved(path: &Path) -> PathBuf {
    let real = |above: &Path| Some(above.canonicalize().ok()?.join(path.strip_prefix(above).ok()?));
    path.ancestors().find_map(real).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use crate::{Settings, Sources};

    /// No root reaches the store or a key, whichever of the two is spelled
    /// through a link, and whether the store exists yet or not.
    #[test]
    fn links_do_not_hide_what_is_private() {
        #[track_caller]
        fn check(root: &str, state: &str, key: &str, sound: bool) {
            let dir = tempfile::tempdir().unwrap();
            let at = |name: &str| dir.path().join(name);
            for folder in ["real/store", "real/keys", "notes"] {
                std::fs::create_dir_all(at(folder)).unwrap();
            }
            std::fs::write(at("real/keys/key"), "k").unwrap();
            std::fs::create_dir(at("links")).unwrap();
            symlink(at("real"), at("link")).unwrap();
            symlink(at("real/store"), at("links/store")).unwrap();
            symlink(at("real/keys/key"), at("links/key")).unwrap();
            symlink(at("notes"), at("pad")).unwrap();
            let text = format!(
                "[paths]\nstate = {:?}\n[unlock]\nkey_file = {:?}\n[[tools.root]]\npath = {:?}\n",
                at(state),
                at(key),
                at(root)
            );
            std::fs::create_dir(at("etc")).unwrap();
            std::fs::write(at("etc/h.toml"), text).unwrap();
            let sources = Sources::new(Some(at("etc/h.toml")), Vec::<(String, String)>::new());
            let told = Settings::load(&sources).err().map(|problems| problems.to_string());
            assert_eq!(told.is_none(), sound, "{root} {state} {key}: {told:?}");
            assert!(told.is_none_or(|t| t.contains("tools.root.1.path: the folder holds")));
        }
        let (store, key) = ("real/store", "real/keys/key");
        for root in ["notes", "pad", "notes/new", "pad/new"] {
            check(root, store, key, true);
            check(root, "links/store", "links/key", true);
        }
        for root in ["real", "link", "link/store", "link/keys", "link/store/below", "etc"] {
            check(root, store, key, false);
            check(root, "links/store", "links/key", false);
        }
        check("link", "real/later/store", "elsewhere", false);
        check("real", "link/later/store", "elsewhere", false);
        check("real/later", "link/later/store", "elsewhere", false);
        // The link itself must stay too.
        check("links", "links/store", "elsewhere", false);
        check("links", store, "links/key", false);
    }
}
