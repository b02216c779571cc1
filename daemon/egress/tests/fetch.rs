//! Fetches for tools, against servers on loopback sockets that were granted by name.

#![allow(clippy::unwrap_used)]

mod server;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hearth_egress::{EgressError, FetchLimits, Fetcher, LanHost, Phase, Resolver};
use server::Server;
use tokio::io::AsyncWriteExt;

/// Says where names lie; each name has a list of answers, the last one for ever.
#[derive(Default)]
struct Names(Mutex<Vec<(String, Vec<IpAddr>)>>, AtomicUsize);

impl Resolver for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            self.1.fetch_add(1, Ordering::SeqCst);
            let mut all = self.0.lock().unwrap();
            let Some((_, answers)) = all.iter_mut().find(|(name, _)| name == host) else {
                return Err(io::Error::other("no such name"));
            };
            let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
            Ok(vec![answer])
        })
    }
}

const LOOPBACK: &str = "127.0.0.1";

fn fetcher(server: &Server, answers: &[&str]) -> (Fetcher, Arc<Names>) {
    let answers = answers.iter().map(|a| a.parse().unwrap()).collect();
    let names = Arc::new(Names(Mutex::new(vec![("site.test".into(), answers)]), AtomicUsize::new(0)));
    let lan = vec![LanHost { host: "site.test".into(), port: server.address.port() }];
    (Fetcher::with_resolver(lan, Arc::clone(&names) as Arc<dyn Resolver>), names)
}

fn url(server: &Server, path: &str) -> String {
    format!("http://site.test:{}{path}", server.address.port())
}

fn short() -> FetchLimits {
    FetchLimits {
        connect: Duration::from_secs(5),
        first_byte: Duration::from_secs(5),
        total: Duration::from_secs(20),
        ..FetchLimits::default()
    }
}

#[tokio::test]
async fn a_page_is_read() {
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello";
    let server = Server::fixed(page).await;
    let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
    let got = fetcher.fetch(&url(&server, "/a?b=c#d"), short()).await.unwrap();
    assert_eq!((got.status, got.body.as_slice(), got.truncated), (200, &b"hello"[..], false));
    assert_eq!(got.content_type.as_deref(), Some("text/plain"));
    assert_eq!(got.final_url.path(), "/a");
    let head = server.heads.lock().unwrap()[0].clone();
    assert!(head.starts_with("get /a?b=c http/1.1") && head.contains("accept-encoding: identity"), "{head}");
    assert!(!head.contains("cookie") && !head.contains("authorization"), "{head}");
}

/// INV-9: the name changes its address between the check and the connection.
#[tokio::test]
async fn the_checked_address_is_the_one_that_is_used() {
    let server = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let (fetcher, names) = fetcher(&server, &[LOOPBACK, "192.0.2.1"]);
    assert_eq!(fetcher.fetch(&url(&server, "/"), short()).await.unwrap().status, 200);
    assert_eq!((names.1.load(Ordering::SeqCst), server.connections()), (1, 1));
}

