//! House rules that a compiler does not check. Each rule is a function over data
//! that returns what is wrong; `tree_is_tidy` runs all of them on this tree, and
//! the tests below it show each rule failing once on a bad input.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Most lines of a file that is not a test.
const LINES_MAX: usize = 800;
/// Lines that a file aims for; more is reported, not refused.
const LINES_AIM: usize = 300;

/// A file of the tree: path from the root with `/`, and its text.
type File = (String, String);

// --- The page that the rules are read from ---------------------------------------------------

/// What `docs/architecture.md` says in its fenced blocks.
#[derive(Debug, Default)]
struct Rules {
    top_level: BTreeSet<String>,
    /// Crate to the crates that it may name; `*` stands for all.
    edges: BTreeMap<String, BTreeSet<String>>,
    pure: BTreeSet<String>,
    /// External crate to its only user.
    owners: BTreeMap<String, String>,
    /// Number to the files that show it.
    invariants: BTreeMap<u32, Vec<String>>,
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn fence<'a>(page: &'a str, name: &str) -> &'a str {
    let start = format!("```{name}\n");
    let at = page.find(&start).unwrap_or_else(|| panic!("no ```{name} block in docs/architecture.md"));
    let body = &page[at + start.len()..];
    &body[..body.find("```").unwrap()]
}

impl Rules {
    fn parse(page: &str) -> Self {
        let edges = fence(page, "dependencies").lines().filter_map(|line| line.split_once("->"));
        Self {
            top_level: words(fence(page, "top-level")),
            edges: edges.map(|(from, to)| (from.trim().to_owned(), words(to))).collect(),
            pure: words(fence(page, "pure")),
            owners: fence(page, "owners")
                .lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(library, owner)| (library.to_owned(), owner.trim().to_owned()))
                .collect(),
            invariants: page.split("- **INV-").skip(1).map(invariant).collect(),
        }
    }

    /// Everything that `from` may reach over any number of edges.
    fn closure(&self, from: &str) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let mut todo = vec![from.to_owned()];
        while let Some(name) = todo.pop() {
            for next in self.edges.get(&name).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    todo.push(next.clone());
                }
            }
        }
        seen
    }
}

