//! Captured answers of real servers, served again from loopback sockets.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hearth_egress::Url;
use hearth_models::{ChatOptions, Decoder, Models, Provider, Wire};
use hearth_scope::{EffectClass, ToolName};
use hearth_turn::{ChatMessage, ModelEvent, ModelRequest, ToolSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// An answer as it was captured.
#[derive(Debug, Clone)]
pub(crate) struct Capture {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A capture by the beginning of its file's name.
///
/// `HEARTH_FIXTURES` names the folder with all of them; without it the small
/// set of the repository is used, and a test whose capture is not in it says so
/// and passes. `HEARTH_SKIP_CAPTURES=1` skips all of them.
pub(crate) fn capture(name: &str) -> Option<Capture> {
    if std::env::var("HEARTH_SKIP_CAPTURES").is_ok_and(|v| v == "1") {
        return None;
    }
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let all = std::env::var_os("HEARTH_FIXTURES").map(|dir| PathBuf::from(dir).join("llm-wire"));
    let folder = match (name.starts_with("handmade"), &all) {
        (true, _) => here.join("tests/captures"),
        (false, Some(folder)) => folder.clone(),
        (false, None) => here.join("../../tests/fixtures/llm-wire"),
    };
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| {
        panic!(
            "no captures in {}: {e}; set HEARTH_FIXTURES, or HEARTH_SKIP_CAPTURES=1 to do without",
            folder.display()
        )
    });
    let found = files.flatten().find(|f| f.file_name().to_string_lossy().starts_with(name));
    match found {
        Some(file) => Some(parse(&std::fs::read(file.path()).unwrap())),
        None if all.is_none() && !name.starts_with("handmade") => {
            eprintln!("skipped: {name} is not in the small set; set HEARTH_FIXTURES");
            None
        }
        None => panic!("no capture {name} in {}", folder.display()),
    }
}

/// What lies between the two `# ---` lines, or the whole file without them.
fn parse(file: &[u8]) -> Capture {
    let text = std::str::from_utf8(file).unwrap();
    let text = text.split_once("\n# ---").map_or(text, |(_, rest)| rest.split_once('\n').unwrap().1);
    let text = text.rsplit_once("# --- end").map_or(text, |(body, _)| body);
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers =
        lines.filter_map(|l| l.split_once(':')).map(|(n, v)| (n.to_lowercase(), v.trim().to_owned()));
    Capture { status, headers: headers.collect(), body: body.as_bytes().to_vec() }
}

/// How a capture is served.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    /// Sizes of the pieces, used in turn.
    pub(crate) pieces: Vec<usize>,
    /// The connection is closed after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// Pause in front of each piece.
    pub(crate) pause: Duration,
}

impl Default for Style {
    fn default() -> Self {
        Self { pieces: vec![1, 7, 3, 64, 13, 257], cut: None, pause: Duration::ZERO }
    }
}

impl Style {
    pub(crate) fn every_byte() -> Self {
        Self { pieces: vec![1], ..Self::default() }
    }

    pub(crate) fn cut(at: usize) -> Self {
        Self { cut: Some(at), ..Self::default() }
    }
}

/// Heads and bodies.
type Requests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A server that answers with captures, one after the other, the last one for ever.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Requests as they came: head and body.
    pub(crate) requests: Requests,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(answers: Vec<(Capture, Style)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut n = 0;
            loop {
                let Ok((mut socket, _)) = listener.accept().await else { return };
                let (capture, style) = answers[n.min(answers.len() - 1)].clone();
                n += 1;
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    let request = read_request(&mut socket).await;
                    seen.lock().unwrap().push(request);
                    let _ = serve(&mut socket, &capture, &style).await;
                });
            }
        });
        Self { address, requests, task }
    }

    pub(crate) fn url(&self) -> Url {
        Url::parse(&format!("http://{}", self.address)).unwrap()
    }

    pub(crate) fn request(&self, n: usize) -> (String, Vec<u8>) {
        self.requests.lock().unwrap()[n].clone()
    }
}

pub(crate) async fn read_request(socket: &mut TcpStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = socket.read(&mut buffer).await.unwrap_or(0);
        bytes.extend_from_slice(&buffer[..n]);
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|l| l.strip_prefix("content-length:"))
                .map_or(0, |v| v.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return (head, bytes[end + 4..].to_vec());
            }
        }
        if n == 0 {
            return (String::from_utf8_lossy(&bytes).into_owned(), Vec::new());
        }
    }
}

