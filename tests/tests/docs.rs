//! What the pages say is so: links lead somewhere, settings are accepted, verbs exist.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::Command;

use hearth_tests::Home;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The pages of the repository, by their path.
fn pages() -> Vec<(String, String)> {
    let listed = Command::new("git").current_dir(root()).args(["ls-files", "*.md"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8(listed.stdout).unwrap();
    let pages =
        names.lines().map(|name| (name.to_owned(), std::fs::read_to_string(root().join(name)).unwrap()));
    pages.collect()
}

/// The fenced blocks of a page in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    page.split(&open).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
}

/// Addresses of the links of a page, code apart.
fn links(page: &str) -> Vec<String> {
    let mut text = String::new();
    let mut code = false;
    for line in page.lines() {
        code ^= line.starts_with("```");
        if !code {
            // Text in back-quotes is code too.
            text.extend(line.split('`').step_by(2));
            text.push('\n');
        }
    }
    // A link whose text is broken over two lines is one link.
    text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned()).collect()
}

/// How a heading is named in an address.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'))
        .collect::<String>()
        .replace(' ', "-")
}

fn dead(pages: &[(String, String)]) -> Vec<String> {
    let mut dead = Vec::new();
    for (name, page) in pages {
        for link in links(page) {
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let here = root().join(name);
            let target = if path.is_empty() { here } else { here.parent().unwrap().join(path) };
            let lives = target.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&target).is_ok_and(|t| {
                        t.lines().any(|l| anchor(l.trim_start_matches('#').trim()) == heading)
                    }));
            if !lives {
                dead.push(format!("{name}: {link}"));
            }
        }
    }
    dead
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let count: usize = pages.iter().map(|(_, page)| links(page).len()).sum();
    println!("{} pages with {count} links", pages.len());
    assert!(count > 20);
    assert_eq!(dead(&pages), Vec::<String>::new());
}

#[test]
fn dead_links_are_found() {
    #[track_caller]
    fn check(page: &str, links: &[&str]) {
        let found = dead(&[("docs/page.md".to_owned(), page.to_owned())]);
        let wanted: Vec<_> = links.iter().map(|link| format!("docs/page.md: {link}")).collect();
        assert_eq!(found, wanted, "{page}");
    }
    check("[a](architecture.md) [b](../README.md) [c](https://example.org/none)", &[]);
    check("[a](architecture.md#invariants)", &[]);
    check("[a](none.md) and [b\nc](../none.md)", &["none.md", "../none.md"]);
    check("[a](architecture.md#no-such-heading)", &["architecture.md#no-such-heading"]);
    check("`[a](none.md)`\n```\n[a](none.md)\n```\n", &[]);
}

#[test]
fn settings_in_the_manual_are_accepted() {
    let mut seen = 0;
    for (name, page) in pages().iter().filter(|(name, _)| name.starts_with("docs/manual/")) {
        for block in blocks(page, "toml") {
            seen += 1;
            let home = Home::new("http://127.0.0.1:9", "");
            home.init();
            // Files that the page tells to make.
            let key = home.path("model.key");
            std::fs::write(&key, "a-key").unwrap();
            let close = Command::new("chmod").arg("400").arg(&key).status().unwrap();
            assert!(close.success());
            let mut text = block.replace("/etc/hearth/model.key", key.to_str().unwrap());
            if !text.contains("[unlock]") {
                text.push_str(&format!("\n[unlock]\nkey_file = \"{}\"\n", home.path("key").display()));
            } else {
                text = text.replace("/home/me/hearth/unlock.key", home.path("key").to_str().unwrap());
            }
            std::fs::write(home.path("hearth.toml"), text).unwrap();
            let out = home.run(&["config", "check"]);
            assert_eq!(out.code, 0, "{name}:\n{block}\n{out:?}");
        }
    }
    println!("{seen} examples of settings");
    assert!(seen >= 5);
}

/// Lines of examples that call `hearth` have to be lines that it takes.
#[test]
fn commands_in_the_pages_exist() {
    let home = Home::new("http://127.0.0.1:9", "");
    let mut seen = 0;
    for (name, page) in pages() {
        let lines = blocks(&page, "sh").into_iter().flat_map(str::lines);
        for line in lines.filter_map(|l| l.trim_start_matches("sudo ").strip_prefix("hearth ")) {
            let words: Vec<_> = line.split('#').next().unwrap().split_whitespace().collect();
            let verbs: Vec<_> = words.iter().copied().filter(|w| w.chars().all(char::is_lowercase)).collect();
            seen += 1;
            let out = home.run(&[&verbs[..], &["--help"]].concat());
            assert_eq!(out.code, 0, "{name}: hearth {line}\n{out:?}");
            let flags = words.iter().filter(|w| w.starts_with("--"));
            flags.for_each(|flag| assert!(out.stdout.contains(flag), "{name}: hearth {line}: no {flag}"));
        }
    }
    println!("{seen} commands");
    assert!(seen >= 8);
}
