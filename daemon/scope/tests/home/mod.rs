//! The network that the origin tables speak about.

use hearth_scope::classify::{Interface, InterfaceKind, Network};

/// Names under which the page is reached.
pub(crate) const HOSTS: &[&str] = &["agent.local:7800", "10.0.0.2:7800", "127.0.0.1:7800"];

/// A home network on `eth0` with its router, a WireGuard tunnel that the
/// operator named, and a guest network and a container bridge that he did not.
pub(crate) fn network() -> Network {
    let interface = |name: &str, kind, on_link: &[&str], addresses: &[&str], gateways: &[&str]| Interface {
        name: name.into(),
        kind,
        on_link: on_link.iter().map(|n| n.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        gateways: gateways.iter().map(|a| a.parse().unwrap()).collect(),
    };
    let lan = ["10.0.0.0/24", "fd12:3456:789a::/64", "2001:db8:7::/64", "fe80::/64"];
    let own = ["10.0.0.2", "fd12:3456:789a::2", "2001:db8:7::2", "fe80::2"];
    Network {
        interfaces: vec![
            interface("eth0", InterfaceKind::Lan, &lan, &own, &["10.0.0.1", "fe80::1"]),
            interface("wlan0", InterfaceKind::Unnamed, &["192.168.50.0/24"], &["192.168.50.1"], &[]),
            interface("docker0", InterfaceKind::Lan, &["172.17.0.0/16"], &["172.17.0.1"], &[]),
            interface("wg0", InterfaceKind::Vpn, &["10.9.0.0/24"], &["10.9.0.1"], &[]),
            interface("tailscale0", InterfaceKind::Vpn, &["100.64.0.0/10"], &["100.64.0.2"], &[]),
            // A provider's own network, and prefixes that only wrap others.
            interface(
                "eth1",
                InterfaceKind::Lan,
                &["100.64.9.0/24", "64:ff9b::/96", "2002:a00:1::/48", "2001:0:5::/48"],
                &["100.64.9.2"],
                &[],
            ),
            // A line to a provider: everything is "on link" there.
            interface("ppp0", InterfaceKind::Lan, &["0.0.0.0/0", "::/0"], &["203.0.113.8"], &[]),
        ],
    }
}