async fn serve(socket: &mut TcpStream, capture: &Capture, style: &Style) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut head = format!("HTTP/1.1 {} X\r\n", capture.status);
    for (name, value) in &capture.headers {
        if !matches!(name.as_str(), "content-length" | "transfer-encoding" | "connection" | "keep-alive") {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    head.push_str("transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await?;
    let body = &capture.body[..style.cut.unwrap_or(usize::MAX).min(capture.body.len())];
    let (mut from, mut n) = (0, 0);
    while from < body.len() {
        let to = (from + style.pieces[n % style.pieces.len()]).min(body.len());
        if !style.pause.is_zero() {
            tokio::time::sleep(style.pause).await;
        }
        socket.write_all(format!("{:x}\r\n", to - from).as_bytes()).await?;
        socket.write_all(&body[from..to]).await?;
        socket.write_all(b"\r\n").await?;
        (from, n) = (to, n + 1);
    }
    if style.cut.is_none() {
        socket.write_all(b"0\r\n\r\n").await?;
    }
    socket.shutdown().await
}

/// The two tools of the captures, with a dot that the wire does not know.
pub(crate) fn tools() -> Vec<ToolSpec> {
    let tool = |name: &str, argument: &str| ToolSpec {
        name: ToolName::parse(name).unwrap(),
        version: 1,
        description: format!("Takes a {argument}"),
        schema: serde_json::json!({"type": "object", "properties": {argument: {"type": "string"}}}),
        effect: EffectClass::Read,
        timeout: Duration::from_secs(5),
    };
    vec![tool("get.weather", "city"), tool("read.file", "path")]
}

pub(crate) fn request() -> ModelRequest {
    ModelRequest {
        system: "You are Hearth.".into(),
        tools: tools(),
        messages: vec![ChatMessage::User { text: "What is the weather in Paris?".into() }],
        max_tokens: 64,
    }
}

pub(crate) fn provider(wire: Wire, url: Url) -> Provider {
    Provider::new("test", wire, url, "smollm2:135m")
}

/// All events of an answer, text joined.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) thinking: String,
    pub(crate) calls: Vec<(String, String, Result<String, String>)>,
    pub(crate) waiting: usize,
    pub(crate) end: Option<ModelEvent>,
}

pub(crate) fn told(events: impl IntoIterator<Item = ModelEvent>) -> Told {
    let mut all = Told { text: String::new(), thinking: String::new(), calls: vec![], waiting: 0, end: None };
    for event in events {
        assert!(all.end.is_none(), "{event:?} after the end");
        match event {
            ModelEvent::Text(t) => all.text.push_str(&t),
            ModelEvent::Thinking(t) => all.thinking.push_str(&t),
            ModelEvent::Waiting => all.waiting += 1,
            ModelEvent::Call { provider_id, name, arguments } => {
                let arguments = arguments.map(|a| serde_json::Value::Object(a).to_string());
                all.calls.push((provider_id, name, arguments));
            }
            end => all.end = Some(end),
        }
    }
    all
}

/// The decoder alone, the body in pieces of `size` bytes.
pub(crate) fn decode(wire: Wire, body: &[u8], size: usize) -> Vec<ModelEvent> {
    let mut decoder = Decoder::new(wire, "smollm2:135m", &tools());
    let mut events: Vec<ModelEvent> = body.chunks(size.max(1)).flat_map(|c| decoder.push(c)).collect();
    events.extend(decoder.finish());
    events
}

/// One question over HTTP to a server that plays `answers`.
pub(crate) async fn ask(wire: Wire, answers: Vec<(Capture, Style)>) -> (Told, Server) {
    let server = Server::start(answers).await;
    let models = Models::new(vec![provider(wire, server.url())]).unwrap();
    let told = told(drain(models.chat(request(), ChatOptions::default(), CancellationToken::new())).await);
    (told, server)
}

pub(crate) async fn drain(mut events: tokio::sync::mpsc::Receiver<ModelEvent>) -> Vec<ModelEvent> {
    let mut all = Vec::new();
    while let Some(event) = events.recv().await {
        all.push(event);
    }
    all
}
