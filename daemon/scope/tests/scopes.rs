//! Tables: what parses and to which text, and what grants what.
#![allow(clippy::unwrap_used)]

use hearth_scope::{Scope, ScopeError};

#[track_caller]
fn scope(text: &str) -> Scope {
    Scope::parse(text).unwrap_or_else(|e| panic!("{text:?}: {e}"))
}

/// Rows of: permission, held qualifier, needed qualifier, whether it is granted.
/// A needed qualifier that does not parse counts as not granted.
#[track_caller]
fn check(base: &str, rows: &[(&str, &str, bool)]) {
    for (held, needed, expect) in rows {
        let held = scope(&format!("{base}:{held}"));
        let granted = Scope::qualified(base, needed).is_ok_and(|needed| needed.is_granted_by(&held));
        assert_eq!(granted, *expect, "{needed:?} under {held}");
    }
}

#[test]
fn bases_and_bare_scopes() {
    let granted = |held: &str, needed: &str| scope(needed).is_granted_by(&scope(held));
    assert!(granted("fs.read", "fs.read"));
    assert!(granted("fs.read", "fs.read:/a"));
    assert!(!granted("fs.read:/a", "fs.read"), "qualified never grants bare");
    assert!(!granted("fs.read:/", "fs.read"));
    assert!(!granted("memory.read:*", "memory.read"));
    assert!(!granted("fs.read", "fs.write"));
    assert!(!granted("fs.read:/a", "fs.write:/a"));
    assert!(!granted("fs.read", "fs.write:/a"));
    assert!(granted("skills.list", "skills.list"));
}

