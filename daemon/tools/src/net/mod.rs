//! `net.fetch`: reads one web page.

mod html;

use std::sync::Arc;
use std::time::Duration;

use hearth_egress::{EgressError, FetchLimits, Fetcher};
use hearth_scope::{EffectClass, Label, Scope};
use hearth_turn::ToolError;
use serde::Deserialize;
use serde_json::json;
use url::Url;

use crate::context::ToolContext;
use crate::port::BoxFuture;
use crate::text::{self, RESULT_MAX};
use crate::tool::{Done, Meta, Reach, Typed, scope};

/// Longest address, in bytes.
pub const URL_MAX: usize = 2048;
/// Redirects that are followed in a turn that may fetch from anywhere.
const REDIRECTS: usize = 5;
/// How much of a body is looked at for its kind and its encoding.
const LOOK: usize = 1024;

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The address after redirects.
    pub url: String,
    /// Status code.
    pub status: u16,
    /// Kind of the body, where the server said so.
    pub content_type: Option<String>,
    /// The body, capped.
    pub body: Vec<u8>,
    /// True when the body was longer.
    pub truncated: bool,
}

/// The public internet. The implementation checks every address it connects to.
pub trait FetchPort: Send + Sync {
    /// Reads an address, following at most so many redirects.
    fn fetch<'a>(&'a self, url: &'a str, redirects: usize) -> BoxFuture<'a, Result<Page, ToolError>>;
}

impl FetchPort for Fetcher {
    fn fetch<'a>(&'a self, url: &'a str, redirects: usize) -> BoxFuture<'a, Result<Page, ToolError>> {
        Box::pin(async move {
            let configured = self.limits();
            let limits = FetchLimits { redirects: redirects.min(configured.redirects), ..configured };
            let fetched = Fetcher::fetch(self, url, limits).await.map_err(|e| match e {
                EgressError::BadUrl(_) => ToolError::InvalidArguments(e.to_string()),
                EgressError::Refused(_) => ToolError::Refused(e.to_string()),
                EgressError::TimedOut { limit, .. } => ToolError::TimedOut(limit),
                EgressError::TooManyRedirects(0) => ToolError::Refused(
                    "the page redirects to another address, and only named addresses are allowed".into(),
                ),
                EgressError::TooManyRedirects(_) => ToolError::Limit(e.to_string()),
                e => ToolError::Failed(text::shorten(&e.to_string(), 300)),
            })?;
            Ok(Page {
                url: fetched.final_url.into(),
                status: fetched.status,
                content_type: fetched.content_type,
                body: fetched.body,
                truncated: fetched.truncated,
            })
        })
    }
}

/// `net.fetch`
pub(crate) struct Fetch(pub(crate) Arc<dyn FetchPort>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Args {
    url: String,
}

impl Typed for Fetch {
    type Args = Args;
    const META: Meta = Meta {
        name: "net.fetch",
        version: 1,
        description: "Read a web page as text.",
        schema: r#"{"type":"object","properties":{"url":{"type":"string"}},"required":["url"]}"#,
        effect: EffectClass::Send,
        timeout: Duration::from_secs(45),
        reach: Reach::Qualified("net.fetch"),
    };

    fn need(&self, args: &Args) -> Result<(Vec<Scope>, String), ToolError> {
        let mut url = address(&args.url)?;
        url.set_query(None);
        url.set_fragment(None);
        let subject = url.origin().ascii_serialization();
        Ok((vec![scope("net.fetch", Some(url.as_str()))?], subject))
    }

    async fn call(&self, args: Args, ctx: &ToolContext) -> Result<Done, ToolError> {
        let url = address(&args.url)?;
        // The gate checked this address only: where it leads is free when every
        // address is.
        let anywhere = ctx.held.grants(&scope("net.fetch", None)?);
        let page = self.0.fetch(url.as_str(), if anywhere { REDIRECTS } else { 0 }).await?;
        let fence = ctx.fence.clone();
        let read = tokio::task::spawn_blocking(move || read(page, &fence)).await;
        read.map_err(|_| ToolError::Failed("the page could not be read".into()))?
    }
}

/// The address that is checked and then fetched: one parse for both.
fn address(text: &str) -> Result<Url, ToolError> {
    let invalid = |why: String| ToolError::InvalidArguments(why);
    if text.len() > URL_MAX {
        return Err(invalid(format!("url is longer than {URL_MAX} bytes")));
    }
    let text = text.trim();
    let text = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let mut url = Url::parse(&text).map_err(|e| invalid(format!("url: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("only http and https addresses can be fetched".into()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("url holds a user name or password".into()));
    }
    url.set_fragment(None);
    Ok(url)
}

enum Kind {
    Html,
    Plain,
}

fn read(page: Page, fence: &str) -> Result<Done, ToolError> {
    let kind = kind(page.content_type.as_deref(), &page.body)?;
    let body = decode(page.content_type.as_deref(), &page.body);
    let (title, body, mut truncated) = match (kind, Url::parse(&page.url)) {
        (Kind::Html, Ok(base)) => {
            let text = html::to_text(&body, &base);
            (text.title, text.body, text.truncated)
        }
        _ => (String::new(), text::readable(body.as_bytes()), false),
    };
    truncated |= page.truncated;
    let (body, cut) = text::cap(&body, RESULT_MAX - 4096);
    let body = match (title.is_empty(), body.is_empty()) {
        (true, true) => "(the page has no text)".to_owned(),
        (true, false) => body,
        (false, _) => format!("Title: {title}\n\n{body}"),
    };
    let mut output = json!({
        "source": "web page", "label": "world", "url": text::shorten(&page.url, URL_MAX),
        "status": page.status, "text": text::fence(&body, fence),
    });
    if truncated || cut {
        output["truncated"] = true.into();
    }
    Ok(Done::read(output, Label::UNKNOWN))
}

/// What the body is; an error when it is not text.
fn kind(content_type: Option<&str>, body: &[u8]) -> Result<Kind, ToolError> {
    let look = &body[..body.len().min(LOOK)];
    let essence = content_type.unwrap_or("").split(';').next().unwrap_or_default().trim().to_lowercase();
    match essence.as_str() {
        "text/html" | "application/xhtml+xml" => Ok(Kind::Html),
        "" if look.contains(&0) => Err(ToolError::Refused("the answer is not text".into())),
        "" => {
            let start = String::from_utf8_lossy(look).to_lowercase();
            let html = start.contains("<html") || start.contains("<!doctype html");
            Ok(if html { Kind::Html } else { Kind::Plain })
        }
        t if t.starts_with("text/") || t.ends_with("+json") || t.ends_with("+xml") => Ok(Kind::Plain),
        "application/json" | "application/xml" | "application/javascript" => Ok(Kind::Plain),
        other => Err(ToolError::Refused(format!("the answer is {}, not text", text::shorten(other, 80)))),
    }
}

/// Bytes to text: by byte order mark, the server's word, the page's own word,
/// else UTF-8.
fn decode(content_type: Option<&str>, body: &[u8]) -> String {
    let look = String::from_utf8_lossy(&body[..body.len().min(LOOK)]).into_owned();
    let label = |text: &str| {
        let rest = &text[text.to_ascii_lowercase().find("charset=")? + 8..];
        let end = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_';
        let label = rest.trim_start_matches(['"', '\'', ' ']).split(end).next()?;
        encoding_rs::Encoding::for_label(label.as_bytes())
    };
    let encoding = content_type.and_then(label).or_else(|| label(&look)).unwrap_or(encoding_rs::UTF_8);
    encoding.decode(body).0.into_owned()
}

#[cfg(test)]
mod tests;
