//! Laws of comparison and intersection, on generated scopes.
#![allow(clippy::unwrap_used)]

use hearth_scope::{CapabilitySet, Effective, Scope, TrustTier};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Segments over a tiny alphabet, so that patterns meet often.
fn segments(deep: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    let plain = ["a", "b", "ab", "aa", "*", "a*", "*b", "a*b"];
    vec(select([plain.as_slice(), deep].concat()), 0..4)
}

fn qualifier(base: &'static str) -> BoxedStrategy<String> {
    let joined = |parts: &[&str]| parts.join("/");
    match base {
        "fs.read" => segments(&["**"]).prop_map(move |s| format!("/{}", joined(&s))).boxed(),
        "home.control" => {
            vec(select(vec!["a", "b", "a*", "*b", "*"]), 1..3).prop_map(move |s| joined(&s)).boxed()
        }
        "mqtt.publish" => (vec(select(vec!["a", "b", "", "+", "$a"]), 1..4), any::<bool>())
            .prop_map(move |(s, all)| joined(&s) + if all { "/#" } else { "" })
            .boxed(),
        "net.fetch" => (
            select(vec!["https://a.example", "http://a.example", "https://a.example:8443"]),
            vec(select(vec!["a", "b", "%61", "ab"]), 0..3),
            select(vec!["", "?q", "/"]),
        )
            .prop_map(|(origin, path, end)| format!("{origin}/{}{end}", path.join("/")))
            .boxed(),
        "net.dns" => (any::<bool>(), vec(select(vec!["a", "b"]), 1..4))
            .prop_map(|(star, labels)| if star { "*." } else { "" }.to_owned() + &labels.join("."))
            .boxed(),
        "shell.exec" => vec(select(vec!["a", "b", "c", "/bin/a"]), 1..4).prop_map(|s| s.join(",")).boxed(),
        _ => "[ab*:]{1,5}".prop_map(String::from).boxed(),
    }
}

const BASES: &[&str] =
    &["fs.read", "home.control", "mqtt.publish", "net.fetch", "net.dns", "shell.exec", "memory.read"];

/// Scopes of one base: equal bases are what makes comparison interesting.
fn scope_of(base: &'static str) -> BoxedStrategy<Scope> {
    prop_oneof![
        1 => Just(base.to_owned()),
        9 => qualifier(base).prop_map(move |q| format!("{base}:{q}")),
    ]
    .prop_filter_map("parses", |text| Scope::parse(&text).ok())
    .boxed()
}

fn same_base<const N: usize>() -> impl Strategy<Value = [Scope; N]> {
    select(BASES).prop_flat_map(|base| std::array::from_fn::<_, N, _>(|_| scope_of(base)))
}

fn set_of(base: &'static str) -> impl Strategy<Value = CapabilitySet> {
    vec(prop_oneof![4 => scope_of(base), 1 => scope_of("memory.read")], 0..4)
        .prop_map(CapabilitySet::from_scopes)
}

/// Three sets and scopes to try them with.
fn sets() -> impl Strategy<Value = ([CapabilitySet; 3], Vec<Scope>)> {
    select(BASES).prop_flat_map(|base| {
        let sets = [set_of(base), set_of(base), set_of(base)];
        (sets, vec(prop_oneof![6 => scope_of(base), 1 => scope_of("memory.read")], 40))
    })
}

