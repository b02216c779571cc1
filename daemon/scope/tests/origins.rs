//! From facts to tier: our own golden table, the shared vectors, and laws.
#![allow(clippy::unwrap_used)]

mod golden;
mod home;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use hearth_scope::classify::{
    Http, Listener, Mqtt, Network, Payload, Proof, STEP_UP_MAX, Socket, Tcp, Telegram, Update,
};
use hearth_scope::origin::{Content, KernelClaimed};
use hearth_scope::{ConnectionFacts, Origin, Refused, TrustTier, Verdict, classify};
use home::{HOSTS, network};
use proptest::prelude::*;

/// A verdict as one word or two, in the words of the tables.
fn shown(verdict: &Verdict) -> String {
    let origin = match verdict {
        Verdict::Refuse(_) => return "refuse".into(),
        Verdict::Accept(origin) => origin,
    };
    let s = origin.standing();
    let mut out = s.tier.to_string();
    if s.may_approve && s.tier < TrustTier::Trusted {
        out += "+approve";
    }
    match (s.content, s.event_only) {
        (Content::House, true) => out = "event, content house".into(),
        (Content::Outside, _) if s.event_only || s.tier > TrustTier::Untrusted => {
            out += ", content outside";
        }
        _ => {}
    }
    out
}

/// One TCP request: listener, interface, `address[%scope]`, headers, proof.
fn tcp(
    network: &Network,
    listener: Listener,
    interface: Option<&str>,
    peer: &str,
    head: (&str, &[(&str, &str)]),
    proof: Proof<'_>,
) -> Verdict {
    let (address, scope) = match peer.split_once('%') {
        Some((address, scope)) => (address, Some(scope)),
        None => (peer, None),
    };
    classify(&ConnectionFacts::Tcp(Tcp {
        listener,
        interface,
        peer: address.parse().unwrap(),
        scope,
        network,
        http: Http { method: head.0, headers: head.1, hosts: HOSTS },
        proof,
    }))
}

const PAIRED: Proof<'static> = Proof::Paired { device: "phone", checked: None };
const FRESH: Proof<'static> = Proof::Paired { device: "phone", checked: Some(Duration::from_secs(60)) };
const STALE: Proof<'static> = Proof::Paired { device: "phone", checked: Some(Duration::from_secs(301)) };

fn proof(name: &str) -> Proof<'static> {
    match name {
        "none" => Proof::None,
        "owner-cookie" => Proof::OwnerCookie,
        "paired-cookie" => PAIRED,
        "paired-cookie+pin<5min" => FRESH,
        "paired-cookie+pin>5min" => STALE,
        other => panic!("unknown proof {other}"),
    }
}

const GOOD_HOST: (&str, &str) = ("host", "agent.local:7800");

fn socket(peer: u32) -> Verdict {
    classify(&ConnectionFacts::Socket(Socket { peer, owner: 1000, daemon: 990, overflow: 65534 }))
}

