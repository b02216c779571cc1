//! The suite passes for an adapter that does right, and names the case for
//! each way of doing wrong.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hearth_contract::conformance::{AdapterUnderTest, Peer, Running, Seen, Traits, run, run_within};
use hearth_contract::{BoxFuture, ChannelEvent, ChannelName, Gateway, Inbound, Refusal};
use hearth_scope::Origin;
use hearth_turn::{StreamEvent, TurnOutcome};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// What the adapter does wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    DropsText,
    SwapsText,
    IgnoresCancel,
    NoSizeCheck,
    ShowsLateEvents,
    HoldsLateEvents,
    HangsWhenVanished,
    HidesRemedy,
    IgnoresLeaving,
    OwnIdentifier,
    ClaimsKernel,
    WrongChannel,
    NoChecks,
}

const TEXT_MAX: usize = 1_000;

/// An adapter without a transport.
struct Direct(Fault);

struct Started {
    gateway: Arc<dyn Gateway>,
    fault: Fault,
}

struct DirectPeer {
    gateway: Arc<dyn Gateway>,
    fault: Fault,
    shown: HashMap<String, (mpsc::UnboundedReceiver<Seen>, CancellationToken)>,
}

impl AdapterUnderTest for Direct {
    fn traits(&self) -> Traits {
        Traits {
            channel: "direct".to_owned(),
            text_max: TEXT_MAX,
            streams: true,
            cancels_on_disconnect: true,
            hostile: Vec::new(),
        }
    }

    fn start(&self, gateway: Arc<dyn Gateway>) -> BoxFuture<'_, Result<Box<dyn Running>, String>> {
        let started: Box<dyn Running> = Box::new(Started { gateway, fault: self.0 });
        Box::pin(async { Ok(started) })
    }
}

impl Running for Started {
    fn peer(&self) -> BoxFuture<'_, Result<Box<dyn Peer>, String>> {
        let (gateway, fault) = (self.gateway.clone(), self.fault);
        let peer: Box<dyn Peer> = Box::new(DirectPeer { gateway, fault, shown: HashMap::new() });
        Box::pin(async { Ok(peer) })
    }
}

impl Peer for DirectPeer {
    fn send<'a>(&'a mut self, external_id: &'a str, text: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let fault = self.fault;
            let name = if fault == Fault::WrongChannel { "other" } else { "direct" };
            let own = format!("own-{}", self.shown.len());
            let inbound = Inbound {
                origin: match fault {
                    Fault::ClaimsKernel => Origin::Internal,
                    _ => Origin::Console { uid: 1 },
                },
                channel: ChannelName::parse(name).unwrap(),
                external_id: if fault == Fault::OwnIdentifier { own } else { external_id.to_owned() },
                conversation: "default".to_owned(),
                text: text.to_owned(),
            };
            let (sender, receiver) = mpsc::unbounded_channel();
            let cancel = CancellationToken::new();
            self.shown.insert(external_id.to_owned(), (receiver, cancel.clone()));
            let refuse = |refusal: Refusal| {
                let remedy = if fault == Fault::HidesRemedy { "" } else { &refusal.remedy };
                sender.send(Seen::Refused(refusal.kind, format!("{} {remedy}", refusal.what))).unwrap();
            };
            let max = if fault == Fault::NoSizeCheck { usize::MAX } else { TEXT_MAX };
            let checked = if matches!(fault, Fault::NoChecks | Fault::ClaimsKernel) {
                Ok(())
            } else {
                inbound.check(max)
            };
            if let Err(refusal) = checked {
                refuse(refusal);
                return Ok(());
            }
            let ticket = match self.gateway.submit(inbound).await {
                Ok(ticket) => ticket,
                Err(refusal) => {
                    refuse(refusal);
                    return Ok(());
                }
            };
            if fault != Fault::IgnoresCancel {
                let turn = ticket.cancel.clone();
                tokio::spawn(async move {
                    cancel.cancelled().await;
                    turn.cancel();
                });
            }
            tokio::spawn(forward(ticket.events, sender, fault));
            Ok(())
        })
    }

    fn cancel<'a>(&'a mut self, external_id: &'a str) -> BoxFuture<'a, Result<(), String>> {
        self.shown[external_id].1.cancel();
        Box::pin(async { Ok(()) })
    }

    fn raw<'a>(&'a mut self, _: &'a [u8]) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn next<'a>(&'a mut self, external_id: &'a str) -> BoxFuture<'a, Option<Seen>> {
        Box::pin(async move { self.shown.get_mut(external_id)?.0.recv().await })
    }

    fn leftover(&mut self, external_id: &str) -> Vec<Seen> {
        let shown = self.shown.get_mut(external_id);
        shown.map(|(shown, _)| std::iter::from_fn(|| shown.try_recv().ok()).collect()).unwrap_or_default()
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        if self.fault != Fault::IgnoresLeaving {
            self.shown.values().for_each(|(_, cancel)| cancel.cancel());
        }
        Box::pin(async {})
    }
}