/// Reads `N** ... Shown in `file`, `file`.` up to the end of its paragraph.
fn invariant(text: &str) -> (u32, Vec<String>) {
    let number = text.split("**").next().unwrap().parse().unwrap();
    let text = text.split("\n\n").next().unwrap();
    let shown = text.split_once("Shown in").map_or("", |(_, after)| after);
    (number, shown.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

// --- The rules -------------------------------------------------------------------------------

/// A dependency as `cargo metadata` tells it: user, library, whether for tests only.
#[derive(Debug, Clone, PartialEq)]
struct Edge {
    from: String,
    to: String,
    dev: bool,
}

/// The direct dependencies of our crates; ours are named without `hearth-`.
fn edges(metadata: &Value) -> Vec<Edge> {
    let short = |name: &str| name.strip_prefix("hearth-").unwrap_or(name).to_owned();
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let ours = metadata["packages"].as_array().unwrap().iter();
    ours.filter(|package| members.contains(package["id"].as_str().unwrap()))
        .flat_map(|package| {
            package["dependencies"].as_array().unwrap().iter().map(move |dependency| Edge {
                from: short(package["name"].as_str().unwrap()),
                to: short(dependency["name"].as_str().unwrap()),
                dev: dependency["kind"] == "dev",
            })
        })
        .filter(|edge| edge.from != edge.to)
        .collect()
}

/// Edges between our crates that the table does not have, and crates without a line.
fn foreign_edges(rules: &Rules, members: &BTreeSet<String>, edges: &[Edge]) -> Vec<String> {
    let unlisted = members.iter().filter(|name| !rules.edges.contains_key(*name));
    let unlisted = unlisted.map(|name| format!("{name}: has no line in the dependency table"));
    let stale = rules.edges.keys().filter(|name| !members.contains(*name));
    let stale = stale.map(|name| format!("{name}: is in the dependency table and does not exist"));
    let bad = edges.iter().filter(|edge| members.contains(&edge.to)).filter(|edge| {
        let allowed = rules.edges.get(&edge.from).cloned().unwrap_or_default();
        let reached = if edge.dev { rules.closure(&edge.from) } else { allowed.clone() };
        !allowed.contains("*") && !reached.contains(&edge.to)
    });
    let bad = bad.map(|edge| format!("{} -> {}: not in the dependency table", edge.from, edge.to));
    unlisted.chain(stale).chain(bad).collect()
}

/// Libraries that bring a clock, I/O or randomness.
const IMPURE_LIBRARIES: &[&str] = &[
    "tokio",
    "tokio-util",
    "futures-util",
    "getrandom",
    "rand",
    "rustix",
    "libc",
    "reqwest",
    "redb",
    "log",
    "jiff",
    "time",
    "tempfile",
];

/// Impure libraries of crates that have to be pure; their tests may use what they like.
fn impure_libraries(rules: &Rules, edges: &[Edge]) -> Vec<String> {
    let bad = edges.iter().filter(|edge| {
        rules.pure.contains(&edge.from) && !edge.dev && IMPURE_LIBRARIES.contains(&edge.to.as_str())
    });
    bad.map(|edge| {
        format!("{} -> {}: the crate has to stay free of clocks, I/O and randomness", edge.from, edge.to)
    })
    .collect()
}

/// Words of the standard library that reach a clock, the machine or chance.
const IMPURE_WORDS: &[&str] = &[
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::io::stdin",
    "SystemTime",
    "Instant",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "ToSocketAddrs",
    "RandomState",
    "OsRng",
    "println!",
    "eprintln!",
    "print!",
];

/// Impure words in the sources of pure crates, tests apart.
fn impure_sources(rules: &Rules, files: &[File]) -> Vec<String> {
    let mut bad = Vec::new();
    for (path, text) in files {
        let mut parts = path.split('/');
        let pure = parts.next() == Some("daemon")
            && parts.next().is_some_and(|name| rules.pure.contains(name))
            && parts.next() == Some("src");
        if !pure || is_test(path) {
            continue;
        }
        // An inline test module is the last thing of its file.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            for word in IMPURE_WORDS.iter().filter(|word| has_word(code, word)) {
                bad.push(format!("{path}:{}: `{word}` in a crate that has to stay pure", number + 1));
            }
        }
    }
    bad
}

/// Users of a library besides its owner, and owners that are not ours.
fn second_owners(rules: &Rules, edges: &[Edge]) -> Vec<String> {
    let bad = edges.iter().filter(|edge| rules.owners.get(&edge.to).is_some_and(|owner| *owner != edge.from));
    bad.map(|edge| format!("{} -> {}: only {} may use it", edge.from, edge.to, rules.owners[&edge.to]))
        .collect()
}

/// `serde_json` must sort its maps: no crate may ask it for another order.
fn unsorted_json(metadata: &Value) -> Vec<String> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap().iter();
    let bad = nodes.filter(|node| {
        let id = node["id"].as_str().unwrap();
        let is_it = id.contains("#serde_json@") || id.starts_with("serde_json ");
        is_it && node["features"].as_array().unwrap().iter().any(|feature| feature == "preserve_order")
    });
    bad.map(|_| "serde_json: some crate turns on preserve_order, which changes canonical bytes".to_owned())
        .collect()
}

/// Files over the limit, and (second) files over the aim.
fn long_files(files: &[File]) -> (Vec<String>, Vec<String>) {
    let code = files.iter().filter(|(path, _)| path.ends_with(".rs") && !is_test(path));
    let long = code.map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > LINES_AIM);
    let (over, aim): (Vec<_>, Vec<_>) = long.partition(|(_, lines)| *lines > LINES_MAX);
    let say = |list: Vec<(&String, usize)>, limit: usize| {
        list.into_iter()
            .map(|(path, lines)| format!("{path}: {lines} lines, {limit} wanted at most"))
            .collect()
    };
    (say(over, LINES_MAX), say(aim, LINES_AIM))
}

