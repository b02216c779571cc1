//! Server and client over real sockets.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hearth_console::frame::{REQUEST, RESPONSE, encode};
use hearth_console::protocol::FromServer;
use hearth_console::{BindError, Client, ClientError, Listener, Policy, bind, serve};
use hearth_contract::conformance::{AdapterUnderTest, FakeGateway, Peer, Running, Seen, Step, Traits, run};
use hearth_contract::{
    BoxFuture, ChannelEvent, Control, ControlRequest, Gateway, Passphrase, Refusal, RefusalKind,
};
use hearth_scope::Origin;
use hearth_turn::{StreamEvent, TurnOutcome};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const TEXT_MAX: usize = 4_096;

struct EchoControl;

impl Control for EchoControl {
    fn request(&self, origin: &Origin, request: ControlRequest) -> BoxFuture<'_, Result<Value, Refusal>> {
        let origin = origin.clone();
        Box::pin(async move {
            match request {
                ControlRequest::MemoryForget { id } => {
                    Err(Refusal::new(RefusalKind::NotFound, format!("no memory {id}"), "List them."))
                }
                other => Ok(json!({"verb": other.verb(), "origin": origin})),
            }
        })
    }
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A served socket in a folder of its own; everything ends with it.
struct Served {
    folder: TempDir,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

impl Served {
    fn new(gateway: Arc<dyn Gateway>, change: impl FnOnce(&mut Policy)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let mut policy = Policy::for_owner(us());
        policy.text_max = TEXT_MAX;
        change(&mut policy);
        let listener = bind(&socket(&folder), us()).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, gateway, Arc::new(EchoControl), policy, shutdown.clone()));
        Self { folder, shutdown, tasks }
    }

    fn socket(&self) -> PathBuf {
        socket(&self.folder)
    }

    async fn client(&self) -> Client {
        Client::connect(&self.socket(), "test 1").await.unwrap()
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("run/console.sock")
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

struct Console;

struct ConsolePeer {
    client: Client,
    ids: HashMap<String, u64>,
    socket: PathBuf,
}

impl AdapterUnderTest for Console {
    fn traits(&self) -> Traits {
        let whole = |json: &str| [&(json.len() as u32).to_be_bytes(), json.as_bytes()].concat();
        let hostile = [
            ("length lie", [&[0, 0, 1, 0], &b"{}"[..]].concat()),
            ("zero length", vec![0; 8]),
            ("huge", vec![0xff; 4_096]),
            ("HTTP", b"POST /ask HTTP/1.1\r\n\r\n".to_vec()),
            ("garbage", (0..=255).collect()),
            ("deep", whole(&"[".repeat(50_000))),
            ("not UTF-8", [&[0, 0, 0, 2], &b"\xc3\x28"[..]].concat()),
            ("unknown type", whole(r#"{"type":"exec"}"#)),
            (
                "claims an origin",
                whole(
                    r#"{"type":"ask","id":1,"conversation":"d","text":"t","external_id":"e","origin":{"kind":"internal"}}"#,
                ),
            ),
        ];
        Traits {
            channel: "console".to_owned(),
            text_max: TEXT_MAX,
            streams: true,
            cancels_on_disconnect: true,
            hostile: hostile.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
        }
    }

    fn start(&self, gateway: Arc<dyn Gateway>) -> BoxFuture<'_, Result<Box<dyn Running>, String>> {
        Box::pin(async {
            let served: Box<dyn Running> = Box::new(Served::new(gateway, |_| ()));
            Ok(served)
        })
    }
}

impl Running for Served {
    fn peer(&self) -> BoxFuture<'_, Result<Box<dyn Peer>, String>> {
        Box::pin(async {
            // A peer that left may still be counted for a moment.
            let client = loop {
                match Client::connect(&self.socket(), "peer").await {
                    Err(ClientError::Refused(r)) if r.kind == RefusalKind::Busy => {
                        tokio::task::yield_now().await;
                    }
                    other => break other.map_err(|e| e.to_string())?,
                }
            };
            let peer: Box<dyn Peer> =
                Box::new(ConsolePeer { client, ids: HashMap::new(), socket: self.socket() });
            Ok(peer)
        })
    }
}

impl Peer for ConsolePeer {
    fn send<'a>(&'a mut self, external_id: &'a str, text: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let id = self.client.start_ask("default", text, external_id).await.map_err(|e| e.to_string())?;
            self.ids.insert(external_id.to_owned(), id);
            Ok(())
        })
    }

    fn cancel<'a>(&'a mut self, external_id: &'a str) -> BoxFuture<'a, Result<(), String>> {
        let id = self.ids[external_id];
        Box::pin(async move { self.client.cancel(id).await.map_err(|e| e.to_string()) })
    }

    fn raw<'a>(&'a mut self, bytes: &'a [u8]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // Once before the greeting and once after it.
            for greet in [false, true] {
                let mut stream = loop {
                    let mut stream = UnixStream::connect(&self.socket).await.unwrap();
                    if !greet {
                        break stream;
                    }
                    let hello = json!({"type": "hello", "protocol": 1, "client": "hostile"});
                    let _ = stream.write_all(&encode(&hello, REQUEST.bytes).unwrap()).await;
                    let mut answer = [0; 200];
                    let length = stream.read(&mut answer).await.unwrap_or(0);
                    if answer[..length].windows(7).any(|w| w == b"\"hello\"") {
                        break stream;
                    }
                };
                let _ = stream.write_all(bytes).await;
                let _ = stream.shutdown().await;
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer).await;
            }
        })
    }

    fn next<'a>(&'a mut self, external_id: &'a str) -> BoxFuture<'a, Option<Seen>> {
        let id = self.ids[external_id];
        Box::pin(async move {
            Some(match self.client.next_event(id).await {
                Ok(ChannelEvent::Accepted { .. }) => Seen::Accepted,
                Ok(ChannelEvent::Stream(StreamEvent::Text { text })) => Seen::Text(text),
                Ok(ChannelEvent::Stream(_)) => Seen::Other,
                Ok(ChannelEvent::Postponed) => Seen::Postponed,
                Ok(ChannelEvent::Finished(outcome)) => Seen::Finished(outcome),
                Err(ClientError::Refused(r)) => Seen::Refused(r.kind, format!("{} {}", r.what, r.remedy)),
                Err(_) => return None,
            })
        })
    }

    fn leftover(&mut self, external_id: &str) -> Vec<Seen> {
        let kept = self.client.has_kept(self.ids[external_id]);
        kept.then_some(Seen::Other).into_iter().collect()
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { drop(self) })
    }
}