fn telegram(change: impl FnOnce(&mut Telegram<'static>)) -> Verdict {
    let mut update = Telegram {
        paired: &[111],
        sender: Some(111),
        bot: false,
        on_behalf: false,
        private: true,
        update: Update::Message,
        forwarded: false,
    };
    change(&mut update);
    classify(&ConnectionFacts::Telegram(update))
}

fn mqtt(rule: bool, authenticated: bool, payload: Payload) -> Verdict {
    classify(&ConnectionFacts::Mqtt(Mqtt { topic: "home/door", rule, authenticated, payload }))
}

fn scheduled(creator: TrustTier, tainted: bool) -> Verdict {
    classify(&ConnectionFacts::Scheduled { creator, tainted })
}

/// `listener interface peer proof`, all with a plain GET to our own name.
const NETWORK_ROWS: &[&str] = &[
    "loopback - 127.0.0.1 none",
    "loopback - 127.0.0.1 owner-cookie",
    "loopback - 127.8.8.8 none",
    "loopback - ::1 none",
    "loopback - ::1 owner-cookie",
    "loopback - ::ffff:127.0.0.1 owner-cookie",
    "loopback - 127.0.0.1 paired-cookie+pin<5min",
    "loopback - 10.0.0.77 owner-cookie",
    "loopback eth0 127.0.0.1 owner-cookie",
    "loopback docker0 172.17.0.1 owner-cookie",
    "lan eth0 10.0.0.77 none",
    "lan eth0 10.0.0.77 owner-cookie",
    "lan eth0 10.0.0.77 paired-cookie",
    "lan eth0 10.0.0.77 paired-cookie+pin<5min",
    "lan eth0 10.0.0.77 paired-cookie+pin>5min",
    "lan eth0 ::ffff:10.0.0.77 paired-cookie",
    "lan eth0 10.0.0.1 paired-cookie+pin<5min",
    "lan eth0 fe80::1%eth0 paired-cookie",
    "lan eth0 10.0.0.2 paired-cookie",
    "lan eth0 192.168.50.1 paired-cookie",
    "lan eth0 127.0.0.1 paired-cookie",
    "lan eth0 10.0.5.9 paired-cookie",
    "lan eth0 192.168.1.9 paired-cookie",
    "lan eth0 100.64.3.3 paired-cookie",
    "lan eth0 100.128.3.3 paired-cookie",
    "lan eth0 fd12:3456:789a::50 paired-cookie",
    "lan eth0 2001:db8:7::50 paired-cookie",
    "lan eth0 2001:db8:8::50 paired-cookie",
    "lan eth0 fd99::50 paired-cookie",
    "lan eth0 fe80::aaaa%eth0 paired-cookie",
    "lan eth0 fe80::aaaa%wg0 paired-cookie",
    "lan eth0 fe80::aaaa paired-cookie",
    "lan eth0 169.254.7.7 paired-cookie",
    "lan eth0 64:ff9b::a00:4d paired-cookie",
    "lan eth0 64:ff9b:1::a00:4d paired-cookie",
    "lan eth0 2002:a00:4d::1 paired-cookie",
    "lan eth0 2001:0:1::1 paired-cookie",
    "lan eth0 ::10.0.0.77 paired-cookie",
    "lan eth0 :: paired-cookie",
    "lan eth0 0.0.0.0 paired-cookie",
    "lan eth0 ::ffff:0.0.0.0 paired-cookie",
    "lan eth0 224.0.0.251 paired-cookie",
    "lan eth0 ff02::fb paired-cookie",
    "lan eth0 10.0.0.255 paired-cookie",
    "lan eth0 255.255.255.255 paired-cookie",
    "lan eth0 203.0.113.9 paired-cookie+pin<5min",
    "lan eth0 2a00:1450::5 paired-cookie",
    "lan wlan0 192.168.50.9 paired-cookie",
    "lan docker0 172.17.0.5 paired-cookie",
    "lan veth9 10.0.0.77 paired-cookie",
    "lan - 10.0.0.77 paired-cookie",
    "lan wg0 10.9.0.7 none",
    "lan wg0 10.9.0.7 paired-cookie",
    "lan wg0 10.9.0.7 paired-cookie+pin<5min",
    "lan wg0 10.0.0.77 paired-cookie",
    "lan tailscale0 100.64.3.3 paired-cookie",
    "lan eth1 100.64.9.3 paired-cookie",
    "lan eth1 64:ff9b::a00:4d paired-cookie",
    "lan eth1 2002:a00:1::5 paired-cookie",
    "lan eth1 2001:0:5::5 paired-cookie",
    "lan ppp0 203.0.113.9 paired-cookie",
    "lan ppp0 2a00:1450::5 paired-cookie",
];

fn golden_table() -> String {
    let mut out = "# What becomes of a message, by where it comes from.\n".to_owned();
    let mut row = |facts: &str, verdict: Verdict| {
        writeln!(out, "{facts:<52} {}", shown(&verdict)).unwrap();
    };
    let all = [("root", 0), ("owner", 1000), ("daemon", 990), ("other", 1001), ("overflow", 65534)];
    for (name, uid) in all {
        row(&format!("console {name}"), socket(uid));
    }
    row("console nobody", socket(u32::MAX));
    let network = network();
    for facts in NETWORK_ROWS {
        let [listener, interface, peer, auth] = facts.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let listener = if listener == "lan" { Listener::Lan } else { Listener::Loopback };
        let interface = Some(interface).filter(|name| *name != "-");
        row(facts, tcp(&network, listener, interface, peer, ("GET", &[GOOD_HOST]), proof(auth)));
    }
    row("telegram private", telegram(|_| {}));
    row("telegram private button", telegram(|t| t.update = Update::Button));
    row("telegram private forwarded", telegram(|t| t.forwarded = true));
    row("telegram private edited, channel post, inline", telegram(|t| t.update = Update::Other));
    row("telegram group", telegram(|t| t.private = false));
    row(
        "telegram group button",
        telegram(|t| {
            t.private = false;
            t.update = Update::Button;
        }),
    );
    row("telegram other id", telegram(|t| t.sender = Some(222)));
    row(
        "telegram other id button",
        telegram(|t| {
            t.sender = Some(222);
            t.update = Update::Button;
        }),
    );
    row("telegram no id", telegram(|t| t.sender = None));
    row("telegram on behalf of a group", telegram(|t| t.on_behalf = true));
    row("telegram bot", telegram(|t| t.bot = true));
    row("mqtt no rule, text", mqtt(false, true, Payload::Text));
    row("mqtt no rule, value", mqtt(false, true, Payload::Value));
    row("mqtt no rule, proven command", mqtt(false, true, Payload::Command { proven: true }));
    row("mqtt text, open broker", mqtt(true, false, Payload::Text));
    row("mqtt text", mqtt(true, true, Payload::Text));
    row("mqtt value, open broker", mqtt(true, false, Payload::Value));
    row("mqtt value", mqtt(true, true, Payload::Value));
    row("mqtt proven command", mqtt(true, false, Payload::Command { proven: true }));
    row("mqtt unproven command", mqtt(true, true, Payload::Command { proven: false }));
    for (name, signed) in [("signed", true), ("unsigned", false)] {
        row(&format!("webhook {name}"), classify(&ConnectionFacts::Webhook { routine: "r", signed }));
    }
    use TrustTier::{Kernel, SemiTrusted, Trusted, Untrusted};
    for creator in [Kernel, Trusted, SemiTrusted, Untrusted] {
        row(&format!("scheduled by {creator}"), scheduled(creator, false));
        row(&format!("scheduled by {creator}, tainted"), scheduled(creator, true));
    }
    out
}

#[test]
fn origins_match_the_golden_table() {
    let table = golden_table();
    assert!(table.lines().count() > 40);
    golden::check("origins.txt", &table);
}

/// Rows of: method, headers besides `Host`, whether a paired neighbour gets in.
#[test]
fn browser_rules() {
    let own = ("origin", "http://agent.local:7800");
    let same = ("sec-fetch-site", "same-origin");
    let json = ("content-type", "application/json; charset=utf-8");
    let mark = ("x-hearth", "1");
    let upgrade = ("upgrade", "websocket");
    let full = [own, same, json, mark];
    let without = |i: usize| full.iter().enumerate().filter(move |(n, _)| *n != i).map(|(_, h)| *h);
    let network = network();
    let check = |method: &str, headers: &[(&str, &str)], expect: bool| {
        let all: Vec<_> = std::iter::once(GOOD_HOST).chain(headers.iter().copied()).collect();
        let verdict = tcp(&network, Listener::Lan, Some("eth0"), "10.0.0.77", (method, &all), PAIRED);
        assert_eq!(verdict.tier(), expect.then_some(TrustTier::SemiTrusted), "{method} {headers:?}");
    };
    check("GET", &[], true);
    check("HEAD", &[("Sec-Fetch-Site", "none")], true);
    check("GET", &[("Sec-Fetch-Site", "cross-site")], false);
    check("GET", &[("Sec-Fetch-Site", "same-site")], false);
    check("GET", &[("Origin", "http://evil.example")], false);
    check("GET", &[("Origin", "http://10.0.0.2:7800")], false);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        check(method, &full, true);
        for i in 0..full.len() {
            check(method, &without(i).collect::<Vec<_>>(), false);
        }
    }
    for (i, bad) in [
        (0, ("origin", "null")),
        (0, ("origin", "http://agent.local")),
        (0, ("origin", "http://agent.local:7800.evil.example")),
        (0, ("origin", "ftp://agent.local:7800")),
        (1, ("sec-fetch-site", "none")),
        (2, ("content-type", "text/plain")),
        (2, ("content-type", "application/json-patch")),
    ] {
        check("POST", &without(i).chain([bad]).collect::<Vec<_>>(), false);
    }
    check("POST", &[own, own, same, json, mark], false);
    check("GET", &[upgrade, own], true);
    check("GET", &[upgrade], false);
    check("GET", &[upgrade, ("origin", "https://evil.example")], false);
    for method in ["OPTIONS", "TRACE", "CONNECT", "get", ""] {
        check(method, &full, false);
    }
    for hosts in [
        &[][..],
        &["evil.example:7800"],
        &["agent.local"],
        &["agent.local.:7800"],
        &["agent.local:7800", "evil.example"],
        &["agent.local:7800", "agent.local:7800"],
        &["agent.local:7800, evil.example"],
        &["0.0.0.0:7800"],
    ] {
        let headers: Vec<_> = hosts.iter().map(|host| ("Host", *host)).collect();
        let verdict = tcp(&network, Listener::Lan, Some("eth0"), "10.0.0.77", ("GET", &headers), PAIRED);
        assert_eq!(verdict.tier(), None, "{hosts:?}");
    }
    // A socket needs a login as well.
    let head = ("GET", &[GOOD_HOST, upgrade, own][..]);
    let verdict = tcp(&network, Listener::Lan, Some("eth0"), "10.0.0.77", head, Proof::None);
    assert_eq!(verdict.tier(), None);
}

