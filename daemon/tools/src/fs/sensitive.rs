//! Paths that file tools refuse whatever their root says: what unlocks something,
//! and what makes something run later.
//!
//! Names are compared without regard to case, so that a file system that does not
//! tell cases apart cannot be used to get around the list.

/// Why a path is out of reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sensitive {
    /// Keys, passwords, sessions.
    Secret,
    /// What the system or a program runs by itself.
    Startup,
    /// The kernel's own files, devices among them.
    System,
}

impl Sensitive {
    /// For the model and the person.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Secret => "holds keys or passwords; file tools never touch those",
            Self::Startup => "makes programs run later; file tools never touch that",
            Self::System => "belongs to the system; file tools never touch that",
        }
    }
}

/// Folders of the system, by their absolute path; all below counts.
const SYSTEM: &[(&str, Sensitive)] = &[
    ("/proc", Sensitive::System),
    ("/sys", Sensitive::System),
    ("/dev", Sensitive::System),
    ("/boot", Sensitive::System),
    ("/run", Sensitive::System),
    ("/var/run", Sensitive::System),
    ("/etc/shadow", Sensitive::Secret),
    ("/etc/shadow-", Sensitive::Secret),
    ("/etc/gshadow", Sensitive::Secret),
    ("/etc/gshadow-", Sensitive::Secret),
    ("/etc/ssh", Sensitive::Secret),
    ("/etc/ssl/private", Sensitive::Secret),
    ("/etc/krb5.keytab", Sensitive::Secret),
    ("/etc/credstore", Sensitive::Secret),
    ("/etc/credstore.encrypted", Sensitive::Secret),
    ("/etc/wireguard", Sensitive::Secret),
    ("/etc/openvpn", Sensitive::Secret),
    ("/etc/ppp", Sensitive::Secret),
    ("/etc/wpa_supplicant", Sensitive::Secret),
    ("/etc/networkmanager/system-connections", Sensitive::Secret),
    ("/etc/hearth", Sensitive::Secret),
    ("/var/lib/hearth", Sensitive::Secret),
    ("/var/lib/systemd", Sensitive::Secret),
    ("/etc/passwd", Sensitive::Startup),
    ("/etc/group", Sensitive::Startup),
    ("/etc/sudoers", Sensitive::Startup),
    ("/etc/sudoers.d", Sensitive::Startup),
    ("/etc/doas.conf", Sensitive::Startup),
    ("/etc/polkit-1", Sensitive::Startup),
    ("/etc/pam.d", Sensitive::Startup),
    ("/etc/security", Sensitive::Startup),
    ("/etc/crontab", Sensitive::Startup),
    ("/etc/anacrontab", Sensitive::Startup),
    ("/var/spool/cron", Sensitive::Startup),
    ("/var/spool/at", Sensitive::Startup),
    ("/etc/init.d", Sensitive::Startup),
    ("/etc/rc.local", Sensitive::Startup),
    ("/etc/inittab", Sensitive::Startup),
    ("/etc/systemd", Sensitive::Startup),
    ("/usr/lib/systemd", Sensitive::Startup),
    ("/usr/local/lib/systemd", Sensitive::Startup),
    ("/lib/systemd", Sensitive::Startup),
    ("/etc/profile", Sensitive::Startup),
    ("/etc/profile.d", Sensitive::Startup),
    ("/etc/bash.bashrc", Sensitive::Startup),
    ("/etc/zsh", Sensitive::Startup),
    ("/etc/environment", Sensitive::Startup),
    ("/etc/environment.d", Sensitive::Startup),
    ("/etc/ld.so.preload", Sensitive::Startup),
    ("/etc/ld.so.conf", Sensitive::Startup),
    ("/etc/ld.so.conf.d", Sensitive::Startup),
    ("/etc/udev", Sensitive::Startup),
    ("/usr/lib/udev", Sensitive::Startup),
    ("/etc/modprobe.d", Sensitive::Startup),
    ("/etc/modules-load.d", Sensitive::Startup),
    ("/etc/apt", Sensitive::Startup),
    ("/etc/dpkg", Sensitive::Startup),
    ("/etc/kernel", Sensitive::Startup),
    ("/etc/initramfs-tools", Sensitive::Startup),
    ("/etc/logrotate.d", Sensitive::Startup),
    ("/etc/xdg/autostart", Sensitive::Startup),
    ("/bin", Sensitive::Startup),
    ("/sbin", Sensitive::Startup),
    ("/lib", Sensitive::Startup),
    ("/lib64", Sensitive::Startup),
    ("/usr/bin", Sensitive::Startup),
    ("/usr/sbin", Sensitive::Startup),
    ("/usr/lib", Sensitive::Startup),
    ("/usr/local/bin", Sensitive::Startup),
    ("/usr/local/sbin", Sensitive::Startup),
    ("/usr/local/lib", Sensitive::Startup),
];

