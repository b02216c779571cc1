//! A small HTTP server on a loopback socket, scripted by the test.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server: the handler gets the number of the connection, the head of the
/// request, and the socket to answer on.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) heads: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start<F>(
        handler: impl Fn(usize, TcpStream, String) -> F + Send + Sync + 'static,
    ) -> Self
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
    pub(crate) async fn fixed(answer: impl Into<Vec<u8>>) -> Self {
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

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

pub(crate) async fn head(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") && socket.read(&mut byte).await.is_ok_and(|n| n == 1) {
        bytes.push(byte[0]);
    }
    String::from_utf8_lossy(&bytes).to_lowercase()
}
