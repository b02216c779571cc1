//! The client of a model server, against servers on loopback sockets.

#![allow(clippy::unwrap_used)]

mod server;

use std::time::Duration;

use futures_util::StreamExt;
use hearth_egress::{Client, EgressError, EndpointPolicy, Method, Request, SecretValue, Url};
use server::{Server, head};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

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
