use super::*;
use proptest::prelude::*;

#[test]
fn addresses() {
    let refused = [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.1.2.3",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "192.168.255.255",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.7",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::2",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::ffff:0:1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:0:53aa::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fd12:3456::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
        "4000::1",
        "1::1",
    ];
    for ip in refused {
        assert!(check_address(ip.parse().unwrap()).is_err(), "{ip}");
    }
    let allowed = [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00:1450::1",
        "2001:4860:4860::8888",
        "2003::1",
        "2400:cb00::1",
    ];
    for ip in allowed {
        assert_eq!(check_address(ip.parse().unwrap()), Ok(()), "{ip}");
    }
}

#[test]
fn neighbours_with_global_addresses() {
    let table = "\
00000000000000000000000000000001 01 80 10 80       lo
2a0012345678000100000000000000aa 02 40 00 00     eth0
fe80000000000000021122fffe334455 02 40 20 80     eth0
2a0099990000000000000000000000bb 03 80 00 00     eth1
broken line
";
    let on_link = OnLink::parse(table);
    for (ip, ours) in [
        ("2a00:1234:5678:1::aa", true),
        ("2a00:1234:5678:1:ffff::1", true),
        ("2a00:1234:5678:2::1", false),
        ("2a00:9999::1", true),
        ("2606:4700::1111", false),
        ("8.8.8.8", false),
    ] {
        assert_eq!(on_link.contains(ip.parse().unwrap()), ours, "{ip}");
    }
    assert_eq!(OnLink::parse(""), OnLink::default());
}

#[test]
fn local_names() {
    for name in
        ["localhost", "nas", "a.localhost", "NAS.local", "x.internal.", "pi.lan", "a.home.arpa", "b.onion"]
    {
        assert!(is_local_name(name), "{name}");
    }
    for name in ["example.com", "local.example.com", "notlocal.dev", "a.b", "mylocal.net"] {
        assert!(!is_local_name(name), "{name}");
    }
}

proptest! {
    /// Every IPv6 form of an IPv4 address is refused, whatever the address.
    #[test]
    fn wrapped_addresses_are_refused(v4: u32) {
        let [a, b, c, d] = v4.to_be_bytes();
        let (hi, lo) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        for v6 in [
            Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, hi, lo),
            Ipv6Addr::new(0, 0, 0, 0, 0, 0, hi, lo),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, hi, lo),
            Ipv6Addr::new(0x2002, hi, lo, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0x2001, 0, 1, 2, 3, 4, !hi, !lo),
        ] {
            prop_assert!(check_address(IpAddr::V6(v6)).is_err());
        }
    }

    #[test]
    fn any_table_is_read(text in "[0-9a-f \n]{0,200}") {
        OnLink::parse(&text);
    }
}
