//! Which network a TCP peer is on, by our own routing table.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Listener, Proof, Refused, STEP_UP_MAX, Tcp};
use crate::origin::{Origin, Reach};

/// A snapshot of our interfaces, addresses and routes.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// Every interface except loopback.
    pub interfaces: Vec<Interface>,
}

/// One interface.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its name, for example `eth0`.
    pub name: String,
    /// What the operator said it is.
    pub kind: InterfaceKind,
    /// Prefixes that the routing table reaches over it without a gateway.
    pub on_link: Vec<IpNet>,
    /// Our own addresses on it.
    pub addresses: Vec<IpAddr>,
    /// Routers that are reached over it, IPv6 ones included.
    pub gateways: Vec<IpAddr>,
}

/// What the operator said an interface is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterfaceKind {
    /// Named as the home's network.
    Lan,
    /// Named as a private network of its own, such as WireGuard.
    Vpn,
    /// Not named: guest network, container bridge, anything else.
    Unnamed,
}

impl Interface {
    /// Container bridges are never opened, whatever the settings name.
    fn open(&self) -> bool {
        const CONTAINERS: [&str; 8] = ["docker", "br-", "veth", "virbr", "lxc", "lxd", "podman", "cni"];
        self.kind != InterfaceKind::Unnamed && !CONTAINERS.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

pub(super) fn tcp(t: &Tcp<'_>) -> Result<Origin, Refused> {
    let peer = canonical_peer(t)?;
    let place = match t.listener {
        Listener::Loopback => {
            if !peer.is_loopback() || t.interface.is_some() {
                return Err(Refused::Interface);
            }
            None
        }
        Listener::Lan => Some(place(t, peer)?),
    };
    t.http.check(t.proof != Proof::None)?;
    if t.http.forwarded() {
        return Ok(Origin::Forwarded);
    }
    Ok(match place {
        None => Origin::Loopback { owner: t.proof == Proof::OwnerCookie },
        Some((_, Some(reach))) => Origin::Distant { peer, reach },
        Some((interface, None)) => {
            let (device, fresh) = match t.proof {
                Proof::Paired { device, checked } => {
                    (Some(device.to_owned()), checked.is_some_and(|age| age <= STEP_UP_MAX))
                }
                Proof::None | Proof::OwnerCookie => (None, false),
            };
            let vpn = interface.kind == InterfaceKind::Vpn;
            Origin::Neighbour { peer, interface: interface.name.clone(), vpn, device, fresh }
        }
    })
}

/// The peer's address with IPv4-mapped forms unwrapped, if it can be one.
fn canonical_peer(t: &Tcp<'_>) -> Result<IpAddr, Refused> {
    let peer = t.peer.to_canonical();
    let impossible = match peer {
        IpAddr::V4(a) => a.is_unspecified() || a.is_multicast() || a.octets()[0] == 0 || a.octets()[0] >= 240,
        // `::a.b.c.d` is a deprecated form of IPv4 addresses.
        IpAddr::V6(a) => {
            a.is_unspecified() || a.is_multicast() || (a.segments()[..6] == [0; 6] && !a.is_loopback())
        }
    };
    if impossible {
        return Err(Refused::NotAPeer);
    }
    let link_local = matches!(peer, IpAddr::V6(a) if a.is_unicast_link_local());
    if link_local && t.scope != t.interface {
        return Err(Refused::Unattributed);
    }
    Ok(peer)
}

/// The interface, and what makes the peer distant, if anything does.
fn place<'a>(t: &Tcp<'a>, peer: IpAddr) -> Result<(&'a Interface, Option<Reach>), Refused> {
    let network = t.network;
    let interface = network
        .interfaces
        .iter()
        .find(|i| Some(i.name.as_str()) == t.interface && i.open())
        .ok_or(Refused::Interface)?;
    let any = |pick: fn(&Interface) -> &Vec<IpAddr>| {
        network.interfaces.iter().any(|i| pick(i).iter().any(|a| a.to_canonical() == peer))
    };
    let broadcast = |net: &IpNet| matches!(net, IpNet::V4(n) if n.prefix_len() < 31 && (peer == n.broadcast() || peer == n.network()));
    if interface.on_link.iter().any(broadcast) {
        return Err(Refused::NotAPeer);
    }
    let on_link = interface.on_link.iter().any(|net| is_a_link(net) && net.contains(&peer));
    let reach = if any(|i| &i.addresses) || peer.is_loopback() {
        Some(Reach::OwnAddress)
    } else if any(|i| &i.gateways) {
        Some(Reach::Gateway)
    } else if translated(peer) {
        Some(Reach::Translated)
    } else if carrier_nat(peer) && interface.kind != InterfaceKind::Vpn {
        Some(Reach::CarrierNat)
    } else if on_link {
        None
    } else if private(peer) {
        Some(Reach::Routed)
    } else {
        Some(Reach::Internet)
    };
    Ok((interface, reach))
}

/// Routes of tunnels and dial-up lines reach half the world without a gateway;
/// such a prefix says nothing about neighbours.
fn is_a_link(net: &IpNet) -> bool {
    net.prefix_len() >= if net.addr().is_ipv4() { 8 } else { 32 }
}

/// NAT64, 6to4 and Teredo: the address that counts is inside, and unproven.
fn translated(peer: IpAddr) -> bool {
    match peer {
        IpAddr::V4(a) => a.octets()[..3] == [192, 88, 99],
        IpAddr::V6(a) => {
            let s = a.segments();
            s[..2] == [0x64, 0xff9b] || s[0] == 0x2002 || s[..2] == [0x2001, 0]
        }
    }
}

fn carrier_nat(peer: IpAddr) -> bool {
    matches!(peer, IpAddr::V4(a) if a.octets()[0] == 100 && a.octets()[1] & 0xc0 == 64)
}

fn private(peer: IpAddr) -> bool {
    match peer {
        IpAddr::V4(a) => a.is_private() || a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local() || a.is_unique_local(),
    }
}