#[test]
fn the_kernel_tier_is_refused_to_channels() {
    assert_eq!(Origin::Internal.from_channel(), Err(KernelClaimed));
    let console = Origin::Console { uid: 1000 };
    assert_eq!(console.clone().from_channel(), Ok(console));
    let planned = Origin::Scheduled { creator: TrustTier::Kernel, tainted: false };
    assert_eq!(planned.tier(), TrustTier::Trusted);
}

#[test]
fn one_account_for_owner_and_daemon() {
    let peer = |peer, owner| {
        classify(&ConnectionFacts::Socket(Socket { peer, owner, daemon: 1000, overflow: 65534 }))
    };
    assert_eq!(peer(1000, 1000).tier(), Some(TrustTier::Trusted));
    assert_eq!(peer(1000, 1001).tier(), None);
    assert_eq!(peer(65534, 65534), Verdict::Refuse(Refused::UnmappedUser));
    assert_eq!(peer(u32::MAX, u32::MAX), Verdict::Refuse(Refused::UnmappedUser));
    // A daemon that runs as root takes no orders from its own children.
    let root = Socket { peer: 0, owner: 1000, daemon: 0, overflow: 65534 };
    assert_eq!(classify(&ConnectionFacts::Socket(root)), Verdict::Refuse(Refused::OwnProcess));
}