/// INV-9: no redirect leads a fetch into the household. The spellings of
/// addresses and the answers of resolvers are in the table beside the guard.
#[tokio::test]
async fn each_hop_is_checked() {
    let inside = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret").await;
    let port = inside.address.port();
    for target in [
        format!("http://127.0.0.1:{port}/"),
        "http://127.0.0.1/".to_owned(),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        "http://2130706433/".to_owned(),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://localhost/".to_owned(),
        format!("http://site.test:{port}/"),
        "http://user:pw@site.test/".to_owned(),
        "file:///etc/passwd".to_owned(),
        "//10.0.0.1/".to_owned(),
    ] {
        let answer = format!("HTTP/1.1 302 F\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
        let server = Server::fixed(answer).await;
        let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
        let error = fetcher.fetch(&url(&server, "/"), short()).await.unwrap_err();
        assert!(matches!(error, EgressError::Refused(_)), "{target}: {error:?}");
    }
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn redirects_are_followed_five_times() {
    let server = Server::start(|_, mut socket, head| async move {
        let n: usize = head.split(['/', ' ']).nth(2).and_then(|n| n.parse().ok()).unwrap_or(0);
        let answer = match n {
            0 => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nend.".to_owned(),
            n => format!(
                "HTTP/1.1 30{} R\r\nlocation: /{}\r\ncontent-length: 0\r\n\r\n",
                [1, 2, 3, 7, 8][n % 5],
                n - 1
            ),
        };
        socket.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
    let got = fetcher.fetch(&url(&server, "/5"), short()).await.unwrap();
    assert_eq!((got.body.as_slice(), got.final_url.path()), (&b"end."[..], "/0"));
    assert_eq!(fetcher.fetch(&url(&server, "/6"), short()).await, Err(EgressError::TooManyRedirects(5)));
}

#[tokio::test]
async fn bodies_are_cut_at_the_limit() {
    let body = "x".repeat(5000);
    let plain = format!("HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{body}");
    let lying = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    let chunked = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1388\r\n{body}\r\n0\r\n\r\n");
    for answer in [plain, lying, chunked] {
        let server = Server::fixed(answer).await;
        let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
        for (limit, length, truncated) in [(5000, 5000, false), (4999, 4999, true), (0, 0, true)] {
            let limits = FetchLimits { body_bytes: limit, ..short() };
            let got = fetcher.fetch(&url(&server, "/"), limits).await.unwrap();
            assert_eq!((got.body.len(), got.truncated), (length, truncated), "limit {limit}");
        }
    }
}

#[tokio::test]
async fn an_endless_body_ends_with_the_limit() {
    let server = Server::start(|_, mut socket, _| async move {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while socket.write_all(&[b'x'; 4096]).await.is_ok() {}
    })
    .await;
    let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
    let got = fetcher.fetch(&url(&server, "/"), short()).await.unwrap();
    assert_eq!((got.body.len(), got.truncated), (2 * 1024 * 1024, true));
}

#[tokio::test]
async fn compressed_bodies_and_nonsense_are_refused() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc".to_owned(),
        "nonsense\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(100)),
    ] {
        let server = Server::fixed(answer.clone()).await;
        let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
        let error = fetcher.fetch(&url(&server, "/"), short()).await.unwrap_err();
        assert!(matches!(error, EgressError::Protocol(_)), "{answer}: {error:?}");
    }
}

#[tokio::test]
async fn head_reads_no_body() {
    let server = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n").await;
    let (fetcher, _) = fetcher(&server, &[LOOPBACK]);
    let got = fetcher.head(&url(&server, "/"), short()).await.unwrap();
    assert_eq!((got.status, got.body.len(), got.truncated), (200, 0, false));
    assert!(server.heads.lock().unwrap()[0].starts_with("head / "));
}

#[tokio::test]
async fn slow_servers_meet_their_limits() {
    let ms = Duration::from_millis;
    let silent = Server::start(|_, socket, _| async move {
        let _open = socket;
        std::future::pending::<()>().await;
    })
    .await;
    let (to_silent, _) = fetcher(&silent, &[LOOPBACK]);
    let limits = FetchLimits { connect: ms(50), first_byte: ms(50), ..short() };
    let error = to_silent.fetch(&url(&silent, "/"), limits).await.unwrap_err();
    assert_eq!(error, EgressError::TimedOut { phase: Phase::FirstByte, limit: ms(50) });

    let stalled = Server::start(|_, mut socket, _| async move {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc").await;
        std::future::pending::<()>().await;
    })
    .await;
    let (to_stalled, _) = fetcher(&stalled, &[LOOPBACK]);
    let limits = FetchLimits { total: ms(200), ..short() };
    let error = to_stalled.fetch(&url(&stalled, "/"), limits).await.unwrap_err();
    assert_eq!(error, EgressError::TimedOut { phase: Phase::Total, limit: ms(200) });
}

/// A resolver that never answers, and more fetches than there are slots: the
/// clock is virtual, no connection is made.
#[tokio::test(start_paused = true)]
async fn a_silent_resolver_meets_its_limit_and_slots_are_bounded() {
    struct Silent(AtomicUsize);
    impl Resolver for Silent {
        fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::pending())
        }
    }
    let silent = Arc::new(Silent(AtomicUsize::new(0)));
    let fetcher = Fetcher::with_resolver(vec![], Arc::clone(&silent) as Arc<dyn Resolver>);
    let start = tokio::time::Instant::now();
    let all = (0..6).map(|_| fetcher.fetch("https://example.com/", FetchLimits::default()));
    let all = futures_util::future::join_all(all);
    let early = tokio::time::timeout(Duration::from_secs(4), async { std::future::pending::<()>().await });
    let (all, _) = tokio::join!(all, async {
        let _ = early.await;
        assert_eq!(silent.0.load(Ordering::SeqCst), 4, "four at a time");
    });
    let late = EgressError::TimedOut { phase: Phase::Resolve, limit: Duration::from_secs(5) };
    assert!(all.iter().all(|r| *r == Err(late.clone())), "{all:?}");
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}
