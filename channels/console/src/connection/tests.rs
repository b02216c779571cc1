//! One connection over an in-memory stream, in virtual time.

use hearth_contract::conformance::{FakeGateway, Step};
use hearth_contract::{BoxFuture, ControlRequest};
use hearth_turn::StreamEvent;
use serde_json::{Value, json};
use tokio::io::DuplexStream;

use super::*;
use crate::frame::HEADER;

/// Answers `status`, and nothing else ever.
struct FakeControl;

impl Control for FakeControl {
    fn request(&self, _: &Origin, request: ControlRequest) -> BoxFuture<'_, Result<Value, Refusal>> {
        Box::pin(async move {
            match request {
                ControlRequest::Status {} => Ok(json!({"state": "ready"})),
                ControlRequest::ConfigShow {} => Ok(json!("x".repeat(17 << 20))),
                _ => std::future::pending().await,
            }
        })
    }
}

struct Stage {
    gateway: FakeGateway,
    shutdown: CancellationToken,
    stream: DuplexStream,
    decoder: Decoder,
    server: JoinSet<()>,
}

impl Stage {
    fn new(room: usize) -> Self {
        let (gateway, shutdown) = (FakeGateway::new(), CancellationToken::new());
        let shared = Arc::new(Shared {
            gateway: Arc::new(gateway.clone()),
            control: Arc::new(FakeControl),
            policy: Policy::for_owner(1000),
            shutdown: shutdown.clone(),
        });
        let (stream, far) = tokio::io::duplex(room);
        let mut server = JoinSet::new();
        server.spawn(run(far, 1000, Origin::Console { uid: 1000 }, shared));
        Self { gateway, shutdown, stream, decoder: Decoder::new(RESPONSE.bytes), server }
    }

    async fn greeted(room: usize) -> Self {
        let mut stage = Self::new(room);
        stage.send(json!({"type": "hello", "protocol": 1, "client": "test"})).await;
        assert!(matches!(stage.next().await, Some(FromServer::Hello { protocol: 1, .. })));
        stage
    }

    async fn send(&mut self, message: Value) {
        self.stream.write_all(&encode(&message, REQUEST.bytes).unwrap()).await.unwrap();
    }

    async fn ask(&mut self, id: u64, text: &str) {
        let external_id = format!("e{id}");
        self.send(
            json!({"type": "ask", "id": id, "conversation": "d", "text": text, "external_id": external_id}),
        )
        .await;
    }

    /// The next frame, or nothing at the end.
    async fn next(&mut self) -> Option<FromServer> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(parse(frame, RESPONSE).unwrap());
            }
            let mut chunk = vec![0; 1 << 16];
            match self.stream.read(&mut chunk).await.unwrap() {
                0 => return None,
                length => self.decoder.push(&chunk[..length]),
            }
        }
    }

    /// A refusal of the connection and then its end.
    async fn closed(&mut self) -> Option<RefusalKind> {
        let Some(FromServer::Refused { id: None, refusal }) = self.next().await else { return None };
        assert!(!refusal.what.is_empty() && !refusal.remedy.is_empty());
        assert_eq!(self.next().await, None);
        while let Some(ended) = self.server.join_next().await {
            ended.unwrap();
        }
        Some(refusal.kind)
    }
}

fn raw(length: u32, json: &[u8]) -> Vec<u8> {
    [&length.to_be_bytes()[..HEADER], json].concat()
}