#[test]
fn step_up_ends_after_its_time() {
    let network = network();
    let head = ("GET", &[GOOD_HOST][..]);
    for (age, expect) in [(STEP_UP_MAX, true), (STEP_UP_MAX + Duration::from_millis(1), false)] {
        let proof = Proof::Paired { device: "phone", checked: Some(age) };
        match tcp(&network, Listener::Lan, Some("eth0"), "10.0.0.77", head, proof) {
            Verdict::Accept(origin) => assert_eq!(origin.standing().may_approve, expect),
            other => panic!("{other:?}"),
        }
    }
}

const FORWARDING: &[&str] = &[
    "Forwarded",
    "X-Forwarded-For",
    "x-forwarded-host",
    "X_Forwarded_For",
    "X-Real-IP",
    "Via",
    "CF-Connecting-IP",
    "CF-Ray",
    "True-Client-IP",
    "X-Client-IP",
    "Tailscale-User-Login",
    "X-Original-Forwarded-For",
    "X-Cluster-Client-IP",
];

#[test]
fn any_forwarding_header_voids_the_owner_cookie() {
    let network = network();
    for name in FORWARDING {
        let head = ("GET", &[GOOD_HOST, (*name, "127.0.0.1")][..]);
        let verdict = tcp(&network, Listener::Loopback, None, "127.0.0.1", head, Proof::OwnerCookie);
        assert_eq!(verdict, Verdict::Accept(Origin::Forwarded), "{name}");
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    const KNOWN: [&str; 6] = ["10.0.0.77", "10.0.0.1", "127.0.0.1", "::1", "10.9.0.7", "fe80::aaaa"];
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::from(bits.to_be_bytes())),
        any::<u8>().prop_map(|last| IpAddr::from([10, 0, 0, last])),
        any::<u128>().prop_map(|bits| IpAddr::from(bits.to_be_bytes())),
        proptest::sample::select(&KNOWN[..]).prop_map(|a| a.parse().unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..Default::default() })]

    /// No header raises a verdict; a forwarding one leaves nothing above Untrusted;
    /// nothing on the network is Kernel, and only loopback is Trusted.
    #[test]
    fn headers_never_raise(
        peer in address(),
        lan in any::<bool>(),
        interface in proptest::sample::select(&[None, Some("eth0"), Some("wg0"), Some("wlan0"), Some("docker0")][..]),
        auth in proptest::sample::select(&["none", "owner-cookie", "paired-cookie", "paired-cookie+pin<5min"][..]),
        name in prop_oneof![proptest::sample::select(FORWARDING).prop_map(String::from), "[A-Za-z-]{1,16}"],
        value in "\\PC{0,20}",
    ) {
        let network = network();
        let facts = |headers: &[(&str, &str)]| classify(&ConnectionFacts::Tcp(Tcp {
            listener: if lan { Listener::Lan } else { Listener::Loopback },
            interface, peer, scope: interface, network: &network,
            http: Http { method: "GET", headers, hosts: HOSTS },
            proof: proof(auth),
        }));
        let plain = facts(&[GOOD_HOST]).tier();
        let more = facts(&[GOOD_HOST, (&name, &value)]).tier();
        prop_assert!(more <= plain);
        prop_assert!(plain <= Some(TrustTier::Trusted));
        prop_assert!(plain < Some(TrustTier::Trusted) || (!lan && peer.to_canonical().is_loopback()));
        if FORWARDING.contains(&name.as_str()) {
            prop_assert!(more <= Some(TrustTier::Untrusted));
        }
    }
}

