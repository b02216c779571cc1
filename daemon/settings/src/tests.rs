//! What the declarations promise, and what loading makes of good and bad files.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::layers::all_variables;
use crate::sections::SECTIONS;
use crate::spec::{Default, Kind};

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>, mode: u32) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn load_with(toml: &str, environment: &[(&str, &str)]) -> Result<Settings, Problems> {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "h.toml", toml, 0o644);
    Settings::load(&Sources::new(Some(file), environment.iter().copied()))
}

fn load(toml: &str) -> Result<Settings, Problems> {
    load_with(toml, &[])
}

/// The problems without the folder, as `line: key: what. remedy`.
fn problems(toml: &str, environment: &[(&str, &str)]) -> Vec<String> {
    let problems = load_with(toml, environment).err().map(|p| p.0).unwrap_or_default();
    let line = |p: &Problem| p.to_string().split_once("h.toml:").map_or(p.to_string(), |l| l.1.into());
    problems.iter().map(line).collect()
}

/// Each expected text must be part of the problem at its position.
fn check(toml: &str, expected: &[&str]) {
    let found = problems(toml, &[]);
    assert_eq!(found.len(), expected.len(), "{toml}\n{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{toml}\n{found}\nlacks {expected}");
    }
}

#[test]
fn without_any_source_the_defaults_hold() {
    let missing = Sources::new(None, [("PATH", "/bin")]);
    assert_eq!(missing, Sources::new(None, Vec::<(String, String)>::new()));
    let settings = load("").unwrap();
    assert_eq!(settings.turn.max_steps, 32);
    assert_eq!(settings.turn.budget_local_s, Duration::from_secs(600));
    assert_eq!(settings.endpoints.len(), 1);
    assert_eq!(settings.endpoints[0].first_token(), Duration::from_secs(300));
    assert!(settings.roots.is_empty() && !settings.shell.enabled);
    assert!(settings.show().iter().all(|s| s.provenance == Provenance::Default));
}

/// "Bounded by default": no default is unlimited, and no wait is zero. Whatever
/// is added to the declarations is covered here without being named.
#[test]
fn every_default_is_bounded() {
    // Zero means something else than "no wait" here.
    let zero_allowed = ["model.keep_alive_s"];
    let mut numbers = 0;
    for section in SECTIONS {
        assert!(section.rows <= 64);
        for spec in section.keys {
            let key = format!("{}.{}", section.path, spec.name);
            match (spec.kind, sections::default_of(spec)) {
                (Kind::Number { min, max, unit }, default) => {
                    numbers += 1;
                    assert!(min <= max && max < 1 << 33, "{key} has no upper bound");
                    let wait = unit == "seconds";
                    assert_eq!(wait, spec.name.ends_with("_s"), "{key}: its name tells its unit");
                    assert!(!wait || min > 0 || zero_allowed.contains(&&*key), "{key}: zero wait");
                    assert!(!wait || max <= 7 * 86_400, "{key}: no wait is longer than a week");
                    assert!(unit != "bytes" || (min > 0 && max <= 16 << 20), "{key}");
                    if let spec::Value::Number(n) = default {
                        assert!(n > 0 || !wait, "{key}: zero");
                    }
                }
                (Kind::Text { max, .. }, _) => assert!(max <= 4096, "{key}"),
                (Kind::Texts { items, max, .. }, _) => assert!(items <= 64 && max <= 256, "{key}"),
                _ => {}
            }
            // What holds when nothing is set must be said.
            let says = spec.doc.iter().any(|line| line.trim().starts_with("When unset, "));
            assert_eq!(says, matches!(spec.default, Default::Unset { .. }), "{key}");
            // Examples and defaults are sound, required keys exist.
            sections::parse(spec, spec.default.example());
        }
        for required in section.required {
            assert!(section.keys.iter().any(|spec| spec.name == *required));
        }
    }
    assert!(numbers > 20, "the walk found {numbers} numbers only");
}

#[test]
fn every_variable_sets_exactly_one_key() {
    let variables = all_variables();
    let keys: BTreeSet<_> = variables.values().map(|(key, ..)| key).collect();
    let expected: usize = SECTIONS.iter().map(|s| s.keys.len() * s.rows.max(1)).sum();
    assert_eq!((variables.len(), keys.len()), (expected, expected));
    assert!(!variables.contains_key(CONFIG_VARIABLE));
}