#[test]
fn urls_cannot_be_spoofed() {
    const HELD: &str = "https://api.example.org/v1";
    let rows: Vec<(&str, &str, bool)> = [
        // The same place, written otherwise.
        ("https://api.example.org/v1", true),
        ("https://api.example.org/v1/", true),
        ("https://api.example.org/v1/items", true),
        ("https://api.example.org/v1/items/../items", false),
        ("https://api.example.org/v1?q=1", true),
        ("https://api.example.org/v1/x?q=../..", true),
        ("https://api.example.org/v1/x#/v2", true),
        ("HTTPS://API.Example.ORG/v1/x", true),
        ("https://api.example.org:443/v1/x", true),
        ("https://api.example.org:0443/v1/x", true),
        ("https://api.example.org/%761/x", true),
        ("https://ａｐｉ.example.org/v1/x", true),
        ("https://api。example。org/v1/x", true),
        // Other segments.
        ("https://api.example.org", false),
        ("https://api.example.org/", false),
        ("https://api.example.org/v10", false),
        ("https://api.example.org/v1.evil", false),
        ("https://api.example.org/v1;x", false),
        ("https://api.example.org/v1%2Fx", false),
        ("https://api.example.org/v1%2fx", false),
        ("https://api.example.org/v1/..", false),
        ("https://api.example.org/v1/../v2", false),
        ("https://api.example.org/v1/%2e%2e/v2", false),
        ("https://api.example.org/v1/.%2E/v2", false),
        ("https://api.example.org/v1/..%2fv2", false),
        ("https://api.example.org/v1/..%5cv2", false),
        ("https://api.example.org/v1/..%252fv2", false),
        ("https://api.example.org/v1/%252e%252e/v2", false),
        ("https://api.example.org/v1/..;/v2", false),
        ("https://api.example.org/v1/..%3b/v2", false),
        ("https://api.example.org/v1/..;x=1/v2", false),
        ("https://api.example.org/v1/x%00", false),
        ("https://api.example.org/v1/x%0d%0aHost:evil", false),
        ("https://api.example.org/v1/%zz", false),
        ("https://api.example.org/v1/%+1", false),
        ("https://api.example.org/v1/%", false),
        ("https://api.example.org/V1/x", false),
        ("https://api.example.org//v1/x", false),
        ("https://api.example.org/%2fv1/x", false),
        ("https://api.example.org\\v1", false),
        ("https://api.example.org/v1\\..\\v2", false),
        // Other hosts.
        ("https://api.example.org.evil.net/v1", false),
        ("https://api.example.org./v1", false),
        ("https://api.example.org../v1", false),
        ("https://.api.example.org/v1", false),
        ("https://evil.net/https://api.example.org/v1", false),
        ("https://evil.net/v1?https://api.example.org/v1", false),
        ("https://evil.net#https://api.example.org/v1", false),
        ("https://evil.net\\.api.example.org/v1", false),
        ("https://evil-api.example.org/v1", false),
        ("https://xapi.example.org/v1", false),
        ("https://example.org/v1", false),
        ("https://x.api.example.org/v1", false),
        ("https://аpi.example.org/v1", false), // Cyrillic a
        ("https://api.example.org%2eevil.net/v1", false),
        ("https://api%2eexample.org/v1", false),
        ("https://api.example.org%00.evil.net/v1", false),
        ("https://api.example.org\u{200b}.evil.net/v1", false),
        ("https://*.example.org/v1", false),
        ("https:///api.example.org/v1", false),
        ("https:api.example.org/v1", false),
        ("https:/api.example.org/v1", false),
        ("//api.example.org/v1", false),
        ("api.example.org/v1", false),
        ("https://", false),
        // User parts.
        ("https://api.example.org@evil.net/v1", false),
        ("https://api.example.org:443@evil.net/v1", false),
        ("https://user@api.example.org/v1", false),
        ("https://user:word@api.example.org/v1", false),
        ("https://@api.example.org/v1", false),
        ("https://:@api.example.org/v1", false),
        ("https://api.example.org/v1@evil.net", false),
        ("https://evil.net@api.example.org@evil.net/v1", false),
        ("https://evil.net\\@api.example.org/v1", false),
        ("https://evil.net／@api.example.org/v1", false), // full-width slash
        // Ports and schemes.
        ("https://api.example.org:8443/v1", false),
        ("https://api.example.org:80/v1", false),
        ("https://api.example.org:65979/v1", false), // 443 + 65536
        ("https://api.example.org:443x/v1", false),
        ("http://api.example.org/v1", false),
        ("http://api.example.org:443/v1", false),
        ("ftp://api.example.org/v1", false),
        ("file://api.example.org/v1", false),
        ("javascript://api.example.org/v1", false),
        ("blob:https://api.example.org/v1", false),
        ("view-source:https://api.example.org/v1", false),
        // White space.
        (" https://api.example.org/v1", false),
        ("https://api.example.org/v1 ", false),
        ("https://api.example.org /v1", false),
        ("https://api.exam\tple.org/v1", false),
        ("https://api.example.org/v1\n", false),
        ("ht\ntps://api.example.org/v1", false),
    ]
    .into_iter()
    .map(|(needed, expect)| (HELD, needed, expect))
    .collect();
    assert!(rows.len() >= 40, "{}", rows.len());
    check("net.fetch", &rows);
    check(
        "net.fetch",
        &[
            // Addresses in odd notations are the address that they mean.
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/x", true),
            ("http://127.0.0.1:8080", "http://0x7f.1:8080/x", true),
            ("http://127.0.0.1:8080", "http://2130706433:8080/x", true),
            ("http://127.0.0.1:8080", "http://127.0.0.1:80808/x", false),
            ("http://127.0.0.1", "http://127.0.0.1.evil.net/", false),
            ("http://127.0.0.1", "http://127.0.0.11/", false),
            ("http://[::1]:80", "http://[0:0::1]/x", true),
            ("http://[::1]", "http://[::1]:8080/", false),
            ("http://[::1]", "http://[::ffff:127.0.0.1]/", false),
            // A port must be held to be reached.
            ("http://a.example:8080/x", "http://a.example/x", false),
            ("http://a.example", "http://a.example:8080/x", false),
            ("http://a.example:80", "http://a.example/x", true),
            // International names.
            ("https://bücher.example", "https://xn--bcher-kva.example/x", true),
            ("https://xn--bcher-kva.example", "https://BÜCHER.example/x", true),
            ("https://bücher.example", "https://bucher.example/x", false),
            // A held query is exact.
            ("https://a.example/x?q=1", "https://a.example/x?q=1", true),
            ("https://a.example/x?q=1", "https://a.example/x?q=12", false),
            ("https://a.example/x?q=1", "https://a.example/x", false),
            ("https://a.example/x?q=1", "https://a.example/x?q=1&r=2", false),
            ("https://a.example/x?q=1", "https://a.example/x?q=1/y", false),
        ],
    );
}