/// The shared vectors, where the folder is at hand.
#[test]
fn shared_vectors() {
    let Some(folder) = std::env::var_os("HEARTH_FIXTURES") else {
        eprintln!("HEARTH_FIXTURES is not set: the golden table alone was compared");
        return;
    };
    let file = std::path::Path::new(&folder).join("injection/origins.json");
    let all: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let cases = all["cases"].as_array().unwrap();
    assert!(cases.len() >= 60, "{}", cases.len());
    for case in cases {
        let text = |key: &str| case[key].as_str().unwrap_or_default();
        let expect = text("expect").replace("semitrusted", "semi_trusted");
        let verdict = vector(case);
        if expect == "min(creator)" {
            assert_eq!(verdict.tier(), Some(TrustTier::Trusted), "{case}");
            assert_eq!(scheduled(TrustTier::SemiTrusted, false).tier(), Some(TrustTier::SemiTrusted));
        } else {
            // Most vectors speak about the tier only.
            let shown = shown(&verdict);
            let have = if expect.contains(',') { &shown } else { shown.split(',').next().unwrap() };
            assert_eq!(have, expect, "{case}");
        }
    }
    eprintln!("{} vectors", cases.len());
}

/// Reads one vector. Those that do not speak about `Host` at all get a good one,
/// so that what is judged is the address; `host-missing` gets none.
fn vector(case: &serde_json::Value) -> Verdict {
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    let (id, peer) = (text("id"), text("peer"));
    match text("listener") {
        "uds:owner.sock" => socket(match peer {
            "uid=0" => 0,
            "uid=owner" => 1000,
            "uid=agentd" => 990,
            "uid=65534(overflow)" => 65534,
            _ => 1001,
        }),
        listener @ ("tcp:lo" | "tcp:lan") => {
            let given: Vec<(&str, &str)> = case["headers"]
                .as_object()
                .unwrap()
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
                .collect();
            let method = given.iter().find(|h| h.0 == "method").map_or("GET", |h| h.1);
            let mut headers: Vec<_> = given.iter().copied().filter(|h| h.0 != "method").collect();
            if id != "host-missing" && headers.iter().all(|h| h.0 != "host") {
                headers.push(GOOD_HOST);
            }
            let listener = if listener == "tcp:lo" { Listener::Loopback } else { Listener::Lan };
            let network = network();
            let auth = proof(text("auth"));
            tcp(&network, listener, case["iface"].as_str(), peer, (method, &headers), auth)
        }
        "telegram" => telegram(|t| {
            let id = peer.split_once("from.id=").map(|(_, rest)| rest.split(' ').next());
            t.sender = id.flatten().and_then(|id| id.parse().ok());
            t.private = !peer.contains("chat=group");
            t.forwarded = peer.contains("forward_origin");
            t.bot = peer.contains("is_bot=true");
            t.on_behalf = peer.contains("sender_chat");
            if peer.contains("edited_message") || peer.contains("inline_query") {
                t.update = Update::Other;
            }
            if peer.contains("callback") {
                t.update = Update::Button;
            }
        }),
        "mqtt" => {
            let payload = match peer {
                p if p.contains("number") => Payload::Value,
                p if p.contains("HMAC") => Payload::Command { proven: true },
                _ => Payload::Text,
            };
            mqtt(true, !peer.contains("without"), payload)
        }
        "trigger:cron" => scheduled(TrustTier::Trusted, peer.contains("tainted")),
        "http:webhook" => {
            classify(&ConnectionFacts::Webhook { routine: "r", signed: peer.contains("HMAC ok") })
        }
        other => panic!("unknown listener {other} in {id}"),
    }
}
