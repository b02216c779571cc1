//! Which addresses on the internet a tool may reach.
//!
//! An address passes only when it is globally routable, is not a way to wrap an
//! IPv4 address into an IPv6 one, and does not lie on a network that this
//! machine is attached to: with IPv6 the devices of a household have global
//! addresses too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use ipnet::{IpNet, Ipv6Net};

/// Networks that are never the public internet, with their names.
const REFUSED: &[(&str, &str)] = &[
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "cloud metadata"),
    ("169.254.0.0/16", "link-local or cloud metadata"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "AS112"),
    ("192.52.193.0/24", "AMT"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "AS112"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved or broadcast"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "local NAT64"),
    ("100::/64", "discard"),
    ("2001::/32", "Teredo"),
    ("2001::/23", "protocol assignments"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "unique local"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
];

static NETWORKS: LazyLock<Vec<(IpNet, &'static str)>> = LazyLock::new(|| {
    REFUSED.iter().map(|(net, name)| (net.parse().expect("the table holds networks"), *name)).collect()
});

/// Checks that an address is on the public internet; the error names its kind.
pub fn check_address(ip: IpAddr) -> Result<(), &'static str> {
    if let Some((_, name)) = NETWORKS.iter().find(|(net, _)| net.contains(&ip)) {
        return Err(name);
    }
    match ip {
        // Everything that is routed today lies in 2000::/3; what is outside is refused.
        IpAddr::V6(v6) if v6.segments()[0] & 0xe000 != 0x2000 => Err("not globally routed"),
        _ => Ok(()),
    }
}

/// The IPv6 networks that this machine is attached to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnLink(Vec<Ipv6Net>);

impl OnLink {
    /// Reads the kernel's table; without one (no IPv6) the list is empty.
    pub fn read() -> Self {
        std::fs::read_to_string("/proc/self/net/if_inet6").map(|t| Self::parse(&t)).unwrap_or_default()
    }

    /// Parses lines of 32 hexadecimal digits, interface number, prefix length
    /// and more; a line that is not like that is skipped. A prefix longer than
    /// 64 is widened to 64, the size of a subnet.
    pub fn parse(table: &str) -> Self {
        let net = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = Ipv6Addr::from(u128::from_str_radix(words.next()?, 16).ok()?);
            let prefix = u8::from_str_radix(words.nth(1)?, 16).ok()?;
            Ipv6Net::new(address, prefix.min(64)).ok().map(|n| n.trunc())
        };
        Self(table.lines().filter_map(net).filter(|n| n.prefix_len() > 0).collect())
    }

    /// Whether the address is a neighbour's or our own.
    pub fn contains(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V6(v6) if self.0.iter().any(|n| n.contains(&v6)))
    }
}

/// Names that are answered inside of a household only; asking for them would be
/// of no use and would tell the local resolver what was asked.
pub(crate) fn is_local_name(host: &str) -> bool {
    const ENDS: &[&str] = &["localhost", "local", "internal", "lan", "home", "onion", "home.arpa"];
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    !host.contains('.')
        || ENDS
            .iter()
            .any(|end| host.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// The IPv4 form of an address, where it is one in disguise; used in messages.
pub(crate) fn unwrapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, |v4: Ipv4Addr| IpAddr::V4(v4)),
        IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests;
