//! The cases.

use std::sync::Arc;

use hearth_scope::TrustTier;
use hearth_turn::TurnOutcome;

use super::gateway::completed;
use super::{AdapterUnderTest, FakeGateway, Peer, Running, Seen, Step, Traits};
use crate::inbound::EXTERNAL_ID_MAX;
use crate::{BoxFuture, Refusal, RefusalKind};

type Outcome = Result<(), String>;
type Case = fn(Stage) -> BoxFuture<'static, Outcome>;

/// Every case with its name.
pub(super) const ALL: &[(&str, Case)] = &[
    ("an answer comes in order", |s| Box::pin(in_order(s))),
    ("messages of one peer stay in order", |s| Box::pin(messages_in_order(s))),
    ("a duplicate starts no second turn", |s| Box::pin(duplicate(s))),
    ("cancel in mid-stream", |s| Box::pin(cancel(s))),
    ("oversized text is refused", |s| Box::pin(oversized(s))),
    ("exactly one outcome, and last", |s| Box::pin(one_outcome(s))),
    ("a turn that vanished has an outcome", |s| Box::pin(vanished(s))),
    ("a refusal is shown", |s| Box::pin(refused(s))),
    ("a peer that goes away", |s| Box::pin(disconnect(s))),
    ("a backlog is delivered whole", |s| Box::pin(backlog(s))),
    ("hostile bytes reach nobody", |s| Box::pin(hostile(s))),
    ("messages carry channel and origin", |s| Box::pin(origin(s))),
];

/// A fresh adapter in front of a fresh gateway.
pub(super) struct Stage {
    traits: Traits,
    gateway: FakeGateway,
    adapter: Box<dyn Running>,
}

impl Stage {
    pub(super) async fn new(adapter: &dyn AdapterUnderTest) -> Result<Self, String> {
        let gateway = FakeGateway::new();
        let running = adapter.start(Arc::new(gateway.clone())).await?;
        Ok(Self { traits: adapter.traits(), gateway, adapter: running })
    }

    /// Everything up to and with the outcome or refusal of a message.
    async fn answer(&self, peer: &mut Box<dyn Peer>, id: &str) -> Result<Vec<Seen>, String> {
        let mut seen = Vec::new();
        loop {
            let next = peer.next(id).await.ok_or(format!("{id}: the connection ended after {seen:?}"))?;
            let last = matches!(next, Seen::Finished(_) | Seen::Refused(..));
            seen.push(next);
            if last {
                return Ok(seen);
            }
        }
    }

    /// What a peer should see of a turn with these pieces of text.
    fn expected(&self, pieces: &[&str], outcome: TurnOutcome) -> Vec<Seen> {
        let texts = pieces.iter().filter(|_| self.traits.streams).map(|p| Seen::Text((*p).to_owned()));
        std::iter::once(Seen::Accepted).chain(texts).chain([Seen::Finished(outcome)]).collect()
    }

    /// A new peer is served: nothing is broken, and nothing is left over.
    async fn still_serves(&self) -> Outcome {
        let mut peer = self.adapter.peer().await?;
        peer.send("still", "still there?").await?;
        let seen = self.answer(&mut peer, "still").await?;
        same(&seen, &self.expected(&["echo: still there?"], completed("echo: still there?")))
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("found {found:?}, expected {expected:?}")) }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}

fn texts(pieces: &[&str]) -> Vec<Step> {
    pieces.iter().map(|p| Step::Text((*p).to_owned())).collect()
}

async fn in_order(stage: Stage) -> Outcome {
    let pieces = ["one ", "two ", "", "ünï🏠 ", "four\n"];
    let mut steps = texts(&pieces);
    steps.push(Step::Finish(completed("whole")));
    stage.gateway.on("count", steps);
    let mut peer = stage.adapter.peer().await?;
    peer.send("1", "count").await?;
    // An empty piece may be left out.
    let seen = stage.answer(&mut peer, "1").await?;
    let seen: Vec<_> = seen.into_iter().filter(|s| *s != Seen::Text(String::new())).collect();
    same(&seen, &stage.expected(&["one ", "two ", "ünï🏠 ", "four\n"], completed("whole")))
}

