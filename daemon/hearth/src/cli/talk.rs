//! `hearth ask` and `hearth chat`.

use std::io::{BufRead, IsTerminal, Read, Write};

use hearth_console::Client;
use hearth_contract::{ChannelEvent, ControlRequest};
use hearth_settings::Settings;
use hearth_turn::{StreamEvent, TurnOutcome, Verification};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::exit::{Exit, Failure};
use crate::cli::online::connect;
use crate::cli::{Ask, out};
use crate::clock::fill;

/// Most earlier answers that a chat begins with.
const MISSED_MAX: u32 = 100;
/// Longest question that is read from the standard input, in bytes. The daemon
/// has its own, smaller limit.
const INPUT_MAX: u64 = 900 * 1024;

fn interrupts() -> Result<Signal, Failure> {
    signal(SignalKind::interrupt())
        .map_err(|e| Failure::new(Exit::Failed, format!("Ctrl-C cannot be caught: {e}"), ""))
}

/// A new identity for a message, so that a repeated delivery is recognised.
fn new_id() -> String {
    let mut bytes = [0; 16];
    fill(&mut bytes);
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// How events are shown.
enum Style {
    /// Every event as a line of JSON.
    Json,
    /// The answer on the standard output, the rest on the standard error.
    Plain {
        /// Whether to tell what tools do.
        tools: bool,
    },
}

/// What one answer has printed so far.
#[derive(Default)]
struct Shown {
    text: bool,
    line_open: bool,
}

impl Style {
    fn show(&self, event: &ChannelEvent, shown: &mut Shown) -> Result<(), Failure> {
        match self {
            Self::Json => out(&format!("{}\n", serde_json::to_string(event).unwrap_or_default())),
            Self::Plain { tools } => plain(event, *tools, shown),
        }
    }
}

/// Text of a model is shown as text: control characters that a terminal would
/// act on are left out.
fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

fn note(text: &str, shown: &mut Shown) -> Result<(), Failure> {
    if std::mem::take(&mut shown.line_open) {
        out("\n")?;
    }
    let _ = writeln!(std::io::stderr().lock(), "[{}]", harmless(text));
    Ok(())
}

fn plain(event: &ChannelEvent, tools: bool, shown: &mut Shown) -> Result<(), Failure> {
    match event {
        ChannelEvent::Stream(StreamEvent::Text { text }) => {
            shown.text = true;
            shown.line_open = !text.ends_with('\n');
            out(&harmless(text))
        }
        ChannelEvent::Stream(StreamEvent::Status { text }) if tools => note(text, shown),
        ChannelEvent::Stream(StreamEvent::ToolCallStarted { tool, subject, .. }) if tools => {
            note(&format!("{tool} {subject}"), shown)
        }
        ChannelEvent::Stream(StreamEvent::ToolCallFinished { tool, summary, verified, .. }) if tools => {
            let seen = matches!(verified, Some(Verification::Unverified))
                .then_some(" (not seen)")
                .unwrap_or_default();
            note(&format!("{tool}: {summary}{seen}"), shown)
        }
        ChannelEvent::Finished(outcome) => {
            if let TurnOutcome::Completed { text, .. } = outcome
                && !shown.text
            {
                out(&harmless(text))?;
                shown.line_open = true;
            }
            if std::mem::take(&mut shown.line_open) {
                out("\n")?;
            }
            if let Some((what, remedy)) = failure(outcome) {
                eprintln!("hearth: {}\n        {}", harmless(&what), harmless(&remedy));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Two lines for an outcome that is no answer.
fn failure(outcome: &TurnOutcome) -> Option<(String, String)> {
    let pair = |what: &str, remedy: &str| Some((what.to_owned(), remedy.to_owned()));
    match outcome {
        TurnOutcome::Completed { .. } => None,
        TurnOutcome::Cancelled { .. } => {
            pair("Stopped.", "What was done until then is in `hearth audit tail`.")
        }
        TurnOutcome::Escalated { reason, tool, .. } => {
            Some((format!("{tool} needs your approval: {reason}"), "It was not carried out.".to_owned()))
        }
        TurnOutcome::TimedOut { duration_ms, .. } => Some((
            format!("No answer within {} s.", duration_ms / 1000),
            "Ask something smaller, use a faster model, or raise turn.budget_local_s.".to_owned(),
        )),
        TurnOutcome::Looping { tried, .. } => {
            Some((format!("The model went in circles: {tried}."), "Ask in other words.".to_owned()))
        }
        TurnOutcome::Failed { error, remedy, .. } => Some((error.clone(), remedy.clone())),
    }
}

/// Asks and shows the answer. Ctrl-C stops it; a second one leaves at once.
async fn exchange(
    client: &mut Client,
    (conversation, text, id): (&str, &str, &str),
    style: &Style,
    interrupt: &mut Signal,
) -> Result<TurnOutcome, Failure> {
    let mut answer = client.ask(conversation, text, id).await?;
    let mut shown = Shown::default();
    let mut stopping = false;
    loop {
        tokio::select! {
            event = answer.next() => match event? {
                Some(event) => {
                    style.show(&event, &mut shown)?;
                    if let ChannelEvent::Finished(outcome) = event {
                        return Ok(outcome);
                    }
                }
                None => return Err(Failure::new(Exit::Unavailable, "the daemon closed the connection", "Ask again.")),
            },
            _ = interrupt.recv() => {
                if std::mem::replace(&mut stopping, true) {
                    return Ok(TurnOutcome::Cancelled { tool_calls: 0 });
                }
                answer.cancel().await?;
            }
        }
    }
}

fn question(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut input = String::new();
    let read = std::io::stdin().lock().take(INPUT_MAX + 1).read_to_string(&mut input);
    read.map_err(|e| {
        Failure::new(Exit::Failed, format!("the question cannot be read: {e}"), "It has to be UTF-8 text.")
    })?;
    if input.len() as u64 > INPUT_MAX {
        let what = format!("the question has more than {INPUT_MAX} bytes");
        return Err(Failure::new(Exit::Failed, what, "Shorten it."));
    }
    Ok(input)
}

/// `hearth ask`
pub(crate) async fn ask(settings: &Settings, ask: &Ask) -> Result<Exit, Failure> {
    let text = question(&ask.text)?;
    let mut interrupt = interrupts()?;
    let mut client = connect(settings).await?;
    let style = if ask.json { Style::Json } else { Style::Plain { tools: std::io::stderr().is_terminal() } };
    let id = ask.id.clone().unwrap_or_else(new_id);
    let outcome = exchange(&mut client, (&ask.conversation, &text, &id), &style, &mut interrupt).await?;
    Ok(Exit::from(&outcome))
}

/// Lines of the terminal, read on a thread of their own: a blocked read must not
/// keep the process from ending.
fn lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Shows answers that came while nobody waited for them.
async fn missed(client: &mut Client, conversation: &str) -> Result<(), Failure> {
    let request = ControlRequest::Answers { conversation: conversation.to_owned(), limit: MISSED_MAX };
    let answers = client.control(request).await?;
    for answer in answers.as_array().into_iter().flatten() {
        let Ok(outcome) = serde_json::from_value(answer["outcome"].clone()) else { continue };
        note("an answer from before:", &mut Shown::default())?;
        plain(&ChannelEvent::Finished(outcome), false, &mut Shown::default())?;
        let message = answer["message"].as_str().unwrap_or_default().to_owned();
        client.control(ControlRequest::AnswerShown { message }).await?;
    }
    Ok(())
}

/// `hearth chat`
pub(crate) async fn chat(settings: &Settings, conversation: &str) -> Result<Exit, Failure> {
    let mut interrupt = interrupts()?;
    let mut client = connect(settings).await?;
    let prompt = std::io::stdin().is_terminal();
    if prompt {
        out("Hearth. Ctrl-C stops an answer, Ctrl-D leaves.\n")?;
    }
    missed(&mut client, conversation).await?;
    let mut lines = lines();
    let style = Style::Plain { tools: true };
    loop {
        if prompt {
            out("> ")?;
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = interrupt.recv() => None,
            // A chat does not outlive its daemon.
            error = client.ended() => {
                if prompt {
                    out("\n")?;
                }
                return Err(error.into());
            }
        };
        let Some(line) = line else {
            if prompt {
                out("\n")?;
            }
            return Ok(Exit::Done);
        };
        if line.trim().is_empty() {
            continue;
        }
        if matches!(line.trim(), "/quit" | "/exit") {
            return Ok(Exit::Done);
        }
        match exchange(&mut client, (conversation, &line, &new_id()), &style, &mut interrupt).await {
            Ok(_) => {}
            Err(failure) if failure.exit == Exit::Unavailable => return Err(failure),
            Err(failure) => eprintln!("{failure}"),
        }
    }
}