#[test]
fn later_layers_win_and_say_so() {
    let toml = "[turn]\nmax_steps = 5\nmax_calls_per_step = 3\n\n[[model.endpoint]]\nname = \"a\"\nurl = \"http://10.0.0.2:8080\"\nmodel = \"m\"\n";
    let environment = [
        ("HEARTH_TURN_MAX_STEPS", "7"),
        ("HEARTH_MODEL_ENDPOINT_1_MODEL", "other"),
        ("HEARTH_MODEL_ENDPOINT_2_URL", "https://x.example"),
        ("HEARTH_MODEL_ENDPOINT_2_REMOTE", "true"),
        ("HEARTH_MODEL_ENDPOINT_2_API_KEY", "credential:key"),
        ("HEARTH_TOOLS_DISABLED", "net.fetch, time.now"),
        ("CREDENTIALS_DIRECTORY", "/run/c"),
    ];
    let settings = load_with(toml, &environment).unwrap();
    assert_eq!((settings.turn.max_steps, settings.turn.max_calls_per_step), (7, 3));
    assert_eq!(settings.endpoints.len(), 2);
    assert_eq!(settings.endpoints[0].model, "other");
    assert_eq!(settings.endpoints[0].url.as_str(), "http://10.0.0.2:8080/");
    assert_eq!(settings.endpoints[1].first_token(), Duration::from_secs(60));
    assert_eq!(settings.tools.disabled, ["net.fetch", "time.now"]);
    let credential = SecretRef::Credential { name: "key".into(), directory: Some("/run/c".into()) };
    assert_eq!(settings.endpoints[1].api_key, Some(credential));

    let show = settings.show();
    let shown = |key: &str| {
        let found = show.iter().find(|s| s.key == key).unwrap();
        let provenance = found.provenance.to_string();
        (found.value.clone(), provenance.rsplit('/').next().unwrap().to_owned())
    };
    let table = [
        ("turn.max_steps", "7", "environment HEARTH_TURN_MAX_STEPS"),
        ("turn.max_calls_per_step", "3", "h.toml:3"),
        ("turn.budget_local_s", "600", "default"),
        ("model.endpoint.1.url", "\"http://10.0.0.2:8080\"", "h.toml:7"),
        ("model.endpoint.2.api_key", "set (from credential key)", "credential key"),
        ("model.endpoint.1.api_key", "unset", "default"),
        ("tools.disabled", "[\"net.fetch\", \"time.now\"]", "environment HEARTH_TOOLS_DISABLED"),
    ];
    for (key, value, provenance) in table {
        assert_eq!(shown(key), (value.into(), provenance.into()), "{key}");
    }
}

#[test]
fn a_row_may_come_from_the_environment_alone() {
    let settings = load_with("", &[("HEARTH_MODEL_ENDPOINT_1_MODEL", "tiny")]).unwrap();
    assert_eq!(settings.endpoints[0].model, "tiny");
    assert_eq!(settings.endpoints[0].url.host_str(), Some("127.0.0.1"));
    let gap = problems("", &[("HEARTH_MODEL_ENDPOINT_3_MODEL", "tiny")]);
    assert!(gap[0].contains("without gaps"), "{gap:?}");
}

#[test]
fn problems_have_line_key_and_remedy() {
    check(
        "[turn]\nmax_step = 3",
        &["2: turn.max_step: there is no such setting. Did you mean \"max_steps\"?"],
    );
    check("[trun]\nmax_steps = 3", &["1: trun: there is no such setting. Did you mean \"turn\"?"]);
    check("\n[log]\nmax_steps = 3", &["3: log.max_steps: there is no such setting. It belongs to [turn]."]);
    check("boiler = 3", &["1: boiler: there is no such setting. Remove it"]);
    check("[turn]\nmax_steps = 0", &["2: turn.max_steps: the number is out of range. Allowed are 1 to 256"]);
    check("[turn]\nmax_steps = -1", &["out of range"]);
    check("[turn]\nmax_steps = 99999999999999999999999", &["out of range"]);
    check("[turn]\nmax_steps = 0xff", &[]);
    check("[turn]\nmax_steps = \"3\"", &["2: turn.max_steps: holds text. Use a whole number"]);
    check("[turn]\nmax_steps = 3.0", &["holds a number"]);
    check("turn = 3", &["1: turn: this is a table. Write [turn]"]);
    check("[[turn]]\n", &["Write [turn]"]);
    check("[model.endpoint]\nname = \"a\"", &["Write [[model.endpoint]]"]);
    check(
        "[[model.endpoint]]\nname = \"a\"",
        &["1: model.endpoint.1.model: the row lacks this key", "model.endpoint.1.url"],
    );
    check("[log]\nlevel = \"inof\"", &["Did you mean \"info\"?"]);
    check("[unlock]\nmethod = \"keyfile\"", &["Did you mean \"key_file\"?"]);
    check("[paths]\nstate = \"var/lib\"", &["not absolute"]);
    check("[paths]\nstate = \"/var/../etc\"", &["holds \"..\""]);
    check("[tools.fetch]\nlan_hosts = [\"nas.lan:8080\", \"http://x\"]", &["item 2"]);
    check("[tools.fetch]\nlan_hosts = [\"nas\", 3]", &["something else than text"]);
    check("[home]\ntime_zone = \"Europe/Berlin\"", &[]);
    check("[home]\ntime_zone = \"../../etc/passwd\"", &["time zone"]);
    check("[home]\nname = \"\"", &["empty"]);
    check("[turn\nmax_steps = 1", &["1: "]);
    check("a = 1\na = 2", &["2: "]);
    check("model.endpoint = []", &["1: model.endpoint: the list is empty"]);
    check("tools.root = []", &[]);
    let many = "[[tools.root]]\npath = \"/a\"\n".repeat(17);
    check(&many, &["At most 16"]);
}