async fn forward(mut events: mpsc::Receiver<ChannelEvent>, shown: mpsc::UnboundedSender<Seen>, fault: Fault) {
    let (mut held, mut texts) = (None, 0);
    while let Some(event) = events.recv().await {
        let seen = match event {
            ChannelEvent::Accepted { .. } => Seen::Accepted,
            ChannelEvent::Stream(StreamEvent::Text { text }) => {
                texts += 1;
                match fault {
                    Fault::DropsText if texts == 2 => continue,
                    Fault::SwapsText if texts == 1 => {
                        held = Some(text);
                        continue;
                    }
                    _ => Seen::Text(text),
                }
            }
            ChannelEvent::Stream(_) => Seen::Other,
            ChannelEvent::Postponed => Seen::Postponed,
            ChannelEvent::Finished(outcome) => {
                let _ = shown.send(Seen::Finished(outcome));
                match fault {
                    Fault::ShowsLateEvents => continue,
                    Fault::HoldsLateEvents => std::future::pending::<()>().await,
                    _ => {}
                }
                return;
            }
        };
        let _ = shown.send(seen);
        if let Some(text) = held.take() {
            let _ = shown.send(Seen::Text(text));
        }
    }
    if fault == Fault::HangsWhenVanished {
        std::future::pending::<()>().await;
    }
    let failed = TurnOutcome::Failed { error: "gone".into(), remedy: "ask again".into(), tool_calls: 0 };
    let _ = shown.send(Seen::Finished(failed));
}

#[tokio::test]
async fn a_sound_adapter_passes() {
    let report = run(&Direct(Fault::None)).await;
    report.assert_passed();
    assert_eq!(report.0.len(), 12);
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_named() {
    let table = [
        (Fault::DropsText, "an answer comes in order"),
        (Fault::SwapsText, "an answer comes in order"),
        (Fault::OwnIdentifier, "a duplicate starts no second turn"),
        (Fault::IgnoresCancel, "cancel in mid-stream"),
        (Fault::NoSizeCheck, "oversized text is refused"),
        (Fault::ShowsLateEvents, "exactly one outcome, and last"),
        (Fault::HoldsLateEvents, "exactly one outcome, and last"),
        (Fault::HangsWhenVanished, "a turn that vanished has an outcome"),
        (Fault::HidesRemedy, "a refusal is shown"),
        (Fault::IgnoresLeaving, "a peer that goes away"),
        (Fault::DropsText, "a backlog is delivered whole"),
        (Fault::NoChecks, "hostile bytes reach nobody"),
        (Fault::ClaimsKernel, "messages carry channel and origin"),
        (Fault::WrongChannel, "messages carry channel and origin"),
    ];
    for (fault, case) in table {
        let report = run_within(&Direct(fault), Duration::from_secs(5)).await;
        assert!(report.failed().contains(&case), "{fault:?}:\n{report}");
    }
}