/// Invariants that no test carries the tag of, tags without an invariant, and
/// files that are said to show an invariant and do not.
fn unnamed_invariants(rules: &Rules, files: &[File]) -> Vec<String> {
    let tests: Vec<_> =
        files.iter().filter(|(path, text)| path.ends_with(".rs") && carries_tests(path, text)).collect();
    let mut bad = Vec::new();
    for (number, shown) in &rules.invariants {
        let tag = &format!("INV-{number}");
        if !tests.iter().any(|(_, text)| has_word(text, tag)) {
            bad.push(format!("{tag}: no test carries this tag"));
        }
        if shown.is_empty() {
            bad.push(format!("{tag}: the page names no file that shows it"));
        }
        for file in shown {
            match tests.iter().find(|(path, _)| path == file) {
                None => bad.push(format!("{tag}: {file} is not a file with tests")),
                Some((_, text)) if !has_word(text, tag) => {
                    bad.push(format!("{tag}: {file} does not carry this tag"))
                }
                Some(_) => {}
            }
        }
    }
    for (path, text) in tests.iter().filter(|(path, _)| path != TIDY) {
        for piece in text.split("INV-").skip(1) {
            let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
            if digits.parse().is_ok_and(|number: u32| !rules.invariants.contains_key(&number)) {
                bad.push(format!("{path}: INV-{digits} is not an invariant of docs/architecture.md"));
            }
        }
    }
    bad
}

/// Text that holds on one machine only: its paths, and the hosts of registries.
fn machine_bound(files: &[File], own_root: &str) -> Vec<String> {
    let bound = [
        own_root,
        concat!("/work", "/main"),
        concat!("/work", "/shared"),
        concat!("/root", "/."),
        concat!("index.", "crates.io"),
        concat!("static.", "crates.io"),
        concat!("pypi", ".org"),
        concat!("python", "hosted.org"),
        concat!("registry.", "npmjs.org"),
        concat!("deb.", "debian.org"),
    ];
    let mut bad = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            for word in bound.iter().filter(|word| line.contains(**word)) {
                bad.push(format!("{path}:{}: `{word}` is bound to one machine", number + 1));
            }
        }
    }
    bad
}

/// Entries of the top level that the page does not list.
fn strange_top_level(rules: &Rules, entries: &BTreeSet<String>) -> Vec<String> {
    let bad = entries.iter().filter(|name| !name.starts_with('.') && !rules.top_level.contains(*name));
    bad.map(|name| format!("{name}: has no place at the top level")).collect()
}

/// This file, whose examples name tags that do not exist.
const TIDY: &str = "tests/tests/tidy.rs";

fn is_test(path: &str) -> bool {
    path.starts_with("tests/")
        || path.ends_with("/tests.rs")
        || path.contains("/tests/")
        || path.ends_with("_tests.rs")
}

fn carries_tests(path: &str, text: &str) -> bool {
    path != TIDY && (is_test(path) || text.contains("#[cfg(test)]"))
}

/// Whether `word` is in `text` with no letter or digit on either side.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(part)
            && !text[at + word.len()..].starts_with(|c| part(c) && !word.ends_with('!'))
    })
}

// --- This tree -------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All text files of the tree, apart from what is built or fetched.
fn tree(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if [".git", "target", ".hearth-try", "Cargo.lock"].contains(&name.as_str()) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                todo.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                files.push((name, text));
            }
        }
    }
    files.sort();
    files
}

