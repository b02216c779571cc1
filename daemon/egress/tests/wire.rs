//! Both clients against servers on loopback sockets.

#![allow(clippy::unwrap_used)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use hearth_egress::{
    Client, EgressError, EndpointPolicy, FetchLimits, Fetcher, LanHost, Method, Phase, Request, Resolver,
    SecretValue, Url,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server: the handler gets the number of the connection, the head of the
/// request, and the socket to answer on.
struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start<F>(handler: impl Fn(usize, TcpStream, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (count, seen) = (Arc::clone(&connections), Arc::clone(&heads));
        let handler = Arc::new(handler);
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let n = count.fetch_add(1, Ordering::SeqCst);
                let (handler, seen) = (Arc::clone(&handler), Arc::clone(&seen));
                tokio::spawn(async move {
                    let head = head(&mut socket).await;
                    seen.lock().unwrap().push(head.clone());
                    handler(n, socket, head).await;
                });
            }
        });
        Self { address, connections, heads, task }
    }

    /// Answers every request with the same bytes.
    async fn fixed(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |_, mut socket, _| {
            let answer = Arc::clone(&answer);
            async move {
                let _ = socket.write_all(&answer).await;
                let _ = socket.shutdown().await;
            }
        })
        .await
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn head(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") && socket.read(&mut byte).await.is_ok_and(|n| n == 1) {
        bytes.push(byte[0]);
    }
    String::from_utf8_lossy(&bytes).to_lowercase()
}

fn client(server: &Server) -> Client {
    let base = Url::parse(&format!("http://{}", server.address)).unwrap();
    let headers = vec![("x-api-key".to_owned(), SecretValue::new("canary-7"))];
    Client::for_endpoint(EndpointPolicy { base, connect: Duration::from_secs(5), headers }).unwrap()
}

fn post(path: &str) -> Request {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Request { method: Method::Post, path: path.into(), headers, body: b"{}".to_vec() }
}

#[tokio::test]
async fn the_client_sends_what_it_should_and_nothing_else() {
    let server = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let answer = client(&server).send(post("/api/chat")).await.unwrap();
    assert_eq!((answer.status, answer.header("content-length")), (200, Some("2")));
    assert_eq!(answer.body.read(10).await.unwrap(), (b"ok".to_vec(), false));
    let head = server.heads.lock().unwrap()[0].clone();
    for part in ["post /api/chat http/1.1\r\n", "x-api-key: canary-7", &format!("host: {}", server.address)] {
        assert!(head.contains(part), "{part} in {head}");
    }
    for part in ["origin", "referer", "cookie", "accept-encoding"] {
        assert!(!head.contains(part), "{part} in {head}");
    }
}

#[tokio::test]
async fn the_client_follows_no_redirect() {
    let other = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let answer =
        format!("HTTP/1.1 307 T\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n", other.address);
    let server = Server::fixed(answer).await;
    assert_eq!(client(&server).send(post("/x")).await.unwrap().status, 307);
    assert_eq!(other.connections(), 0);
}

/// Statement 51: a pooled connection may be dead; the request is sent once more.
#[tokio::test]
async fn statement_51_a_dead_pooled_connection_is_replaced_once() {
    let server = Server::start(|n, mut socket, _| async move {
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        // The body of the first request was not read with its head.
        let _ = socket.read(&mut [0; 2]).await;
        socket.write_all(ok).await.unwrap();
        if n == 0 {
            // The second request on this connection gets no answer.
            let _ = head(&mut socket).await;
        }
    })
    .await;
    let client = client(&server);
    for _ in 0..2 {
        let answer = client.send(post("/x")).await.unwrap();
        assert_eq!(answer.body.read(10).await.unwrap().0, b"ok");
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_server_that_never_answers_is_tried_twice_at_most() {
    let server = Server::start(|_, socket, _| async move { drop(socket) }).await;
    let error = client(&server).send(post("/secret-path?token=1")).await.unwrap_err();
    assert!(matches!(error, EgressError::Broken(_)), "{error:?}");
    assert_eq!(server.connections(), 2);
    assert!(!error.to_string().contains("secret-path") && !error.to_string().contains("token"), "{error}");
}

#[tokio::test]
async fn a_broken_body_is_an_error_and_not_retried() {
    let server = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    let mut body = client(&server).send(post("/x")).await.unwrap().body;
    assert_eq!(body.next().await.unwrap().unwrap(), &b"abc"[..]);
    assert!(matches!(body.next().await, Some(Err(EgressError::Broken(_)))));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn errors_name_the_peer_and_nothing_secret() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for scheme in ["http", "https"] {
        let base = Url::parse(&format!("{scheme}://{address}")).unwrap();
        let headers = vec![("x-api-key".to_owned(), SecretValue::new("canary-7"))];
        let client =
            Client::for_endpoint(EndpointPolicy { base, connect: Duration::from_secs(5), headers }).unwrap();
        let error = client.send(post("/path?token=abc")).await.unwrap_err();
        assert!(matches!(error, EgressError::Connect { .. }), "{error:?}");
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(&address.to_string()), "{shown}");
        assert!(!["token", "canary", "path"].iter().any(|s| shown.contains(s)), "{shown}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_told_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = Url::parse(&format!("https://{}", listener.local_addr().unwrap())).unwrap();
    let policy = EndpointPolicy { base, connect: Duration::from_secs(5), headers: vec![] };
    let client = Client::for_endpoint(policy).unwrap();
    let answer = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        socket
    };
    let error = tokio::join!(client.send(post("/x")), answer).0.unwrap_err();
    assert!(matches!(error, EgressError::Tls { .. }), "{error:?}");
}

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

/// The name changes its address between the check and the connection.
#[tokio::test]
async fn the_checked_address_is_the_one_that_is_used() {
    let server = Server::fixed("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    let (fetcher, names) = fetcher(&server, &[LOOPBACK, "192.0.2.1"]);
    assert_eq!(fetcher.fetch(&url(&server, "/"), short()).await.unwrap().status, 200);
    assert_eq!((names.1.load(Ordering::SeqCst), server.connections()), (1, 1));
}

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