#[test]
fn all_problems_are_told_at_once_and_in_order() {
    let toml = "[log]\nlevel = 1\n[turn]\nmax_steps = 0\nfoo = 1\n[nowhere]\n";
    check(toml, &["2: log.level", "4: turn.max_steps", "5: turn.foo", "6: nowhere"]);
    let many: String = (0..5000).map(|i| format!("key{i} = 1\n")).collect();
    assert_eq!(problems(&many, &[]).len(), 100);
}

#[test]
fn settings_that_contradict_each_other() {
    let endpoint = |rest: &str| format!("[[model.endpoint]]\nname = \"a\"\nmodel = \"m\"\n{rest}\n");
    let stays = "no conversation may leave";
    check(&endpoint("url = \"http://x.example\"\nremote = true"), &["without encryption", stays]);
    check(&endpoint("url = \"https://x.example\"\nremote = true"), &[stays]);
    let leaves = "[model]\nremote_conversations = [\"work\"]";
    check(&endpoint(&format!("url = \"https://x.example\"\nremote = true\n{leaves}")), &[]);
    check(&endpoint("url = \"https://api.openai.com\""), &["Set remote = true"]);
    check(&endpoint("url = \"https://u:p@x.example\""), &["user name or password"]);
    check(&endpoint("url = \"ftp://x.example\""), &["http:// or https://"]);
    check(
        &endpoint("url = \"http://x\"\nmax_tokens = 2048\ncontext_tokens = 2048"),
        &["larger than the context"],
    );
    check(
        &endpoint("url = \"https://x.example\"\nremote = true\nwire = \"anthropic\""),
        &["needs a key", stays],
    );
    check(&(endpoint("url = \"http://x\"") + &endpoint("url = \"http://y\"")), &["same name"]);
    check("[paths]\nmarker = \"/var/lib/hearth/store/m\"", &["2: paths.marker"]);
    check("[unlock]\nkey_file = \"/var/lib/hearth/store/key\"", &["beside what it unlocks"]);
    check("[unlock]\nmethod = \"passphrase\"\nkey_file = \"/var/lib/hearth/store/key\"", &[]);
    for (root, sound) in [
        ("/", false),
        ("/etc/hearth", false),
        ("/var/lib", false),
        ("/var/lib/hearth/store/x", false),
        ("/var/lib/hearth/storehouse", true),
        ("/srv/notes", true),
    ] {
        let toml = format!("[[tools.root]]\npath = \"{root}\"");
        assert_eq!(problems(&toml, &[]).is_empty(), sound, "{root}");
    }
    let key = endpoint("url = \"http://x\"\napi_key = { file = \"/srv/keys/model\" }");
    check(&(key + "[[tools.root]]\npath = \"/srv/keys\""), &["tools.root.1.path: the folder holds"]);
    check("[tools.shell]\nenabled = true", &["no program", "may not use it"]);
    check(
        "[agent]\ncapabilities = [\"shell.exec\"]\n[tools.shell]\nenabled = true\ncommands = [\"ls\"]",
        &[],
    );
    check("[tools.fetch]\ntotal_s = 3", &["whole is shorter"]);
    check("[console]\nconnections = 2", &["console.connections_per_uid"]);
    check("[console]\nowner_uid = 65534", &["2: console.owner_uid"]);
}

#[test]
fn unknown_variables_warn() {
    let settings = load_with("", &[("HEARTH_TURN_MAXSTEPS", "1"), ("HEARTHSIDE", "1")]).unwrap();
    assert_eq!(settings.warnings.len(), 1);
    assert!(settings.warnings[0].to_string().contains("Did you mean HEARTH_TURN_MAX_STEPS?"));
    let bad = [("HEARTH_TURN_MAX_STEPS", "many"), ("HEARTH_MODEL_WARM_UP", "yes"), ("HEARTH_LOG_LEVEL", "")];
    assert_eq!(problems("", &bad).len(), 3);
}

