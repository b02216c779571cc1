//! A scripted model server: OpenAI-compatible, streamed, on a loopback port of
//! its own. It answers what the script says, faults included.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What the server does with one request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Streams this text word by word.
    Text(String),
    /// Asks for these tools (wire name, arguments), all in one step.
    Calls(Vec<(String, Value)>),
    /// Streams the words, then nothing more until the client goes away.
    Hang(String),
    /// Streams the words, then closes the connection without an end.
    Cut(String),
    /// Answers with this status and body.
    Status(u16, Value),
}

impl Reply {
    /// One tool call.
    pub fn call(name: &str, arguments: Value) -> Self {
        Self::Calls(vec![(name.to_owned(), arguments)])
    }

    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

type Script = Box<dyn Fn(&Value) -> Reply + Send + Sync>;

/// The server.
pub struct FakeModel {
    port: u16,
    requests: Arc<Mutex<Vec<Value>>>,
    gone: Arc<AtomicUsize>,
    busy_ns: Arc<AtomicU64>,
}

impl FakeModel {
    /// Starts a server that answers each request with `script(request body)`.
    pub fn start(script: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let gone = Arc::new(AtomicUsize::new(0));
        let busy_ns = Arc::new(AtomicU64::new(0));
        let script: Arc<Script> = Arc::new(Box::new(script));
        let (seen, left, busy) = (requests.clone(), gone.clone(), busy_ns.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (script, seen, left) = (script.clone(), seen.clone(), left.clone());
                let busy = busy.clone();
                std::thread::spawn(move || {
                    let _ = serve(stream, &script, &seen, &left, &busy);
                });
            }
        });
        Self { port, requests, gone, busy_ns }
    }

    /// Base address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Bodies of all chat requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    /// Time from the arrival of each chat request to the end of its answer, in all.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns.load(Ordering::SeqCst))
    }

    /// How many clients went away in the middle of an answer.
    pub fn clients_gone(&self) -> usize {
        self.gone.load(Ordering::SeqCst)
    }
}

/// The last message of a request: its role and text.
pub fn last_message(request: &Value) -> (String, String) {
    let last = request["messages"].as_array().and_then(|m| m.last()).cloned().unwrap_or_default();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&last["role"]), text(&last["content"]))
}

fn serve(
    stream: TcpStream,
    script: &Script,
    seen: &Mutex<Vec<Value>>,
    gone: &AtomicUsize,
    busy_ns: &AtomicU64,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    out.set_nodelay(true)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if let Some(n) = header.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap_or(0);
            }
            if header.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let arrived = Instant::now();
        if !path.ends_with("/chat/completions") {
            let (status, body) = match path.as_str() {
                "/v1/models" => {
                    (200, json!({"object": "list", "data": [{"id": "scripted", "meta": {"n_ctx": 4096}}]}))
                }
                _ => (
                    404,
                    json!({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}),
                ),
            };
            respond(&mut out, status, &body)?;
            continue;
        }
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        seen.lock().unwrap().push(request.clone());
        let reply = script(&request);
        if let Reply::Status(status, body) = &reply {
            respond(&mut out, *status, body)?;
            continue;
        }
        out.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        let done = stream_reply(&mut out, &reply);
        busy_ns.fetch_add(u64::try_from(arrived.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
        if done.is_err() {
            gone.fetch_add(1, Ordering::SeqCst);
        }
        // As real servers do, the connection is kept for the next request.
        if !done? {
            return Ok(());
        }
    }
}

fn respond(out: &mut TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    write!(
        out,
        "HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One chunk of a chunked body.
fn chunk(out: &mut TcpStream, data: &str) -> std::io::Result<()> {
    out.write_all(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes())
}

/// True when the body was written to its end.
fn stream_reply(out: &mut TcpStream, reply: &Reply) -> std::io::Result<bool> {
    let mut delta = |delta: Value, finish: Option<&str>| {
        let event = json!({"id": "x", "object": "chat.completion.chunk", "model": "scripted",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        chunk(out, &format!("data: {event}\n\n"))
    };
    let words = |text: &str| text.split_inclusive(' ').map(str::to_owned).collect::<Vec<_>>();
    delta(json!({"role": "assistant", "content": null}), None)?;
    match reply {
        Reply::Text(text) => {
            for word in words(text) {
                delta(json!({"content": word}), None)?;
            }
            delta(json!({}), Some("stop"))?;
        }
        Reply::Calls(calls) => {
            for (index, (name, arguments)) in calls.iter().enumerate() {
                let function = json!({"name": name, "arguments": arguments.to_string()});
                let call = json!({"index": index, "id": format!("id{index}"), "type": "function", "function": function});
                delta(json!({"tool_calls": [call]}), None)?;
            }
            delta(json!({}), Some("tool_calls"))?;
        }
        Reply::Hang(text) | Reply::Cut(text) => {
            for word in words(text) {
                delta(json!({"content": word}), None)?;
            }
            if matches!(reply, Reply::Cut(_)) {
                return Ok(false);
            }
            // Keeps the connection as a slow server would; ends when the client leaves.
            loop {
                std::thread::sleep(Duration::from_millis(20));
                chunk(out, ":\n\n")?;
            }
        }
        Reply::Status(..) => {}
    }
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    let last = json!({"id": "x", "object": "chat.completion.chunk", "model": "scripted", "choices": [], "usage": usage});
    chunk(out, &format!("data: {last}\n\ndata: [DONE]\n\n"))?;
    out.write_all(b"0\r\n\r\n")?;
    Ok(true)
}
