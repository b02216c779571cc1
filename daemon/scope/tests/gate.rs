//! The check before a call.
#![allow(clippy::unwrap_used)]

use hearth_scope::{CallId, CapabilitySet, Decision, EffectClass, Need, Scope, ToolName, TrustTier};

/// `granted`, `approval`, or the scope that is missing.
fn decide(held: &[&str], tier: TrustTier, needed: &[&str], effect: EffectClass) -> String {
    let scopes = |texts: &[&str]| texts.iter().map(|t| Scope::parse(t).unwrap()).collect::<Vec<_>>();
    let effective = CapabilitySet::from(scopes(held)).under(tier);
    assert_eq!(effective.tier(), tier);
    let need = Need { scopes: scopes(needed), subject: String::new(), effect };
    let tool = ToolName::parse("fs.read").unwrap();
    match effective.check(&tool, CallId(3), &need) {
        Decision::Grant(grant) => {
            assert_eq!((grant.tool(), grant.call()), (&tool, CallId(3)));
            assert_eq!(grant.scopes(), need.scopes);
            "granted".into()
        }
        Decision::Denied { scope } => scope.to_string(),
        Decision::NeedsApproval { reason } => {
            assert_eq!(reason, "fs.read has an effect but names no permission for it");
            "approval".into()
        }
    }
}

/// INV-2: a grant needs every scope to be held.
#[test]
fn every_needed_scope_has_to_be_left_under_the_ceiling() {
    use EffectClass::{Actuate, Destroy, Persist, PrivateRead, Read, Send};
    use TrustTier::{Kernel, SemiTrusted, Trusted, Untrusted};
    let held = ["fs.read", "fs.read:/srv", "fs.write:/srv", "net.fetch", "shell.exec:git"];
    let check = |tier, needed: &[&str], effect, expect: &str| {
        assert_eq!(decide(&held, tier, needed, effect), expect, "{needed:?} at {tier}");
    };
    check(Trusted, &["fs.read:/etc/hosts"], PrivateRead, "granted");
    check(SemiTrusted, &["fs.read:/etc/hosts"], PrivateRead, "fs.read:/etc/hosts");
    check(SemiTrusted, &["fs.read:/srv/a"], PrivateRead, "granted");
    check(Untrusted, &["fs.read:/srv/a"], PrivateRead, "fs.read:/srv/a");
    check(Trusted, &["shell.exec:git"], Destroy, "granted");
    check(Trusted, &["shell.exec:rm"], Destroy, "shell.exec:rm");
    check(SemiTrusted, &["shell.exec:git"], Destroy, "shell.exec:git");
    check(Kernel, &["config.write"], Persist, "config.write");
    // The first missing one is named.
    check(Trusted, &["fs.write:/srv/a", "fs.write:/b", "fs.write:/c"], Persist, "fs.write:/b");
    check(SemiTrusted, &["net.fetch:https://a.example/x", "fs.write:/srv/a"], Send, "granted");
    // Without a scope only harmless reading runs.
    check(Untrusted, &[], Read, "granted");
    for effect in [PrivateRead, Send, Actuate, Persist, Destroy] {
        check(Kernel, &[], effect, "approval");
    }
}

#[test]
fn tool_names() {
    for (text, ok) in [
        ("memory.read", true),
        ("a", true),
        ("a1_b.c", true),
        ("", false),
        ("a.", false),
        (".a", false),
        ("a..b", false),
        ("A.b", false),
        ("1a", false),
        ("a-b", false),
        ("a.1", false),
        ("ä", false),
        ("a b", false),
    ] {
        assert_eq!(ToolName::parse(text).is_ok(), ok, "{text:?}");
    }
    assert!(ToolName::parse(&"a".repeat(64)).is_ok() && ToolName::parse(&"a".repeat(65)).is_err());
}

#[test]
fn only_reading_is_read_only() {
    use EffectClass::{Actuate, Destroy, Persist, PrivateRead, Read, Send};
    let all = [Read, PrivateRead, Send, Actuate, Persist, Destroy].map(EffectClass::is_read_only);
    assert_eq!(all, [true, true, false, false, false, false]);
}