/// A secret in a place where none belongs is refused, and no message, no `Debug`
/// and no `show` quotes it.
#[test]
fn a_misplaced_secret_is_never_quoted() {
    const CANARY: &str = "sk-canary-1234567890";
    let endpoint = |rest: String| {
        format!("[[model.endpoint]]\nname = \"a\"\nmodel = \"m\"\nurl = \"http://x\"\n{rest}\n")
    };
    let files = [
        endpoint(format!("api_key = \"{CANARY}\"")),
        endpoint(format!("api_key = {{ file = \"{CANARY}\" }}")),
        endpoint(format!("api_key = {{ value = \"{CANARY}\" }}")),
        endpoint(format!("api_key = {{ file = \"/a\", credential = \"{CANARY}\" }}")),
        endpoint(format!("apikey = \"{CANARY}\"")),
        endpoint(format!("api_key = [\"{CANARY}\"]")),
        endpoint(format!("api_key = \"{CANARY}")),
        endpoint(format!("api_key = {CANARY}")),
        endpoint(format!("wire = \"{CANARY}\"")),
        format!("[[model.endpoint]]\nname = \"a\"\nmodel = \"m\"\nurl = \"https://u:{CANARY}@x\"\n"),
        format!("[unlock]\npassphrase = \"{CANARY}\""),
        format!("[unlock]\nkey_file = \"{CANARY}\""),
        format!("[log]\nlevel = \"{CANARY}\""),
        format!("[agent]\ncapabilities = [\"{CANARY}\"]"),
    ];
    for file in files {
        let problems = load(&file).expect_err(&file);
        assert!(!format!("{problems} {problems:?}").contains("canary"), "{file}\n{problems}");
    }
    for name in ["HEARTH_MODEL_ENDPOINT_1_API_KEY", "HEARTH_LOG_LEVEL", "HEARTH_TURN_MAX_STEPS"] {
        let problems = load_with("", &[(name, CANARY)]).expect_err(name);
        assert!(!format!("{problems} {problems:?}").contains("canary"), "{problems}");
    }
}

#[test]
fn secrets_come_from_closed_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8], mode| SecretRef::File(write(dir.path(), name, bytes, mode));
    let credential = |name: &str, bytes: &[u8], mode| {
        write(dir.path(), name, bytes, mode);
        SecretRef::Credential { name: name.into(), directory: Some(dir.path().into()) }
    };
    let table = [
        (file("a", b"key\n", 0o400), Ok("key")),
        (file("b", b"key\r\n", 0o600), Ok("key")),
        (file("c", b"key", 0o640), Err("chmod 400")),
        (file("d", b"key", 0o404), Err("chmod 400")),
        (file("e", b"", 0o400), Err("nothing else")),
        (file("f", &[b'x'; 65 * 1024], 0o400), Err("nothing else")),
        (file("g", b"two\nlines", 0o400), Err("nothing else")),
        (file("h", b"\xff\xfe", 0o400), Err("nothing else")),
        (SecretRef::File(dir.path().into()), Err("regular file")),
        (SecretRef::File(dir.path().join("none")), Err("Create the file")),
        (credential("i", b"key", 0o440), Ok("key")),
        (credential("j", b"key", 0o444), Err("chmod 400")),
        (SecretRef::Credential { name: "k".into(), directory: None }, Err("LoadCredential=")),
    ];
    for (secret, expected) in table {
        let found = secret.read().and_then(|s| s.text().map(str::to_owned));
        match (found, expected) {
            (Ok(text), Ok(expected)) => assert_eq!(text, expected),
            (Err(error), Err(hint)) => assert!(error.remedy().contains(hint), "{error}: {}", error.remedy()),
            (found, expected) => panic!("{secret:?}: {found:?} is not {expected:?}"),
        }
    }
}