#[test]
fn paths_match_by_segment() {
    let rows = &[
        ("/a/b", "/a/b", true),
        ("/a/b", "/a/b/", true),
        ("/a/b", "/a/b/c", true),
        ("/a/b", "/a/b/c/d", true),
        ("/a/b", "/a/bc", false),
        ("/a/b", "/a", false),
        ("/a/b", "/", false),
        ("/a/b", "/A/b", false),
        ("/a/b", "/x/a/b", false),
        ("/a/b", "/a/b/../c", false),
        ("/a/b", "/a/./b", false),
        ("/a/b", "/a//b", false),
        ("/a/b", "//a/b", false),
        ("/a/b", "a/b", false),
        ("/a/b", "~/a/b", false),
        ("/a/b", "/a/b\0c", false),
        ("/a/b", "/a/b\nc", false),
        ("/a/b", "/a\\b", false),
        ("/a/b", "/a/b/...", true),
        ("/a/b", "/a/b/..c", true),
        ("/a/b/", "/a/b/c", true),
        ("/", "/etc/passwd", true),
        ("/", "/", true),
        ("/**", "/etc/passwd", true),
        ("/**", "/", false),
        // One segment, and what lies below.
        ("/a/*", "/a/b", true),
        ("/a/*", "/a/b/c", true),
        ("/a/*", "/a", false),
        ("/a/*/c", "/a/b/c", true),
        ("/a/*/c", "/a/b/d", false),
        ("/a/*/c", "/a/b/x/c", false),
        ("/a/*.md", "/a/x.md", true),
        ("/a/*.md", "/a/x.md.sh", false),
        ("/a/*.md", "/a/b/x.md", false),
        ("/a/x*z", "/a/xz", true),
        ("/a/x*z", "/a/x/z", false),
        ("/a/x*z", "/a/x", false),
        ("/a/aba*aba", "/a/aba", false),
        ("/a/aba*aba", "/a/abaaba", true),
        ("/a/x*x*x", "/a/xx", false),
        ("/a/x*x*x", "/a/xxx", true),
        // Any depth.
        ("/a/**/*.md", "/a/x.md", true),
        ("/a/**/*.md", "/a/b/c/x.md", true),
        ("/a/**/*.md", "/b/x.md", false),
        ("/a/**/c", "/a/c", true),
        ("/a/**/c", "/a/b/b/c/d", true),
        ("/a/**/c", "/a/b/b/d", false),
        ("/a/**", "/a/b/c", true),
        ("/a/**", "/a", false),
        ("/a/**/b/**/c", "/a/x/b/y/c", true),
        ("/a/**/b/**/c", "/a/x/c/y/b", false),
        // Patterns that are needed: covered only by equal or wider ones.
        ("/a", "/a/*", true),
        ("/a", "/a/**/x", true),
        ("/a/*", "/a", false),
        ("/a/*", "/a/*", true),
        ("/a/*", "/a/*/b", true),
        ("/a/*.md", "/a/*", false),
        ("/a/*.md", "/a/x*.md", true),
        ("/a/*/c", "/a/**/c", false),
        ("/a/**/c", "/a/*/c", true),
        ("/a/b", "/a/*", false),
    ];
    assert!(rows.len() >= 25);
    check("fs.read", rows);
    check("git.read", &[("/srv/repo", "/srv/repo", true), ("/srv/repo", "/srv/repo2", false)]);
}