fn metadata(root: &Path) -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn members(metadata: &Value) -> BTreeSet<String> {
    let ids: BTreeSet<&str> =
        metadata["workspace_members"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .filter(|package| ids.contains(package["id"].as_str().unwrap()))
        .map(|package| package["name"].as_str().unwrap())
        .map(|name| name.strip_prefix("hearth-").unwrap_or(name).to_owned())
        .collect()
}

#[test]
fn tree_is_tidy() {
    let root = root();
    let files = tree(&root);
    assert!(files.len() > 50, "the tree was not found: {} files", files.len());
    let rules = Rules::parse(&std::fs::read_to_string(root.join("docs/architecture.md")).unwrap());
    let metadata = metadata(&root);
    let edges = edges(&metadata);
    let top =
        std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let (over, aim) = long_files(&files);
    for note in &aim {
        println!("note: {note}");
    }
    let bad = [
        foreign_edges(&rules, &members(&metadata), &edges),
        impure_libraries(&rules, &edges),
        impure_sources(&rules, &files),
        second_owners(&rules, &edges),
        unsorted_json(&metadata),
        over,
        unnamed_invariants(&rules, &files),
        machine_bound(&files, root.to_str().unwrap()),
        strange_top_level(&rules, &top),
    ]
    .concat();
    assert!(bad.is_empty(), "{} house rules are broken:\n  {}", bad.len(), bad.join("\n  "));
}

// --- Each rule fails when it should ----------------------------------------------------------

const PAGE: &str = "\
```top-level\nREADME.md daemon\n```
```dependencies\nscope ->\nturn -> scope\nstore -> scope\ntools -> turn\nhearth -> *\n```
```pure\nscope turn\n```
```owners\nredb store\n```
- **INV-1** One.\n  Shown in `daemon/turn/src/tests.rs`.\n- **INV-2** Two. Shown in `tests/tests/two.rs`.\n\nAfter `all`.\n";

fn edge(from: &str, to: &str) -> Edge {
    Edge { from: from.into(), to: to.into(), dev: false }
}

fn file(path: &str, text: &str) -> File {
    (path.into(), text.into())
}

/// `bad` names exactly the things that begin with `wanted`.
#[track_caller]
fn check(bad: Vec<String>, wanted: &[&str]) {
    let fits =
        bad.len() == wanted.len() && bad.iter().zip(wanted).all(|(bad, wanted)| bad.starts_with(wanted));
    assert!(fits, "{bad:#?} instead of {wanted:#?}");
}

#[test]
fn edges_outside_of_the_table_are_found() {
    let rules = Rules::parse(PAGE);
    let members = words("scope turn store tools hearth");
    let dev = |from, to| Edge { dev: true, ..edge(from, to) };
    let fine =
        [edge("turn", "scope"), edge("hearth", "store"), edge("tools", "serde"), dev("tools", "scope")];
    check(foreign_edges(&rules, &members, &fine), &[]);
    check(foreign_edges(&rules, &members, &[edge("tools", "store")]), &["tools -> store"]);
    check(foreign_edges(&rules, &members, &[edge("tools", "scope")]), &["tools -> scope"]);
    check(foreign_edges(&rules, &members, &[dev("turn", "store")]), &["turn -> store"]);
    check(foreign_edges(&rules, &words("scope turn store tools web hearth"), &[]), &["web: has no line"]);
    check(
        foreign_edges(&rules, &words("scope turn store hearth"), &[]),
        &["tools: is in the dependency table"],
    );
}

#[test]
fn impure_dependencies_and_words_are_found() {
    let rules = Rules::parse(PAGE);
    check(impure_libraries(&rules, &[edge("store", "tokio"), edge("turn", "serde")]), &[]);
    check(
        impure_libraries(&rules, &[edge("turn", "tokio"), edge("scope", "getrandom")]),
        &["turn -> tokio", "scope -> getrandom"],
    );

    let source = |text| [file("daemon/turn/src/lib.rs", text)];
    let fine = "// SystemTime is not for here\nuse std::time::Duration;\nlet instants = 1;\n#[cfg(test)]\nmod tests { use std::fs; }";
    check(impure_sources(&rules, &source(fine).map(|(p, t)| (p, t.replace("tests { ", "tests {\n")))), &[]);
    check(
        impure_sources(&rules, &source("let a = 1;\nlet t = Instant::now();")),
        &["daemon/turn/src/lib.rs:2: `Instant`"],
    );
    check(impure_sources(&rules, &source("std::fs::read(p);")), &["daemon/turn/src/lib.rs:1: `std::fs`"]);
    check(impure_sources(&rules, &source("println!();")), &["daemon/turn/src/lib.rs:1: `println!`"]);
    check(impure_sources(&rules, &[file("daemon/store/src/lib.rs", "std::fs::read(p);")]), &[]);
    check(impure_sources(&rules, &[file("daemon/turn/src/tests.rs", "std::fs::read(p);")]), &[]);
}

#[test]
fn a_second_owner_is_found() {
    let rules = Rules::parse(PAGE);
    check(second_owners(&rules, &[edge("store", "redb")]), &[]);
    check(second_owners(&rules, &[edge("store", "redb"), edge("tools", "redb")]), &["tools -> redb"]);
    check(second_owners(&rules, &[Edge { dev: true, ..edge("hearth", "redb") }]), &["hearth -> redb"]);
}

#[test]
fn an_order_preserving_serde_json_is_found() {
    let graph = |features: &str| {
        serde_json::from_str(&format!(
            r#"{{"resolve":{{"nodes":[{{"id":"registry+x#serde_json@1.0.1","features":[{features}]}}]}}}}"#
        ))
        .unwrap()
    };
    check(unsorted_json(&graph(r#""std""#)), &[]);
    check(unsorted_json(&graph(r#""std","preserve_order""#)), &["serde_json: some crate"]);
}

#[test]
fn long_files_are_found() {
    let lines = |n: usize| "x\n".repeat(n);
    let files = [
        file("daemon/a/src/aim.rs", &lines(301)),
        file("daemon/a/src/fine.rs", &lines(300)),
        file("daemon/a/src/limit.rs", &lines(801)),
        file("daemon/a/src/tests.rs", &lines(5000)),
        file("docs/long.md", &lines(5000)),
    ];
    let (over, aim) = long_files(&files);
    check(over, &["daemon/a/src/limit.rs: 801 lines"]);
    check(aim, &["daemon/a/src/aim.rs: 301 lines"]);
}

#[test]
fn invariants_without_a_test_are_found() {
    let rules = Rules::parse(PAGE);
    let turn = file("daemon/turn/src/tests.rs", "/// INV-1: one\n#[test]\nfn one() {}");
    let two = file("tests/tests/two.rs", "// INV-2");
    check(unnamed_invariants(&rules, &[turn.clone(), two.clone()]), &[]);
    check(
        unnamed_invariants(&rules, &[turn.clone(), file("tests/tests/two.rs", "// INV-22")]),
        &["INV-2: no test", "INV-2: tests/tests/two.rs does not carry", "tests/tests/two.rs: INV-22 is not"],
    );
    check(
        unnamed_invariants(&rules, &[turn, file("tests/tests/three.rs", "// INV-2")]),
        &["INV-2: tests/tests/two.rs is not a file"],
    );
    check(
        unnamed_invariants(&rules, &[file("daemon/turn/src/lib.rs", "// INV-1"), two]),
        &["INV-1: no test", "INV-1: daemon/turn/src/tests.rs is not a file"],
    );
}

#[test]
fn machine_bound_text_is_found() {
    check(machine_bound(&[file("a", "see docs/x.md\n/var/lib/hearth")], "/srv/clone"), &[]);
    check(machine_bound(&[file("a", "\ncd /srv/clone/docs")], "/srv/clone"), &["a:2: `/srv/clone`"]);
    check(machine_bound(&[file("b", concat!("https://pypi", ".org/simple"))], "/srv/clone"), &["b:1:"]);
}

#[test]
fn a_strange_top_level_is_found() {
    let rules = Rules::parse(PAGE);
    check(strange_top_level(&rules, &words("README.md daemon .ci")), &[]);
    check(strange_top_level(&rules, &words("README.md notes.txt")), &["notes.txt: has no place"]);
}