#[tokio::test]
async fn the_console_conforms() {
    let report = run(&Console).await;
    report.assert_passed();
    println!("{report}");
}

#[tokio::test]
async fn a_turn_and_a_control_request() {
    let gateway = FakeGateway::new();
    let served = Served::new(Arc::new(gateway.clone()), |_| ());
    let mut client = served.client().await;
    assert_eq!((client.protocol(), client.server()), (1, "hearth 0.1.0"));
    let mut answer = client.ask("default", "hello", "01J").await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = answer.next().await.unwrap() {
        events.push(event);
    }
    assert_eq!(answer.next().await.unwrap(), None);
    assert!(matches!(&events[0], ChannelEvent::Accepted { duplicate: false, .. }));
    assert_eq!(events[1], ChannelEvent::Stream(StreamEvent::Text { text: "echo: hello".into() }));
    assert!(matches!(&events[2], ChannelEvent::Finished(TurnOutcome::Completed { .. })));
    assert_eq!(events.len(), 3);

    let value = client.control(ControlRequest::Status {}).await.unwrap();
    assert_eq!(value, json!({"verb": "status", "origin": {"kind": "console", "uid": us()}}));
    let unlock = ControlRequest::Unlock { passphrase: Passphrase::new("correct horse".into()) };
    assert_eq!(client.control(unlock).await.unwrap()["verb"], "unlock");
    let error = client.control(ControlRequest::MemoryForget { id: "7".into() }).await.unwrap_err();
    assert_eq!((error.to_string(), error.remedy()), ("no memory 7".into(), "List them.".into()));
    assert_eq!(gateway.inbound()[0].origin, Origin::Console { uid: us() });
    served.stop().await;
}

/// Frames that belong to another request are kept for whoever asks for them.
#[tokio::test]
async fn two_turns_on_one_connection() {
    let gateway = FakeGateway::new();
    gateway.on(
        "slow",
        [Step::Text("a".into()), Step::AwaitGate, Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 })],
    );
    let served = Served::new(Arc::new(gateway.clone()), |_| ());
    let mut client = served.client().await;
    let slow = client.start_ask("one", "slow", "1").await.unwrap();
    let quick = client.start_ask("two", "quick", "2").await.unwrap();
    while !matches!(client.next_event(quick).await.unwrap(), ChannelEvent::Finished(_)) {}
    assert_eq!(client.control(ControlRequest::Status {}).await.unwrap()["verb"], "status");
    gateway.open_gate();
    assert!(matches!(client.next_event(slow).await.unwrap(), ChannelEvent::Accepted { .. }));
    let text = StreamEvent::Text { text: "a".into() };
    assert_eq!(client.next_event(slow).await.unwrap(), ChannelEvent::Stream(text));
    assert!(matches!(client.next_event(slow).await.unwrap(), ChannelEvent::Finished(_)));
}

