//! The table of ceilings, as applied: tier × base × form of the held scope.
#![allow(clippy::unwrap_used)]

mod golden;

use std::fmt::Write as _;

use hearth_scope::base::{BASES, Form};
use hearth_scope::{CapabilitySet, Scope, TrustTier};

const TIERS: [TrustTier; 4] =
    [TrustTier::Kernel, TrustTier::Trusted, TrustTier::SemiTrusted, TrustTier::Untrusted];

/// The permissions that must exist, written out on purpose: the golden ends with
/// those that the table does not cover, or that nobody asked for.
const EXPECTED: &str = "fs.read fs.write fs.delete fs.metadata net.fetch net.post net.dns \
    shell.exec shell.spawn llm.call llm.embed memory.read memory.write memory.forget \
    channel.send channel.receive audit.read config.read config.write git.read git.write \
    home.read home.control mqtt.publish schedule.create schedule.read schedule.delete \
    schedule.run mission.create mission.read mission.cancel mission.gate approval.resolve \
    skills.propose skills.list skills.invoke agent.delegate mcp.call";

/// Names that are set aside and must not parse.
const RESERVED: &[&str] = &[
    "agent.spawn",
    "agent.terminate",
    "system.shutdown",
    "system.notify",
    "system.clipboard_read",
    "system.clipboard_write",
    "display.window_focus",
    "display.window_close",
    "display.screenshot",
    "federation.discover",
    "federation.call",
    "federation.accept",
    "audit.write",
    "graph.read",
];

/// Held qualifiers of one form: some that narrow, then some that do not.
fn qualifiers(form: Form) -> (&'static [&'static str], &'static [&'static str]) {
    match form {
        Form::Path => (&["/srv/notes", "/srv/*.md"], &["/", "/**", "/*/*"]),
        Form::Url => (&["https://example.org/api"], &[]),
        Form::Domain => (&["example.org", "*.example.org"], &[]),
        Form::Commands => (&["git", "git,ls"], &[]),
        Form::Glob => (&["scope:public:news", "scope:*", "public"], &["*", "*:*"]),
        Form::Pair => (&["light", "light/kitchen", "*/kitchen"], &["*", "*/*"]),
        Form::Topic => (&["home/lamp/set", "home/+/set", "home/#"], &["#", "+/#"]),
        Form::Bare => (&[], &[]),
    }
}

fn left(held: &str, tier: TrustTier) -> String {
    let set = CapabilitySet::from_scopes([Scope::parse(held).unwrap()]).under(tier);
    match set.set() {
        left if left.is_empty() => "-".to_owned(),
        left if left.to_string() == Scope::parse(held).unwrap().as_str() => "all".to_owned(),
        left => left.to_string(),
    }
}

fn render() -> String {
    let mut out =
        "# What is left of a held scope under each tier's ceiling: all of it, part of it, or nothing (-).\n"
            .to_owned();
    writeln!(out, "{:<34} kernel trusted semi_trusted untrusted", "# held").unwrap();
    for base in BASES {
        let (narrow, wide) = qualifiers(base.form);
        let qualified = narrow.iter().chain(wide).map(|q| format!("{}:{q}", base.name));
        for held in std::iter::once(base.name.to_owned()).chain(qualified) {
            let [k, t, s, u] = TIERS.map(|tier| left(&held, tier));
            writeln!(out, "{held:<34} {k:<6} {t:<7} {s:<12} {u}").unwrap();
        }
    }
    let expected: Vec<_> = EXPECTED.split_whitespace().collect();
    let missing = expected.iter().filter(|e| BASES.iter().all(|b| b.name != **e)).copied();
    let extra = BASES.iter().map(|b| b.name).filter(|name| !expected.contains(name));
    let uncovered: Vec<_> = missing.chain(extra).collect();
    writeln!(
        out,
        "# not covered: {}",
        if uncovered.is_empty() { "none".into() } else { uncovered.join(" ") }
    )
    .unwrap();
    out
}

#[test]
fn ceilings_match_the_golden_table() {
    golden::check("ceilings.txt", &render());
}

#[test]
fn names_are_unique_and_reserved_ones_do_not_parse() {
    for (i, base) in BASES.iter().enumerate() {
        assert!(BASES[i + 1..].iter().all(|b| b.name != base.name), "{} twice", base.name);
    }
    for name in RESERVED {
        assert!(Scope::parse(name).is_err(), "{name}");
    }
}

#[test]
fn no_tier_keeps_more_than_the_tier_above() {
    for base in BASES {
        let (narrow, wide) = qualifiers(base.form);
        let qualified = narrow.iter().chain(wide).map(|q| format!("{}:{q}", base.name));
        for held in std::iter::once(base.name.to_owned()).chain(qualified) {
            let held = CapabilitySet::from_scopes([Scope::parse(&held).unwrap()]);
            for pair in TIERS.windows(2) {
                let (above, below) = (held.under(pair[0]), held.under(pair[1]));
                for scope in below.set().iter() {
                    assert!(above.set().grants(scope), "{scope} at {}", pair[1]);
                }
            }
        }
    }
}

#[test]
fn the_bare_base_does_not_satisfy_a_qualified_only_ceiling() {
    let held = ["fs.write", "fs.write:/srv/notes"].map(|s| Scope::parse(s).unwrap());
    let both = CapabilitySet::from_scopes(held.clone());
    let check = |tier, scope: &str, expect: bool| {
        let scope = Scope::parse(scope).unwrap();
        assert_eq!(both.under(tier).set().grants(&scope), expect, "{scope} at {tier}");
    };
    check(TrustTier::Trusted, "fs.write", true);
    check(TrustTier::Trusted, "fs.write:/etc/passwd", true);
    check(TrustTier::SemiTrusted, "fs.write", false);
    check(TrustTier::SemiTrusted, "fs.write:/etc/passwd", false);
    check(TrustTier::SemiTrusted, "fs.write:/srv/notes/a", true);
    check(TrustTier::Untrusted, "fs.write:/srv/notes/a", false);
    // Intersecting first must not lose the narrow form.
    let met = both.intersect(&CapabilitySet::from_scopes([held[0].clone()]));
    assert!(met.under(TrustTier::SemiTrusted).set().grants(&held[1]));
}
