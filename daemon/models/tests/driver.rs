//! Time, choice of servers and cancellation. The clock is virtual and the
//! transport is in memory, apart from the tests about real connections.

#![allow(clippy::unwrap_used)]

mod replay;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream;
use hearth_egress::{Body, Bytes, EgressError, Phase, Response, SecretValue, Url};
use hearth_models::{ChatOptions, HttpRequest, Models, Place, Provider, Transport, Wire};
use hearth_turn::{ModelEvent, ModelFailure, StopReason};
use replay::{Told, capture, drain, read_request, request, told};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const LINE: &str = "{\"model\":\"m\",\"message\":{\"content\":\"hi\"},\"done\":false}\n";
const DONE: &str =
    "{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";

/// Status and headers.
type Head = (u16, Vec<(&'static str, &'static str)>);

/// One answer: a pause, then a failure or a head, then pieces with pauses.
#[derive(Clone)]
struct Play {
    pause: u64,
    head: Result<Head, EgressError>,
    pieces: Vec<(u64, Result<&'static str, EgressError>)>,
}

fn says(pieces: &[(u64, &'static str)]) -> Play {
    Play { pause: 0, head: Ok((200, vec![])), pieces: pieces.iter().map(|(t, p)| (*t, Ok(*p))).collect() }
}

fn status(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Play {
    Play { pause: 0, head: Ok((status, headers.to_vec())), pieces: vec![(0, Ok(body))] }
}

fn refuses() -> Play {
    let error = EgressError::Connect { peer: "pi:1".into(), reason: "Connection refused".into() };
    Play { pause: 0, head: Err(error), pieces: vec![] }
}

fn fine() -> Play {
    says(&[(0, LINE), (0, DONE)])
}

/// A scripted server; the last answer is given for ever.
#[derive(Clone)]
struct Script(Arc<Mutex<(VecDeque<Play>, Vec<Instant>)>>);

impl Script {
    fn new(plays: impl IntoIterator<Item = Play>) -> Self {
        Self(Arc::new(Mutex::new((plays.into_iter().collect(), vec![]))))
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().1.len()
    }

    fn gaps(&self) -> Vec<u64> {
        self.0.lock().unwrap().1.windows(2).map(|w| (w[1] - w[0]).as_secs()).collect()
    }
}

impl Transport for Script {
    fn send(&self, _: HttpRequest) -> BoxFuture<'_, Result<Response, EgressError>> {
        let play = {
            let mut inner = self.0.lock().unwrap();
            inner.1.push(Instant::now());
            if inner.0.len() > 1 { inner.0.pop_front().unwrap() } else { inner.0[0].clone() }
        };
        Box::pin(async move {
            sleep(Duration::from_secs(play.pause)).await;
            let (status, headers) = play.head?;
            let body = stream::unfold(VecDeque::from(play.pieces), |mut pieces| async move {
                let (pause, piece) = pieces.pop_front()?;
                sleep(Duration::from_secs(pause)).await;
                Some((piece.map(|p| Bytes::from_static(p.as_bytes())), pieces))
            });
            let headers = headers.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
            Ok(Response { status, headers, body: Body::new(body) })
        })
    }
}

fn at(place: Place) -> Provider {
    let url = match place {
        Place::Local => "http://127.0.0.1:11434",
        Place::Remote => "https://models.example.com",
    };
    Provider::new("test", Wire::Ollama, Url::parse(url).unwrap(), "m")
}

fn models(servers: &[(Place, &Script)]) -> Models {
    let transport = |s: &Script| Arc::new(s.clone()) as Arc<dyn Transport>;
    Models::with_transports(servers.iter().map(|(p, s)| (at(*p), transport(s))).collect())
}

const ANYWHERE: ChatOptions = ChatOptions { local_only: false };

async fn chat(models: &Models, options: ChatOptions) -> Told {
    told(drain(models.chat(request(), options, CancellationToken::new())).await)
}

async fn one(place: Place, plays: Vec<Play>) -> (Told, Script, u64) {
    let script = Script::new(plays);
    let start = Instant::now();
    let told = chat(&models(&[(place, &script)]), ANYWHERE).await;
    (told, script, start.elapsed().as_secs())
}

fn failure(told: &Told) -> &ModelFailure {
    match &told.end {
        Some(ModelEvent::Failed(f)) => f,
        other => panic!("{other:?}"),
    }
}

fn finished(told: &Told) -> bool {
    matches!(told.end, Some(ModelEvent::Finished { reason: StopReason::Done, .. }))
}

#[tokio::test(start_paused = true)]
async fn statement_29_nothing_is_sent_until_the_first_token() {
    let (told, _, took) = one(Place::Local, vec![Play { pause: 90, ..fine() }]).await;
    assert_eq!((told.text.as_str(), told.waiting, took), ("hi", 17, 90));
    assert!(finished(&told));
}

#[tokio::test(start_paused = true)]
async fn time_outs_by_phase() {
    let slow_head = |s| Play { pause: s, ..fine() };
    let slow_body = |a, b| says(&[(a, LINE), (b, DONE)]);
    let table: Vec<(Place, Play, Option<&str>, u64)> = vec![
        (Place::Local, slow_head(299), None, 299),
        (Place::Local, slow_head(301), Some("no token within 300 s"), 300),
        (Place::Remote, slow_head(59), None, 59),
        (Place::Remote, slow_head(61), Some("no token within 60 s"), 60),
        (Place::Local, slow_body(299, 0), None, 299),
        (Place::Local, slow_body(301, 0), Some("no token within 300 s"), 300),
        (Place::Local, slow_body(0, 59), None, 59),
        (Place::Local, slow_body(0, 61), Some("silent for 60 s"), 60),
        // A sign of life starts the wait anew.
        (Place::Local, says(&[(200, "\n"), (200, LINE), (0, DONE)]), None, 400),
    ];
    for (i, (place, play, error, seconds)) in table.into_iter().enumerate() {
        let (told, _, took) = one(place, vec![play]).await;
        match error {
            None => assert!(finished(&told), "row {i}: {told:?}"),
            Some(text) => assert_eq!(*failure(&told), ModelFailure::TimedOut(text.into()), "row {i}"),
        }
        assert_eq!(took, seconds, "row {i}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loading_model_is_asked_again_within_the_first_token_time() {
    const LOADING: &str = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
    let mut plays = vec![status(503, &[], LOADING); 20];
    plays.push(fine());
    let (told, script, took) = one(Place::Local, plays).await;
    assert!(finished(&told) && told.waiting >= 20);
    assert_eq!(script.asked(), 21);
    assert!(took < 100, "{took}");

    let (told, script, took) = one(Place::Local, vec![status(503, &[], LOADING)]).await;
    assert!(matches!(failure(&told), ModelFailure::Busy { .. }));
    assert!((290..=300).contains(&took) && script.asked() < 80, "{took} s, {} requests", script.asked());
}

#[tokio::test(start_paused = true)]
async fn busy_servers_are_asked_twice_more_and_not_before_they_like() {
    let busy = r#"{"error":{"message":"Rate limit","code":"rate_limit_exceeded"}}"#;
    let (told, script, _) = one(Place::Remote, vec![status(429, &[("retry-after", "7")], busy)]).await;
    assert!(matches!(failure(&told), ModelFailure::Busy { retry_after_s: Some(7), .. }));
    let gaps = script.gaps();
    assert!(gaps.len() == 2 && gaps.iter().all(|g| (8..=10).contains(g)), "{gaps:?}");

    let (told, script, _) = one(Place::Remote, vec![status(429, &[("retry-after", "3600")], busy)]).await;
    assert!(matches!(failure(&told), ModelFailure::Busy { retry_after_s: Some(3600), .. }));
    assert_eq!(script.asked(), 1);

    let (told, script, _) = one(Place::Remote, vec![status(529, &[], "{}"), fine()]).await;
    assert!(finished(&told) && script.asked() == 2);
}

#[tokio::test(start_paused = true)]
async fn refusals_that_stay_are_not_retried_and_not_passed_on() {
    let table: &[(u16, &str)] = &[
        (429, r#"{"error":{"message":"no","type":"insufficient_quota","code":"insufficient_quota"}}"#),
        (401, r#"{"error":{"message":"no","code":401}}"#),
        (400, r#"{"error":"bad"}"#),
        (404, r#"{"error":"model 'm' not found"}"#),
        (400, r#"{"error":"registry.ollama.ai/library/m does not support tools"}"#),
        (302, ""),
    ];
    for (code, body) in table {
        let (first, second) = (Script::new([status(*code, &[], body)]), Script::new([fine()]));
        let told = chat(&models(&[(Place::Local, &first), (Place::Remote, &second)]), ANYWHERE).await;
        failure(&told);
        assert_eq!((first.asked(), second.asked()), (1, 0), "{code} {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_server_is_asked_only_before_any_text() {
    let broken = EgressError::Broken("reset".into());
    let cut = |before: &[(u64, &'static str)]| {
        let mut play = says(before);
        play.pieces.push((0, Err(broken.clone())));
        play
    };
    let late = EgressError::TimedOut { phase: Phase::Connect, limit: Duration::from_secs(10) };
    let table = vec![
        (refuses(), true),
        (Play { pause: 10, head: Err(late), pieces: vec![] }, true),
        (Play { pause: 400, ..fine() }, true),
        (status(429, &[], "{}"), true),
        (status(500, &[], "{}"), true),
        (status(503, &[], r#"{"error":"server busy"}"#), true),
        (cut(&[]), true),
        (says(&[(0, "{\"error\":\"runner died\"}\n")]), true),
        (cut(&[(0, LINE)]), false),
        (says(&[(0, LINE), (0, "{\"error\":\"runner died\"}\n")]), false),
        (says(&[(0, LINE), (70, DONE)]), false),
    ];
    for (i, (play, falls)) in table.into_iter().enumerate() {
        let (first, second) = (Script::new([play]), Script::new([fine()]));
        let told = chat(&models(&[(Place::Local, &first), (Place::Remote, &second)]), ANYWHERE).await;
        assert_eq!((first.asked(), second.asked()), (1, usize::from(falls)), "row {i}");
        assert_eq!(finished(&told), falls, "row {i}");
        assert_eq!(told.text, "hi", "row {i}");
    }
}

#[tokio::test(start_paused = true)]
async fn local_conversations_never_leave_the_household() {
    let (local, remote) = (Script::new([refuses()]), Script::new([fine()]));
    let both = models(&[(Place::Local, &local), (Place::Remote, &remote)]);
    for _ in 0..10 {
        assert!(matches!(failure(&chat(&both, ChatOptions::default()).await), ModelFailure::Unreachable(_)));
    }
    let told = chat(&models(&[(Place::Remote, &remote)]), ChatOptions::default()).await;
    assert!(matches!(failure(&told), ModelFailure::Rejected(why) if why.contains("in the home")));
    assert_eq!(remote.asked(), 0);
    failure(&chat(&models(&[]), ANYWHERE).await);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_rests_the_server_and_tries_it_again() {
    let down = vec![refuses(); 4];
    let (local, remote) = (Script::new(down.into_iter().chain([fine()])), Script::new([fine()]));
    let both = models(&[(Place::Local, &local), (Place::Remote, &remote)]);
    for _ in 0..6 {
        assert!(finished(&chat(&both, ANYWHERE).await));
    }
    // Three failures, then it rests.
    assert_eq!((local.asked(), remote.asked()), (3, 6));
    sleep(Duration::from_secs(16)).await;
    chat(&both, ANYWHERE).await;
    chat(&both, ANYWHERE).await;
    // One probe, which failed: twice the rest.
    assert_eq!((local.asked(), remote.asked()), (4, 8));
    sleep(Duration::from_secs(31)).await;
    for _ in 0..3 {
        chat(&both, ANYWHERE).await;
    }
    // Back, and first again.
    assert_eq!((local.asked(), remote.asked()), (7, 8));
}

#[tokio::test(start_paused = true)]
async fn the_only_server_is_asked_even_while_it_rests() {
    let mut plays = vec![refuses(); 5];
    plays.push(fine());
    let script = Script::new(plays);
    let only = models(&[(Place::Local, &script)]);
    for _ in 0..5 {
        failure(&chat(&only, ANYWHERE).await);
    }
    assert!(finished(&chat(&only, ANYWHERE).await));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_key_is_not_shown() {
    let mut provider = at(Place::Remote);
    provider.api_key = Some(SecretValue::new("sk-canary-1"));
    let script = Script::new([status(401, &[], r#"{"error":{"message":"bad key sk-canary-1"}}"#)]);
    let models = Models::with_transports(vec![(provider, Arc::new(script) as Arc<dyn Transport>)]);
    let told = chat(&models, ANYWHERE).await;
    assert_eq!(*failure(&told), ModelFailure::Unauthorised("bad key [secret]".into()));
}

#[tokio::test(start_paused = true)]
async fn a_web_page_is_no_answer() {
    let mut page = status(200, &[("content-type", "text/html")], "<html>Log in</html>");
    for headers in [vec![("content-type", "text/html")], vec![]] {
        page.head = Ok((200, headers));
        let (told, _, _) = one(Place::Local, vec![page.clone()]).await;
        assert!(matches!(failure(&told), ModelFailure::Malformed(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_receiver_and_a_fired_token_end_the_request() {
    for drop_it in [true, false] {
        let script = Script::new([says(&[(0, LINE), (30, LINE), (30, DONE)])]);
        let models = models(&[(Place::Local, &script)]);
        let cancel = CancellationToken::new();
        let mut events = models.chat(request(), ANYWHERE, cancel.clone());
        assert_eq!(events.recv().await, Some(ModelEvent::Text("hi".into())));
        if drop_it {
            drop(events);
        } else {
            cancel.cancel();
            let rest = drain(events).await;
            assert!(rest.iter().all(|e| *e == ModelEvent::Waiting), "{rest:?}");
        }
        sleep(Duration::from_secs(1)).await;
        assert!(Arc::strong_count(&script.0) == 2, "the task holds nothing any more");
    }
}

/// Statement 30, on a real connection: the server sees the end of it at once.
#[tokio::test]
async fn statement_30_cancelling_closes_the_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        read_request(&mut socket).await;
        let head =
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{LINE}\r\n", LINE.len());
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.read(&mut [0; 16]).await.unwrap_or(0)
    });
    let models = Models::new(vec![Provider::new("test", Wire::Ollama, url, "m")]).unwrap();
    let cancel = CancellationToken::new();
    let mut events = models.chat(request(), ANYWHERE, cancel.clone());
    assert_eq!(events.recv().await, Some(ModelEvent::Text("hi".into())));
    cancel.cancel();
    let closed = tokio::time::timeout(Duration::from_secs(5), server).await;
    assert_eq!(closed.expect("closed at once").unwrap(), 0);
    assert_eq!(events.recv().await, None);
}

#[tokio::test]
async fn every_cut_of_a_stream_is_a_failure_over_http() {
    for (name, wire) in
        [("ollama-30", Wire::Ollama), ("ollama-33", Wire::OpenAi), ("ollama-41", Wire::Anthropic)]
    {
        let Some(capture) = capture(name) else { continue };
        // Each protocol's last sign; the line feed after it is not needed.
        let text = String::from_utf8(capture.body.clone()).unwrap();
        let end = ["\"done\":true", "\"finish_reason\":\"tool_calls\"", "\"message_stop\"}"];
        let end = end.iter().find_map(|e| text.rfind(e)).unwrap();
        for cut in (0..end).step_by(97) {
            let style = replay::Style { pieces: vec![50], ..replay::Style::cut(cut) };
            let (told, _server) = replay::ask(wire, vec![(capture.clone(), style)]).await;
            assert!(
                told.calls.is_empty() && matches!(told.end, Some(ModelEvent::Failed(_))),
                "{name} cut at {cut}"
            );
        }
    }
}