#[tokio::test(start_paused = true)]
async fn hostile_frames_are_answered_and_closed() {
    use RefusalKind::{Malformed, TimedOut, TooLarge, Unsupported};
    let whole = |json: &str| raw(json.len() as u32, json.as_bytes());
    let hello = |fields: &str| whole(&format!("{{\"type\":\"hello\"{fields},\"client\":\"t\"}}"));
    let greeting = hello(",\"protocol\":1");
    let greeted = |bytes: Vec<u8>| [greeting.clone(), bytes].concat();
    let ask = whole(r#"{"type":"ask","id":1,"conversation":"d","text":"t","external_id":"e"}"#);
    let table = [
        ("silence", vec![], TimedOut),
        ("half a header", vec![0, 0], TimedOut),
        ("length says more", raw(900, b"{}"), TimedOut),
        ("zero length", raw(0, b""), Malformed),
        ("1 MiB and one", raw((1 << 20) + 1, b"{}"), TooLarge),
        ("16 MiB and one", raw((16 << 20) + 1, b"{}"), TooLarge),
        ("all ones", vec![0xff; 64], TooLarge),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: hearth.local\r\n\r\n".to_vec(), TooLarge),
        ("not JSON", whole("hello"), Malformed),
        ("not UTF-8", raw(3, b"\"\xff\""), Malformed),
        ("deep", whole(&"[".repeat(100_000)), Malformed),
        ("wide", whole(&format!("[{}1]", "1,".repeat(20_000))), Malformed),
        ("no hello", ask, Malformed),
        ("hello without version", hello(""), Malformed),
        ("version 0", hello(",\"protocol\":0"), Unsupported),
        ("version 2 only", hello(",\"protocol\":2,\"oldest\":2"), Unsupported),
        ("negative version", hello(",\"protocol\":-1"), Malformed),
        ("two hellos", greeted(greeting.clone()), Malformed),
        ("unknown type", greeted(whole(r#"{"type":"shell","id":1}"#)), Malformed),
        ("unknown verb", greeted(whole(r#"{"type":"control","id":1,"request":{"verb":"rm"}}"#)), Malformed),
        ("surplus field", greeted(whole(r#"{"type":"cancel","id":1,"uid":0}"#)), Malformed),
        ("answer as request", greeted(whole(r#"{"type":"result","id":1,"value":1}"#)), Malformed),
        ("broken off", greeted(raw(50, b"{\"type\":")), TimedOut),
    ];
    for (name, bytes, kind) in table {
        let mut stage = Stage::new(1 << 18);
        stage.stream.write_all(&bytes).await.unwrap();
        let mut closed = stage.next().await;
        if matches!(closed, Some(FromServer::Hello { .. })) {
            closed = stage.next().await;
        }
        match closed {
            Some(FromServer::Refused { id: None, refusal }) => assert_eq!(refusal.kind, kind, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(stage.next().await, None, "{name}");
        assert_eq!(stage.gateway.counts().submitted, 0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_frame_must_arrive_within_its_time() {
    let mut stage = Stage::greeted(1 << 16).await;
    let frame = encode(&json!({"type": "control", "id": 1, "request": {"verb": "status"}}), 1000).unwrap();
    let start = Instant::now();
    for byte in frame {
        if stage.stream.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(stage.closed().await, Some(RefusalKind::TimedOut));
    assert!(start.elapsed() >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn idle_time_counts_only_when_nothing_is_under_way() {
    let mut stage = Stage::greeted(1 << 16).await;
    let start = Instant::now();
    stage.gateway.on("long", [Step::AwaitCancel, Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 })]);
    stage.ask(1, "long").await;
    assert!(matches!(stage.next().await, Some(FromServer::Accepted { id: 1, .. })));
    // Far beyond the idle limit, the turn still runs and can be cancelled.
    tokio::time::advance(Duration::from_secs(6_000)).await;
    stage.send(json!({"type": "cancel", "id": 1})).await;
    assert!(matches!(stage.next().await, Some(FromServer::Finished { id: 1, .. })));
    assert_eq!(stage.closed().await, Some(RefusalKind::TimedOut));
    assert_eq!(start.elapsed().as_secs(), 6_600);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_dropped_and_its_turn_cancelled() {
    let mut stage = Stage::greeted(512).await;
    let mut steps = vec![Step::Text("x".repeat(2_000)); 100];
    steps.push(Step::AwaitCancel);
    stage.gateway.on("much", steps);
    stage.ask(1, "much").await;
    let counts = stage.gateway.wait(|c| c.ended == 1).await;
    assert_eq!(counts.cancelled, 1);
    while stage.server.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn control_requests_are_answered_limited_and_bounded() {
    let mut stage = Stage::greeted(1 << 16).await;
    stage.send(json!({"type": "control", "id": 1, "request": {"verb": "status"}})).await;
    let value = json!({"state": "ready"});
    assert_eq!(stage.next().await, Some(FromServer::Result { id: 1, value }));
    let mut refused = async |request: Value| {
        stage.send(json!({"type": "control", "id": 2, "request": request})).await;
        match stage.next().await {
            Some(FromServer::Refused { id: Some(2), refusal }) => refusal.kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(json!({"verb": "audit_tail", "count": 0})).await, RefusalKind::TooLarge);
    assert_eq!(refused(json!({"verb": "memory_show", "id": ""})).await, RefusalKind::Malformed);
    assert_eq!(refused(json!({"verb": "doctor"})).await, RefusalKind::TimedOut);
    // An answer above the absolute limit becomes a refusal; the connection lives.
    assert_eq!(refused(json!({"verb": "config_show"})).await, RefusalKind::TooLarge);
    assert_eq!(refused(json!({"verb": "memory_show", "id": ""})).await, RefusalKind::Malformed);
}

#[tokio::test(start_paused = true)]
async fn requests_on_one_connection_are_limited() {
    let mut stage = Stage::greeted(1 << 16).await;
    stage.gateway.on("wait", [Step::AwaitGate, Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 })]);
    for id in 1..=8 {
        stage.ask(id, "wait").await;
        assert!(matches!(stage.next().await, Some(FromServer::Accepted { .. })));
    }
    stage.ask(9, "wait").await;
    match stage.next().await {
        Some(FromServer::Refused { id: Some(9), refusal }) => assert_eq!(refusal.kind, RefusalKind::Busy),
        other => panic!("{other:?}"),
    }
    // A number in use would mix two answers up.
    stage.ask(8, "other").await;
    assert_eq!(stage.closed().await, Some(RefusalKind::Malformed));
}

#[tokio::test(start_paused = true)]
async fn a_stopping_daemon_lets_turns_end_and_takes_no_more() {
    let mut stage = Stage::greeted(1 << 16).await;
    let finish = Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 });
    stage.gateway.on("short", [Step::AwaitGate, Step::Text("end".into()), finish]);
    stage.ask(1, "short").await;
    assert!(matches!(stage.next().await, Some(FromServer::Accepted { .. })));
    stage.shutdown.cancel();
    stage.ask(2, "more").await;
    match stage.next().await {
        Some(FromServer::Refused { id: Some(2), refusal }) => {
            assert_eq!(refusal.kind, RefusalKind::ShuttingDown)
        }
        other => panic!("{other:?}"),
    }
    stage.gateway.open_gate();
    let text = StreamEvent::Text { text: "end".into() };
    assert_eq!(stage.next().await, Some(FromServer::Event { id: 1, event: text }));
    assert!(matches!(stage.next().await, Some(FromServer::Finished { id: 1, .. })));
    assert_eq!(stage.closed().await, Some(RefusalKind::ShuttingDown));
}

#[tokio::test(start_paused = true)]
async fn a_stopping_daemon_does_not_wait_for_ever() {
    let mut stage = Stage::greeted(1 << 16).await;
    stage.gateway.on("stuck", [Step::AwaitCancel]);
    stage.ask(1, "stuck").await;
    assert!(matches!(stage.next().await, Some(FromServer::Accepted { .. })));
    let start = Instant::now();
    stage.shutdown.cancel();
    assert_eq!(stage.closed().await, Some(RefusalKind::ShuttingDown));
    assert_eq!(start.elapsed().as_secs(), 5);
    stage.gateway.wait(|c| c.cancelled == 1).await;
}