#[test]
fn check_reads_the_secrets_too() {
    let dir = tempfile::tempdir().unwrap();
    let key = write(dir.path(), "key", [7; 32], 0o400);
    let open = write(dir.path(), "open", "sk-canary", 0o444);
    let toml = format!(
        "[unlock]\nkey_file = {key:?}\n[[model.endpoint]]\nname = \"a\"\nmodel = \"m\"\nurl = \"http://x\"\napi_key = {{ file = {open:?} }}\n"
    );
    let file = write(dir.path(), "h.toml", &toml, 0o644);
    let sources = Sources::new(Some(file.clone()), Vec::<(String, String)>::new());
    let found = Settings::check(&sources);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string().contains("h.toml:7: model.endpoint.1.api_key: "), "{}", found[0]);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o400)).unwrap();
    assert_eq!(Settings::check(&sources), []);
    let settings = Settings::load(&sources).unwrap();
    assert!(!format!("{settings:?} {:?}", settings.show()).contains("canary"));
    assert_eq!(settings.unlock_secret().unwrap().read().unwrap_or_else(|_| panic!()).bytes(), [7; 32]);
}

#[test]
fn files_that_cannot_be_taken() {
    let dir = tempfile::tempdir().unwrap();
    let table = [
        (write(dir.path(), "open", "", 0o666), "chmod o-w"),
        (write(dir.path(), "large", " ".repeat(256 * 1024 + 1), 0o644), "Shorten"),
        (write(dir.path(), "latin", b"# \xe9", 0o644), "UTF-8"),
        (dir.path().join("none"), "--config"),
        (dir.path().to_owned(), "Name a file"),
    ];
    for (file, hint) in table {
        let environment = [(CONFIG_VARIABLE, file)];
        let problems = Settings::load(&Sources::new(None, environment)).expect_err(hint);
        assert!(problems.to_string().contains(hint), "{problems}");
    }
    let full = write(dir.path(), "full", " ".repeat(256 * 1024), 0o644);
    assert!(Settings::load(&Sources::new(Some(full), Vec::<(String, String)>::new())).is_ok());
    let deep = "a = ".to_owned() + &"[".repeat(100_000);
    assert!(!problems(&deep, &[]).is_empty());
}

/// The example lists every key; without its comment marks it means the defaults.
#[test]
fn the_example_covers_every_key() {
    let bare: String = example()
        .lines()
        .map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let settings = load(&bare).unwrap();
    for shown in settings.show() {
        assert!(
            matches!(shown.provenance, Provenance::File { .. } | Provenance::Credential { .. }),
            "{shown:?} is not in the example"
        );
    }
    let defaults = load("").unwrap();
    let set = |s: &Settings| {
        let rows = s.show().into_iter().filter(|s| s.key != "model.endpoint.1.api_key");
        rows.map(|s| (s.key, s.value)).collect::<BTreeSet<_>>()
    };
    let differing: BTreeSet<_> = set(&defaults)
        .difference(&set(&settings))
        .map(|(k, v)| {
            assert_eq!(v, "unset", "{k}");
            k.clone()
        })
        .collect();
    assert!(differing.len() >= 6, "{differing:?}");
    // As shipped it changes nothing at all.
    assert_eq!(set(&load(&example()).unwrap()), set(&defaults));
}

/// Files that are made from the declarations; `UPDATE=1` rewrites them.
#[test]
#[allow(clippy::disallowed_methods, reason = "the switch that rewrites generated files")]
fn generated_files_are_current() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (path, text) in [("docs/manual/settings.md", reference()), ("deploy/hearth.toml", example())] {
        let path = top.join(path);
        if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "{} is out of date: run UPDATE=1 cargo test -p hearth-settings",
            path.display()
        );
    }
}

proptest! {
    /// Any bytes give settings or problems; every problem has a remedy.
    #[test]
    fn any_file_is_taken_or_refused(text in "[a-z\\[\\]{}=.,\"'# \n0-9_-]{0,200}") {
        if let Err(problems) = load(&text) {
            prop_assert!(!problems.0.is_empty());
            for problem in problems.0 {
                prop_assert!(!problem.what.is_empty() && !problem.remedy.is_empty());
            }
        }
    }

    /// Every number of the declarations is taken exactly inside of its range.
    #[test]
    fn ranges_are_exact(n in any::<i64>(), pick in any::<prop::sample::Index>()) {
        let numbers: Vec<_> = SECTIONS.iter().filter(|s| s.rows == 0).flat_map(|s| {
            s.keys.iter().filter_map(move |k| match k.kind {
                Kind::Number { min, max, .. } => Some((s.path, k.name, min, max)),
                _ => None,
            })
        }).collect();
        let (section, key, min, max) = numbers[pick.index(numbers.len())];
        for n in [n, min as i64, max as i64, min as i64 - 1, max as i64 + 1] {
            let found = problems(&format!("[{section}]\n{key} = {n}"), &[]);
            let refused = found.iter().any(|p| p.contains("out of range"));
            prop_assert_eq!(refused, !(min as i128..=max as i128).contains(&i128::from(n)), "{} {}", key, n);
        }
    }
}