/// Concrete texts that a path or glob pattern of the generators stands for.
fn instances(pattern: &str) -> Vec<String> {
    let mut done = vec![String::new()];
    let mut chars = pattern.chars().peekable();
    let mut before = '/';
    while let Some(c) = chars.next() {
        let starts = before == '/';
        before = c;
        let choices: &[&str] = match c {
            '*' if chars.next_if_eq(&'*').is_some() => &["a", "a/b", "z/a/ab"],
            // A segment is never empty.
            '*' if starts && matches!(chars.peek(), None | Some('/')) => &["a", "z", "ab"],
            '*' => &["", "a", "z", "ab"],
            _ => {
                done.iter_mut().for_each(|text| text.push(c));
                continue;
            }
        };
        done = done.iter().flat_map(|t| choices.iter().map(move |c| format!("{t}{c}"))).collect();
        done.truncate(512);
    }
    done
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..Default::default() })]

    #[test]
    fn reflexive([a] in same_base::<1>()) {
        prop_assert!(a.is_granted_by(&a));
    }

    #[test]
    fn transitive([a, b, c] in same_base::<3>()) {
        if a.is_granted_by(&b) && b.is_granted_by(&c) {
            prop_assert!(a.is_granted_by(&c), "{a} <= {b} <= {c}");
        }
    }

    /// Scopes that grant each other are the same text: the canonical form is unique.
    #[test]
    fn antisymmetric([a, b] in same_base::<2>()) {
        if a.is_granted_by(&b) && b.is_granted_by(&a) {
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn qualified_never_grants_bare([a] in same_base::<1>()) {
        let bare = Scope::parse(a.base()).unwrap();
        prop_assert!(a.is_granted_by(&bare));
        prop_assert_eq!(bare.is_granted_by(&a), a.qualifier().is_none());
    }

    /// What a granted pattern stands for is granted one by one.
    #[test]
    fn a_granted_pattern_covers_all_that_it_stands_for(
        [a, b] in prop_oneof![
            [scope_of("fs.read"), scope_of("fs.read")],
            [scope_of("memory.read"), scope_of("memory.read")],
        ]
    ) {
        if let (true, Some(pattern)) = (a.is_granted_by(&b), a.qualifier()) {
            for text in instances(pattern) {
                if let Ok(one) = Scope::qualified(a.base(), &text) {
                    prop_assert!(one.is_granted_by(&b), "{one} <= {a} <= {b}");
                }
            }
        }
    }

    #[test]
    fn canonical_form_is_stable([a] in same_base::<1>()) {
        prop_assert_eq!(&Scope::parse(a.as_str()).unwrap(), &a);
    }

    #[test]
    fn parsing_never_panics(text in "\\PC{0,40}", base in select(BASES)) {
        let _ = Scope::parse(&text);
        if let Ok(scope) = Scope::qualified(base, &text) {
            prop_assert!(scope.is_granted_by(&scope));
            prop_assert_eq!(&Scope::parse(scope.as_str()).unwrap(), &scope);
        }
    }

    /// The intersection grants exactly what both sides grant; commutative,
    /// associative and idempotent follow, and are looked at too.
    /// INV-14: a capability is only ever narrowed.
    #[test]
    fn intersection_is_the_greatest_lower_bound(([a, b, c], tries) in sets()) {
        let ab = a.intersect(&b);
        let (ba, aa) = (b.intersect(&a), a.intersect(&a));
        let (left, right) = (ab.intersect(&c), a.intersect(&b.intersect(&c)));
        for x in tries.iter().chain(a.iter()).chain(b.iter()).chain(c.iter()) {
            let both = a.grants(x) && b.grants(x);
            prop_assert_eq!(ab.grants(x), both, "{} in [{}] and [{}]", x, a, b);
            prop_assert_eq!(ba.grants(x), both);
            prop_assert_eq!(aa.grants(x), a.grants(x));
            prop_assert_eq!(left.grants(x), both && c.grants(x));
            prop_assert_eq!(right.grants(x), left.grants(x), "{}", x);
        }
    }

    #[test]
    fn sets_survive_their_serialised_form(([a, b, _], tries) in sets()) {
        let met = a.intersect(&b);
        let json = serde_json::to_string(&met).unwrap();
        let back: CapabilitySet = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(serde_json::to_string(&back).unwrap(), json);
        for x in &tries {
            prop_assert_eq!(back.grants(x), met.grants(x));
        }
        prop_assert_eq!(&back, &met);
    }

    /// A ceiling takes away, more so with every tier down, and keeps order.
    #[test]
    fn ceilings_only_take_away(([a, b, _], tries) in sets()) {
        use TrustTier::{Kernel, SemiTrusted, Trusted, Untrusted};
        let steps: Vec<Effective> =
            [Kernel, Trusted, SemiTrusted, Untrusted].iter().map(|t| a.under(*t)).collect();
        prop_assert_eq!(steps[0].set(), &a);
        let more = CapabilitySet::from_scopes(a.iter().chain(b.iter()).cloned());
        for x in &tries {
            for pair in steps.windows(2) {
                prop_assert!(!pair[1].set().grants(x) || pair[0].set().grants(x), "{}", x);
            }
            for step in &steps {
                prop_assert!(!step.set().grants(x) || more.under(step.tier()).set().grants(x));
            }
        }
    }
}

#[test]
fn joint_entries_serialise_and_read_back() {
    let set = |text: &str| CapabilitySet::from_scopes([Scope::parse(text).unwrap()]);
    let met = set("fs.read:/a/*/x").intersect(&set("fs.read:/*/b"));
    let json = serde_json::to_string(&met).unwrap();
    assert_eq!(json, r#"[["fs.read:/*/b","fs.read:/a/*/x"]]"#);
    assert_eq!(met.to_string(), "fs.read:/*/b within fs.read:/a/*/x");
    assert_eq!(serde_json::from_str::<CapabilitySet>(&json).unwrap(), met);
    assert!(met.grants(&Scope::parse("fs.read:/a/b/x").unwrap()));
    assert!(!met.grants(&Scope::parse("fs.read:/a/c/x").unwrap()));
    assert!(met.iter().next().is_none() && met.has_base("fs.read") && !met.has_base("fs.write"));
    for bad in [r#"[[]]"#, r#"[["fs.read","fs.write"]]"#, r#"[["net.dns:a","net.dns:b"]]"#, r#"["x"]"#] {
        assert!(serde_json::from_str::<CapabilitySet>(bad).is_err(), "{bad}");
    }
}