/// One or more names in a row, wherever they are; all below counts.
const ANYWHERE: &[(&str, Sensitive)] = &[
    (".ssh", Sensitive::Secret),
    (".gnupg", Sensitive::Secret),
    (".password-store", Sensitive::Secret),
    (".aws", Sensitive::Secret),
    (".azure", Sensitive::Secret),
    (".kube", Sensitive::Secret),
    (".docker/config.json", Sensitive::Secret),
    (".config/gcloud", Sensitive::Secret),
    (".config/gh", Sensitive::Secret),
    (".config/rclone", Sensitive::Secret),
    (".config/op", Sensitive::Secret),
    (".config/sops", Sensitive::Secret),
    (".config/containers/auth.json", Sensitive::Secret),
    (".local/share/keyrings", Sensitive::Secret),
    (".local/share/kwalletd", Sensitive::Secret),
    (".mozilla", Sensitive::Secret),
    (".thunderbird", Sensitive::Secret),
    (".config/google-chrome", Sensitive::Secret),
    (".config/chromium", Sensitive::Secret),
    (".config/bravesoftware", Sensitive::Secret),
    (".netrc", Sensitive::Secret),
    (".pgpass", Sensitive::Secret),
    (".my.cnf", Sensitive::Secret),
    (".git-credentials", Sensitive::Secret),
    (".npmrc", Sensitive::Secret),
    (".pypirc", Sensitive::Secret),
    (".cargo/credentials.toml", Sensitive::Secret),
    (".cargo/credentials", Sensitive::Secret),
    (".terraformrc", Sensitive::Secret),
    (".vault-token", Sensitive::Secret),
    (".htpasswd", Sensitive::Secret),
    (".bash_history", Sensitive::Secret),
    (".zsh_history", Sensitive::Secret),
    (".python_history", Sensitive::Secret),
    (".env", Sensitive::Secret),
    ("secrets.yaml", Sensitive::Secret),
    ("secrets.yml", Sensitive::Secret),
    (".storage/auth", Sensitive::Secret),
    (".storage/auth_provider.homeassistant", Sensitive::Secret),
    ("wpa_supplicant.conf", Sensitive::Secret),
    ("id_rsa", Sensitive::Secret),
    ("id_dsa", Sensitive::Secret),
    ("id_ecdsa", Sensitive::Secret),
    ("id_ed25519", Sensitive::Secret),
    (".bashrc", Sensitive::Startup),
    (".bash_profile", Sensitive::Startup),
    (".bash_login", Sensitive::Startup),
    (".bash_logout", Sensitive::Startup),
    (".bash_aliases", Sensitive::Startup),
    (".profile", Sensitive::Startup),
    (".zshrc", Sensitive::Startup),
    (".zshenv", Sensitive::Startup),
    (".zprofile", Sensitive::Startup),
    (".zlogin", Sensitive::Startup),
    (".zlogout", Sensitive::Startup),
    (".kshrc", Sensitive::Startup),
    (".config/fish", Sensitive::Startup),
    (".inputrc", Sensitive::Startup),
    (".pam_environment", Sensitive::Startup),
    (".xinitrc", Sensitive::Startup),
    (".xprofile", Sensitive::Startup),
    (".xsession", Sensitive::Startup),
    (".xsessionrc", Sensitive::Startup),
    (".config/autostart", Sensitive::Startup),
    (".config/systemd", Sensitive::Startup),
    (".config/environment.d", Sensitive::Startup),
    (".local/share/systemd", Sensitive::Startup),
    (".local/bin", Sensitive::Startup),
    (".git/hooks", Sensitive::Startup),
    (".git/config", Sensitive::Startup),
    (".gitconfig", Sensitive::Startup),
    (".config/git", Sensitive::Startup),
    (".husky", Sensitive::Startup),
    (".vscode/tasks.json", Sensitive::Startup),
    (".envrc", Sensitive::Startup),
    (".vimrc", Sensitive::Startup),
    (".config/nvim", Sensitive::Startup),
    (".emacs", Sensitive::Startup),
    (".emacs.d", Sensitive::Startup),
    (".tmux.conf", Sensitive::Startup),
    (".cargo/config.toml", Sensitive::Startup),
    (".cargo/bin", Sensitive::Startup),
    ("authorized_keys", Sensitive::Startup),
    ("authorized_keys2", Sensitive::Startup),
    ("rc.local", Sensitive::Startup),
];