async fn messages_in_order(stage: Stage) -> Outcome {
    let mut peer = stage.adapter.peer().await?;
    let ids: Vec<_> = (0..20).map(|i| format!("m{i}")).collect();
    for id in &ids {
        peer.send(id, id).await?;
        let seen = stage.answer(&mut peer, id).await?;
        let answer = format!("echo: {id}");
        same(&seen, &stage.expected(&[&answer], completed(&answer)))?;
    }
    let handed: Vec<_> = stage.gateway.inbound().into_iter().map(|i| i.external_id).collect();
    same(&handed, &ids)
}

async fn duplicate(stage: Stage) -> Outcome {
    let mut peer = stage.adapter.peer().await?;
    for _ in 0..2 {
        peer.send("same", "hello").await?;
        let seen = stage.answer(&mut peer, "same").await?;
        same(&seen.last(), &Some(&Seen::Finished(completed("echo: hello"))))?;
    }
    same(&stage.gateway.counts().started, &1)?;
    // The transport's identifier is passed on as it is: it is the key.
    let inbound = stage.gateway.inbound();
    ensure(inbound.iter().all(|i| i.external_id == inbound[0].external_id), || format!("{inbound:?}"))
}

async fn cancel(stage: Stage) -> Outcome {
    let mut steps = texts(&["first"]);
    steps.extend([Step::AwaitCancel, Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 })]);
    stage.gateway.on("long", steps);
    let mut peer = stage.adapter.peer().await?;
    peer.send("1", "long").await?;
    stage.gateway.wait(|c| c.started == 1).await;
    if stage.traits.streams {
        while peer.next("1").await.ok_or("the connection ended")? != Seen::Text("first".to_owned()) {}
    }
    peer.cancel("1").await?;
    let seen = stage.answer(&mut peer, "1").await?;
    same(&seen.last(), &Some(&Seen::Finished(TurnOutcome::Cancelled { tool_calls: 0 })))?;
    same(&stage.gateway.counts().cancelled, &1)?;
    stage.still_serves().await
}

async fn oversized(stage: Stage) -> Outcome {
    let max = stage.traits.text_max;
    let mut peer = stage.adapter.peer().await?;
    peer.send("large", &"x".repeat(max + 1)).await?;
    match stage.answer(&mut peer, "large").await?.as_slice() {
        [Seen::Refused(RefusalKind::TooLarge, _)] => {}
        other => return Err(format!("{other:?}")),
    }
    same(&stage.gateway.counts().submitted, &0)?;
    // The largest that is allowed passes, and the same peer goes on.
    let text = "y".repeat(max);
    peer.send("fits", &text).await?;
    stage.answer(&mut peer, "fits").await?;
    ensure(stage.gateway.inbound()[0].text == text, || "the text was changed".to_owned())
}

async fn one_outcome(stage: Stage) -> Outcome {
    // A gateway that breaks its own contract must not confuse the peer.
    let mut steps = vec![Step::Finish(completed("first")), Step::Finish(completed("second"))];
    steps.extend(texts(&["late"; 20]));
    stage.gateway.on("twice", steps);
    let mut peer = stage.adapter.peer().await?;
    peer.send("1", "twice").await?;
    same(&stage.answer(&mut peer, "1").await?, &stage.expected(&[], completed("first")))?;
    peer.send("2", "next").await?;
    let seen = stage.answer(&mut peer, "2").await?;
    same(&seen, &stage.expected(&["echo: next"], completed("echo: next")))?;
    same(&peer.leftover("1"), &Vec::new())?;
    // The turn could come to its end: nobody holds its events without reading them.
    stage.gateway.wait(|c| c.ended == 2).await;
    Ok(())
}

async fn vanished(stage: Stage) -> Outcome {
    stage.gateway.on("vanish", texts(&["half an ans"]));
    let mut peer = stage.adapter.peer().await?;
    peer.send("1", "vanish").await?;
    let seen = stage.answer(&mut peer, "1").await?;
    ensure(matches!(seen.last(), Some(Seen::Finished(TurnOutcome::Failed { .. }))), || format!("{seen:?}"))?;
    peer.send("2", "next").await?;
    stage.answer(&mut peer, "2").await?;
    same(&peer.leftover("1"), &Vec::new())?;
    stage.still_serves().await
}