/// Ctrl-C in `select!`: the pending read is dropped, and nothing is lost by it.
#[tokio::test]
async fn cancel_while_waiting_for_events() {
    let gateway = FakeGateway::new();
    gateway.on("long", [Step::AwaitCancel, Step::Finish(TurnOutcome::Cancelled { tool_calls: 1 })]);
    let served = Served::new(Arc::new(gateway.clone()), |_| ());
    let mut client = served.client().await;
    let mut answer = client.ask("default", "long", "1").await.unwrap();
    let mut ctrl_c = Box::pin(gateway.wait(|c| c.started == 1));
    let (mut pressed, mut outcome) = (false, None);
    while outcome.is_none() {
        tokio::select! {
            event = answer.next() => if let Some(ChannelEvent::Finished(o)) = event.unwrap() { outcome = Some(o) },
            _ = &mut ctrl_c, if !pressed => {
                pressed = true;
                answer.cancel().await.unwrap();
            }
        }
    }
    assert_eq!(outcome, Some(TurnOutcome::Cancelled { tool_calls: 1 }));
}

#[tokio::test]
async fn a_turn_may_outlive_its_console_where_the_policy_says_so() {
    let gateway = FakeGateway::new();
    gateway.on("long", [Step::AwaitGate, Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 })]);
    let served = Served::new(Arc::new(gateway.clone()), |p| p.cancel_on_disconnect = false);
    let mut client = served.client().await;
    client.start_ask("default", "long", "1").await.unwrap();
    gateway.wait(|c| c.started == 1).await;
    drop(client);
    // The connection is gone when its place is free again; the turn is not cancelled.
    gateway.open_gate();
    assert_eq!(gateway.wait(|c| c.ended == 1).await.cancelled, 0);
    // The same message again asks for the outcome of the same turn.
    let mut client = served.client().await;
    let id = client.start_ask("default", "long", "1").await.unwrap();
    let accepted = client.next_event(id).await.unwrap();
    assert!(matches!(accepted, ChannelEvent::Accepted { duplicate: true, .. }));
    assert!(matches!(client.next_event(id).await.unwrap(), ChannelEvent::Finished(_)));
    assert_eq!(gateway.counts().started, 1);
}

#[tokio::test]
async fn one_user_cannot_take_all_connections() {
    let served = Served::new(Arc::new(FakeGateway::new()), |p| p.connections_per_uid = 2);
    let (first, _second) = (served.client().await, served.client().await);
    let refused = Client::connect(&served.socket(), "third").await.err().unwrap();
    assert!(matches!(&refused, ClientError::Refused(r) if r.kind == RefusalKind::Busy), "{refused:?}");
    drop(first);
    while Client::connect(&served.socket(), "third").await.is_err() {}
}

/// The mode of the file is not what keeps strangers out: on a socket that
/// everybody may open, the peer's user id decides. As root, threads connect as
/// other users; otherwise we are the stranger ourselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_turned_away_before_a_byte_is_read() {
    const OWNER: u32 = 4_001;
    const DAEMON: u32 = 4_003;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("open.sock");
    let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let (gateway, shutdown) = (FakeGateway::new(), CancellationToken::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(
        Listener::from_std(socket).unwrap(),
        Arc::new(gateway.clone()),
        Arc::new(EchoControl),
        Policy { daemon_uid: DAEMON, ..Policy::for_owner(OWNER) },
        shutdown.clone(),
    ));
    let connect_as = async |uid: u32| {
        let path = path.clone();
        let thread = std::thread::spawn(move || {
            if uid != us() {
                let uid = rustix::process::Uid::from_raw(uid);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(Client::connect(&path, "x")).map(|_| ())
        });
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
    };
    let table = match us() {
        0 => vec![(0, true), (OWNER, true), (4_002, false), (DAEMON, false), (65_534, false)],
        uid => vec![(uid, false)],
    };
    for (uid, admitted) in table {
        match connect_as(uid).await {
            Ok(()) => assert!(admitted, "{uid} was let in"),
            Err(ClientError::PermissionDenied(words)) => {
                assert!(!admitted && words.contains(&format!("user id {uid}")), "{uid}: {words}");
            }
            Err(other) => panic!("{uid}: {other:?}"),
        }
    }
    shutdown.cancel();
    while tasks.join_next().await.is_some() {}
    // A socket that somebody else made is not ours to remove.
    assert!(path.exists());
}