/// Ends of names.
const ENDINGS: &[(&str, Sensitive)] = &[
    (".pem", Sensitive::Secret),
    (".key", Sensitive::Secret),
    (".p12", Sensitive::Secret),
    (".pfx", Sensitive::Secret),
    (".jks", Sensitive::Secret),
    (".keystore", Sensitive::Secret),
    (".kdbx", Sensitive::Secret),
    (".kdb", Sensitive::Secret),
    (".ppk", Sensitive::Secret),
    (".ovpn", Sensitive::Secret),
    (".keytab", Sensitive::Secret),
    (".gpg", Sensitive::Secret),
    (".age", Sensitive::Secret),
];

/// What people use below folders of the system.
const ORDINARY: &[&str] = &["/dev/shm", "/run/media"];

/// Whether an absolute, canonical path is out of reach, and why.
pub(crate) fn sensitive(path: &str) -> Option<Sensitive> {
    let path = path.to_lowercase();
    let below =
        |base: &str| path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let ordinary = ORDINARY.iter().any(|base| below(base));
    if let Some((_, why)) = SYSTEM.iter().find(|(base, _)| below(base) && !ordinary) {
        return Some(*why);
    }
    // With a slash on both sides, names are found as wholes.
    let padded = format!("{path}/");
    let holds = |names: &str| {
        padded
            .match_indices(names)
            .any(|(at, _)| padded[..at].ends_with('/') && padded[at + names.len()..].starts_with('/'))
    };
    if let Some((_, why)) = ANYWHERE.iter().find(|(names, _)| holds(names)) {
        return Some(*why);
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    // `.env.local` and the like.
    if name.starts_with(".env.") {
        return Some(Sensitive::Secret);
    }
    ENDINGS
        .iter()
        .find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len())
        .map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_unlocks_and_what_runs_is_out_of_reach() {
        #[track_caller]
        fn check(path: &str, expected: Option<Sensitive>) {
            assert_eq!(sensitive(path), expected, "{path}");
        }
        for (path, why) in SYSTEM {
            check(path, Some(*why));
            check(&format!("{path}/x/y"), Some(*why));
            check(&format!("/home/anna{path}x"), None);
        }
        for (names, why) in ANYWHERE {
            check(&format!("/home/anna/{names}"), Some(*why));
            check(&format!("/home/anna/{names}/below"), Some(*why));
            check(&format!("/srv/{}", names.to_uppercase()), Some(*why));
            check(&format!("/home/anna/my{}x", names.replace('/', "-")), None);
        }
        for (ending, why) in ENDINGS {
            check(&format!("/home/anna/notes/box{ending}"), Some(*why));
            check(&format!("/home/anna/notes/box{ending}.txt"), None);
        }
        check("/home/anna/app/.env.production", Some(Sensitive::Secret));
        for harmless in [
            "/",
            "/dev/shm/notes/list.txt",
            "/run/media/anna/stick/list.txt",
            "/home/anna",
            "/home/anna/notes/shopping.txt",
            "/home/anna/notes/the key to success.txt",
            "/home/anna/.config/hearth-notes.txt",
            "/home/anna/keys/readme.md",
            "/home/anna/environment.txt",
            "/home/anna/.key",
            "/home/anna/git/hooks.md",
            "/srv/devices/list.txt",
            "/etcetera/shadow",
            "/home/anna/run/plan.md",
        ] {
            check(harmless, None);
        }
    }
}