async fn refused(stage: Stage) -> Outcome {
    let refusal = Refusal::new(RefusalKind::Busy, "32 messages wait already", "Try again in a minute.");
    stage.gateway.on("busy", [Step::Refuse(refusal.clone())]);
    let mut peer = stage.adapter.peer().await?;
    peer.send("1", "busy").await?;
    match stage.answer(&mut peer, "1").await?.as_slice() {
        [Seen::Refused(RefusalKind::Busy, words)] => {
            ensure(words.contains(&refusal.what) && words.contains(&refusal.remedy), || {
                format!("the words were lost: {words}")
            })?;
        }
        other => return Err(format!("{other:?}")),
    }
    stage.still_serves().await
}

async fn disconnect(stage: Stage) -> Outcome {
    // More pieces than any queue holds, so that events are under way after the peer left.
    let pieces: Vec<_> = (0..200).map(|i| Step::Text(i.to_string())).collect();
    let mut steps = vec![Step::Text("first".to_owned())];
    if stage.traits.cancels_on_disconnect {
        steps.push(Step::AwaitCancel);
    } else {
        steps.push(Step::AwaitGate);
    }
    steps.extend(pieces);
    steps.push(Step::Finish(TurnOutcome::Cancelled { tool_calls: 0 }));
    stage.gateway.on("long", steps);
    let mut peer = stage.adapter.peer().await?;
    peer.send("1", "long").await?;
    stage.gateway.wait(|c| c.started == 1).await;
    peer.leave().await;
    stage.gateway.open_gate();
    let counts = stage.gateway.wait(|c| c.ended == 1).await;
    same(&counts.cancelled, &usize::from(stage.traits.cancels_on_disconnect))?;
    stage.still_serves().await
}

async fn backlog(stage: Stage) -> Outcome {
    let pieces: Vec<_> = (0..2_000).map(|i| format!("{i} ")).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let mut steps = vec![Step::AwaitGate];
    steps.extend(texts(&pieces));
    steps.push(Step::Finish(completed("all")));
    stage.gateway.on("much", steps);
    let mut slow = stage.adapter.peer().await?;
    slow.send("1", "much").await?;
    stage.gateway.open_gate();
    stage.gateway.wait(|c| c.started == 1).await;
    // While the first peer does not read, another is served.
    stage.still_serves().await?;
    let seen = stage.answer(&mut slow, "1").await?;
    ensure(seen == stage.expected(&pieces, completed("all")), || {
        format!("{} of {} events, or not in order", seen.len(), pieces.len() + 2)
    })
}

async fn hostile(stage: Stage) -> Outcome {
    for (name, bytes) in &stage.traits.hostile {
        let mut peer = stage.adapter.peer().await?;
        peer.raw(bytes).await;
        peer.leave().await;
        same(&stage.gateway.counts().submitted, &0).map_err(|e| format!("{name}: {e}"))?;
    }
    let mut peer = stage.adapter.peer().await?;
    let long = "i".repeat(EXTERNAL_ID_MAX + 1);
    for (id, text) in [("", "x"), (&long, "x"), ("a\u{7}", "x"), ("b", ""), ("c", "a\0b")] {
        peer.send(id, text).await?;
        let seen = stage.answer(&mut peer, id).await?;
        ensure(matches!(seen.as_slice(), [Seen::Refused(RefusalKind::Malformed, _)]), || {
            format!("{id:?} {text:?}: {seen:?}")
        })?;
    }
    same(&stage.gateway.counts().submitted, &0)?;
    stage.still_serves().await
}

async fn origin(stage: Stage) -> Outcome {
    stage.still_serves().await?;
    for inbound in stage.gateway.inbound() {
        same(&inbound.channel.as_str(), &stage.traits.channel.as_str())?;
        ensure(inbound.origin.tier() < TrustTier::Kernel, || "the origin claims the kernel tier".to_owned())?;
        inbound.check(stage.traits.text_max).map_err(|r| r.what)?;
    }
    Ok(())
}