#[tokio::test]
async fn clients_are_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("console.sock");
    let check = async |kind: &str, hint: &str| {
        let error = Client::connect(&path, "test").await.err().unwrap();
        let words = format!("{error}. {}", error.remedy());
        assert!(words.contains(hint) && format!("{error:?}").starts_with(kind), "{error:?}: {words}");
    };
    check("NotRunning", "hearth serve").await;
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    drop(listener);
    check("NotRunning", "hearth serve").await;

    // Daemons that behave badly in one way each.
    std::fs::remove_file(&path).unwrap();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let refusal = |kind| {
        let refusal = Refusal::new(kind, "the daemon speaks console protocol 9", "Update.");
        encode(&FromServer::Refused { id: None, refusal }, RESPONSE.bytes).unwrap()
    };
    let hello =
        |protocol| encode(&FromServer::Hello { protocol, server: "x".into() }, RESPONSE.bytes).unwrap();
    let table = [
        (refusal(RefusalKind::Unsupported), "Protocol", "protocol 9. Update."),
        (refusal(RefusalKind::NotPermitted), "PermissionDenied", "owner's account"),
        (hello(9), "Malformed", "not a known message"),
        (vec![0, 0, 0, 9, b'{'], "Malformed", "inside of a frame"),
        (vec![0xff; 8], "Malformed", "frame of 4294967295 bytes"),
        (vec![], "Closed", "closed the connection"),
    ];
    for (bytes, kind, hint) in table {
        let daemon = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // Closing with the greeting unread would look like a broken connection.
            assert!(stream.read(&mut [0; 200]).await.unwrap() > 0);
            stream.write_all(&bytes).await.unwrap();
            drop(stream);
        };
        tokio::join!(daemon, check(kind, hint));
    }
}

#[tokio::test]
async fn the_socket_is_closed_to_others_and_goes_away() {
    let served = Served::new(Arc::new(FakeGateway::new()), |_| ());
    let path = served.socket();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    let names = || {
        let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), [".console.sock.lock", "console.sock"]);
    // A second daemon is told, and does no harm.
    assert!(matches!(bind(&path, us()), Err(BindError::InUse(_))));
    served.client().await;
    let folder = served.folder.path().to_owned();
    let Served { folder: kept, shutdown, mut tasks } = served;
    shutdown.cancel();
    while tasks.join_next().await.is_some() {}
    assert_eq!(names(), [".console.sock.lock"]);
    assert_eq!(kept.path(), folder);
}

#[tokio::test]
async fn bind_replaces_the_dead_and_refuses_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name);
    let refused = |path: &Path, hint: &str| {
        let error = bind(path, us()).expect_err(hint);
        let words = format!("{error}. {}", error.remedy());
        assert!(words.contains(hint), "{words}");
    };
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();

    // Left by a dead daemon, and by one that died between bind and rename.
    drop(std::os::unix::net::UnixListener::bind(inside("dead")).unwrap());
    drop(std::os::unix::net::UnixListener::bind(inside(".dead.new")).unwrap());
    let listener = bind(&inside("dead"), us()).unwrap();
    assert!(std::os::unix::net::UnixStream::connect(inside("dead")).is_ok());
    // What somebody put in its place is not removed with it.
    std::fs::remove_file(inside("dead")).unwrap();
    std::fs::write(inside("dead"), "mine").unwrap();
    drop(listener);
    assert_eq!(std::fs::read(inside("dead")).unwrap(), b"mine");

    let _alive = std::os::unix::net::UnixListener::bind(inside("alive")).unwrap();
    refused(&inside("alive"), "another daemon");
    refused(&inside("dead"), "not a socket");
    std::os::unix::fs::symlink(inside("alive"), inside("link")).unwrap();
    refused(&inside("link"), "not a socket");
    refused(&inside(&"x".repeat(120)), "shorter");
    refused(Path::new("console.sock"), "absolute");
    refused(Path::new("/"), "absolute");
    for open in [0o755, 0o770, 0o701, 0o1777] {
        std::fs::set_permissions(folder.path(), Permissions::from_mode(open)).unwrap();
        refused(&inside("new"), "chmod 700");
        assert_eq!(mode(folder.path()), open, "a folder that is not ours to close stays as it is");
    }
}