#[test]
fn other_forms() {
    check(
        "net.dns",
        &[
            ("example.org", "example.org", true),
            ("example.org", "EXAMPLE.org", true),
            ("example.org", "a.example.org", false),
            ("example.org", "example.org.", false),
            ("*.example.org", "a.example.org", true),
            ("*.example.org", "a.b.example.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", "evilexample.org", false),
            ("*.example.org", "a.example.org.evil.net", false),
            ("*.example.org", "*.a.example.org", true),
            ("*.a.example.org", "*.example.org", false),
            ("example.org", "127.0.0.1", false),
        ],
    );
    check(
        "shell.exec",
        &[
            ("git,ls", "ls", true),
            ("git,ls", "ls,git", true),
            ("ls,git", "git,ls,ls", true),
            ("git,ls", "ls,rm", false),
            ("git", "/usr/bin/git", false),
            ("/usr/bin/git", "/usr/bin/git", true),
            ("git", "gi", false),
            ("git", "git status", false),
            ("git", "git;rm", false),
            ("git", "git,", false),
        ],
    );
    check(
        "memory.read",
        &[
            ("scope:public:*", "scope:public:news", true),
            ("scope:public:*", "scope:public:", true),
            ("scope:public:*", "scope:publication", false),
            ("scope:public:*", "scope:private:x", false),
            ("scope:public:*", "scope:*", false),
            ("scope:*", "scope:public:*", true),
            ("*", "anything at all", true),
            ("*:notes", "a:b:notes", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a**b", "a*b", true),
            ("topic", "topic", true),
            ("topic", "Topic", false),
        ],
    );
    check(
        "home.control",
        &[
            ("light", "light", true),
            ("light", "light/kitchen", true),
            ("light/kitchen", "light", false),
            ("light/kitchen", "light/hall", false),
            ("light/k*", "light/kitchen", true),
            ("*/kitchen", "light/kitchen", true),
            ("light", "lights/kitchen", false),
            ("light", "lock/door", false),
            ("cover", "cover.garage/main", false),
            ("light", "light/kitchen/lamp", false),
            ("light", "light/", false),
        ],
    );
    check("mcp.call", &[("files", "files/read", true), ("files/read", "files/write", false)]);
    check(
        "mqtt.publish",
        &[
            ("home/lamp/set", "home/lamp/set", true),
            ("home/lamp/set", "home/lamp", false),
            ("home/+/set", "home/lamp/set", true),
            ("home/+/set", "home/a/b/set", false),
            ("home/+/set", "home//set", true),
            ("home/+", "home", false),
            ("home/#", "home", true),
            ("home/#", "home/a/b", true),
            ("home/#", "homes/a", false),
            ("home/#", "/home/a", false),
            ("#", "a/b", true),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/x", true),
            ("home/+", "home/#", false),
            ("home/#", "home/+/x", true),
            ("home/+", "home/+", true),
            ("home/lamp", "home/+", false),
            ("#", "+/#", true),
        ],
    );
}

#[test]
fn malformed_scopes_are_refused() {
    let long = format!("memory.read:{}", "x".repeat(1025));
    let grows = format!("net.fetch:https://a.example/{}", "ü".repeat(400));
    for text in [
        "",
        ":",
        "fs",
        "fs.",
        "fs.read ",
        " fs.read",
        "FS.read",
        "fs.read:",
        "fs.readx:/a",
        "fs.read:a",
        "fs.read:/a/../b",
        "fs.read:/..",
        "fs.read:/a/b**c",
        "fs.read:/a\u{7}",
        "fs.read:/a\u{202e}dm",
        "fs.read:/a ",
        "memory.read:a/../b",
        "memory.read:\u{0}",
        "memory.read: a",
        "skills.list:x",
        "approval.resolve:x",
        "net.dns:*",
        "net.dns:a..b",
        "net.dns:a.*.b",
        "net.dns:[::1]",
        "net.dns:10.0.0.1",
        "shell.exec:-x",
        "shell.exec:..",
        "shell.exec:a//b",
        "shell.exec:*",
        "home.control:/x",
        "home.control:a b",
        "mqtt.publish:a/#/b",
        "fs.read:/.",
        "fs.read:/a/./b",
        "net.fetch:https://*.example.org/",
        "net.fetch:https://a.example/%2e%2E/b",
        "net.fetch:https://a.example/%2e",
        "net.fetch:https://a.example/x y",
        "net.fetch:ftp://a.example/",
        "net.fetch:ws://a.example/",
        "net.fetch:file:///etc/passwd",
        "mqtt.publish:a+",
        "mqtt.publish:a/b#",
        "net.post:https://a.example/\u{0}",
        &long,
        &grows,
    ] {
        assert!(Scope::parse(text).is_err(), "{text:?}");
    }
    assert!(Scope::parse(&format!("memory.read:{}", "x".repeat(1024))).is_ok());
}

#[test]
fn errors_say_what_is_wrong() {
    let said = |text: &str| Scope::parse(text).unwrap_err().to_string();
    assert_eq!(said("fs.raed:/a"), "unknown permission \"fs.raed\"");
    assert_eq!(said("\u{1b}[2J"), "unknown permission \"\\u{1b}[2J\"");
    assert_eq!(said("fs.read:notes"), "bad qualifier for fs.read: a path must start with \"/\"");
    let long = Scope::parse(&"x".repeat(5000)).unwrap_err();
    assert!(matches!(long, ScopeError::UnknownBase(name) if name.len() == 80));
}

#[test]
fn canonical_texts() {
    for (text, canonical) in [
        ("fs.read:/a/b/", "fs.read:/a/b"),
        ("fs.read:/a/**", "fs.read:/a/*"),
        ("fs.read:/a/**/**/b", "fs.read:/a/**/b"),
        ("net.fetch:HTTPS://Example.org:443/a/?", "net.fetch:https://example.org/a"),
        ("net.fetch:https://example.org/%7euser/%c3%a9", "net.fetch:https://example.org/~user/%C3%A9"),
        ("net.dns:*.BÜCHER.example", "net.dns:*.xn--bcher-kva.example"),
        ("shell.exec:ls,git,ls", "shell.exec:git,ls"),
        ("memory.read:a***b", "memory.read:a*b"),
    ] {
        assert_eq!(scope(text).as_str(), canonical);
        let json = serde_json::to_string(&scope(text)).unwrap();
        assert_eq!(serde_json::from_str::<Scope>(&json).unwrap().as_str(), canonical);
    }
    assert!(serde_json::from_str::<Scope>("\"fs.read:notes\"").is_err());
}
