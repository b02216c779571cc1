use std::io;

use futures_util::future::BoxFuture;

use super::*;

/// Answers every name with the same addresses.
struct Fixed(Vec<IpAddr>);

impl Resolver for Fixed {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async { Ok(self.0.clone()) })
    }
}

fn fetcher(addresses: &[&str], lan: &[(&str, u16)]) -> Fetcher {
    let lan = lan.iter().map(|(host, port)| LanHost { host: (*host).to_owned(), port: *port }).collect();
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    let on_link = || OnLink::parse("2a0012345678000100000000000000aa 02 40 00 00 eth0");
    Fetcher { on_link, ..Fetcher::with_resolver(lan, Arc::new(Fixed(addresses))) }
}

async fn check(fetcher: &Fetcher, url: &str) -> Result<Vec<String>, EgressError> {
    let url = Url::parse(url).map_err(|e| EgressError::BadUrl(e.to_string()))?;
    let target = fetcher.check(&url, Duration::from_secs(1)).await?;
    Ok(target.addresses.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn addresses_in_the_url_are_refused_in_every_spelling() {
    let fetcher = fetcher(&["8.8.8.8"], &[]);
    let forms = [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0x7F.1/",
        "http://0177.0.0.1/",
        "http://017700000001/",
        "http://127.0.0.1./",
        "http://0/",
        "http://0.0.0.0/",
        "http://0x0/",
        "http://00/",
        "http://%31%32%37.0.0.1/",
        "http://１２７.０.０.１/",
        "http://127。0。0。1/",
        "http://①②⑦.0.0.1/",
        "http:127.0.0.1/",
        "http:///127.0.0.1/",
        "http:\\\\127.0.0.1\\",
        "HTTP://127.0.0.1/",
        " http://127.0.0.1/",
        "http://127.0.0.1:80/",
        "http://127.0.0.1:443/",
        "http://127.0.0.1:8080/",
        "http://127.0.0.1#@example.com/",
        "http://127.0.0.1?@example.com/",
        "http://example.com@127.0.0.1/",
        "http://a:b@8.8.8.8/",
        "http://user@8.8.8.8/",
        "http://[::1]/",
        "http://[::]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::127.0.0.1]/",
        "http://[64:ff9b::a00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[fc00::1]/",
        "http://[ff02::1]/",
        "http://[2001:db8::1]/",
        "http://[2a00:1234:5678:1::1]/",
        "http://10.0.0.1/",
        "http://10.1/",
        "http://167772161/",
        "http://012.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.1.1/",
        "http://192.168.257/",
        "http://3232235777/",
        "http://0xc0a80101/",
        "http://169.254.169.254/latest/meta-data/",
        "http://0xa9fea9fe/",
        "http://2852039166/",
        "http://0251.0376.0251.0376/",
        "http://168.63.129.16/",
        "http://100.100.100.200/",
        "http://100.64.0.1/",
        "http://192.0.0.192/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://198.18.0.1/",
        "http://203.0.113.1/",
        "http://localhost/",
        "http://LOCALHOST/",
        "http://localhost./",
        "http://a.localhost/",
        "http://pi/",
        "http://router.local/",
        "http://metadata.google.internal/",
        "http://nas.lan/",
        "http://x.home.arpa/",
        "http://example.com:22/",
        "http://example.com:6379/",
        "http://8.8.8.8:11434/",
        "https://example.com:8123/",
        "http://example.com:0/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "data:,x",
        "javascript:1",
        "unix:/run/x",
        "http://[::1%25lo]/",
        "http://256.0.0.1/",
        "http://1.2.3.4.5/",
        "http://",
        "http://exa mple.com/",
        "",
        "example.com",
    ];
    assert!(forms.len() >= 90);
    for form in forms {
        let verdict = check(&fetcher, form.trim()).await;
        assert!(
            matches!(verdict, Err(EgressError::Refused(_) | EgressError::BadUrl(_))),
            "{form}: {verdict:?}"
        );
    }
}

#[tokio::test]
async fn public_addresses_pass() {
    let fetcher = fetcher(&["93.184.215.14"], &[]);
    for (url, address) in [
        ("http://example.com/", "93.184.215.14:80"),
        ("https://example.com/", "93.184.215.14:443"),
        ("https://example.com:8443/", "93.184.215.14:8443"),
        ("https://EXAMPLE.com./", "93.184.215.14:443"),
        ("https://bücher.example/", "93.184.215.14:443"),
        ("http://8.8.8.8:8080/", "8.8.8.8:8080"),
        ("http://[2606:4700::1111]/", "[2606:4700::1111]:80"),
    ] {
        assert_eq!(check(&fetcher, url).await.unwrap(), [address], "{url}");
    }
}

#[tokio::test]
async fn names_are_judged_by_all_their_addresses() {
    let bad = [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "fd00::1",
        "64:ff9b::1",
        "2a00:1234:5678:1::7",
        "100.64.0.1",
        "0.0.0.0",
    ];
    for ip in bad {
        let verdict = check(&fetcher(&[ip], &[]), "http://example.com/").await;
        assert!(matches!(verdict, Err(EgressError::Refused(_))), "{ip}: {verdict:?}");
        // A public one beside it: only that is connected to.
        let mixed = check(&fetcher(&[ip, "8.8.8.8"], &[]), "http://example.com/").await;
        assert_eq!(mixed.unwrap(), ["8.8.8.8:80"], "{ip}");
    }
    let none = check(&fetcher(&[], &[]), "http://example.com/").await;
    assert!(matches!(none, Err(EgressError::Resolve { .. })));
}

#[tokio::test]
async fn granted_hosts_pass_with_exactly_their_port() {
    let fetcher = fetcher(&["192.168.1.7"], &[("nas.local", 8123), ("192.168.1.9", 80), ("[fd00::9]", 80)]);
    for (url, passes) in [
        ("http://nas.local:8123/", true),
        ("http://NAS.local.:8123/", true),
        ("http://192.168.1.9/", true),
        ("http://0xc0a80109/", true),
        ("http://[fd00::9]/", true),
        ("http://nas.local/", false),
        ("http://nas.local:8124/", false),
        ("http://a.nas.local:8123/", false),
        ("http://nas.local.example.com:8123/", false),
        ("http://192.168.1.9:8123/", false),
        ("http://192.168.1.7:8123/", false),
        ("http://[fd00::8]/", false),
        ("http://user@nas.local:8123/", false),
        ("ftp://nas.local:8123/", false),
    ] {
        assert_eq!(check(&fetcher, url).await.is_ok(), passes, "{url}");
    }
}

#[test]
fn redirects_lead_where_they_may() {
    let from = |s: &str| Url::parse(s).unwrap();
    for (base, location, next) in [
        ("http://a.example/x/y", "z", Some("http://a.example/x/z")),
        ("http://a.example/", "//b.example/", Some("http://b.example/")),
        ("http://a.example/", "https://b.example/#f", Some("https://b.example/")),
        ("https://a.example/", "https://b.example/", Some("https://b.example/")),
        ("https://a.example/", "/b", Some("https://a.example/b")),
        ("https://a.example/", "http://a.example/", None),
        ("https://a.example/", "file:///etc/passwd", None),
        ("http://a.example/", "http://[bad/", None),
    ] {
        let found = follow(&from(base), location.as_bytes()).ok();
        assert_eq!(found.as_ref().map(Url::as_str), next, "{base} to {location}");
    }
    assert!(follow(&from("http://a.example/"), b"/\xff").is_err());
    assert!(follow(&from("http://a.example/"), "x".repeat(5000).as_bytes()).is_err());
}
