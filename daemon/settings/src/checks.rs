//! Checks of texts. None quotes the text.

use std::path::{Component, Path};

use hearth_scope::{Scope, ToolName};

pub(crate) type Checked = Result<(), String>;

fn ensure(sound: bool, what: &str) -> Checked {
    if sound { Ok(()) } else { Err(what.to_owned()) }
}

pub(crate) fn any(_: &str) -> Checked {
    Ok(())
}

pub(crate) fn filled(text: &str) -> Checked {
    ensure(!text.trim().is_empty() && !text.contains('\n'), "the text is empty or has several lines")
}

pub(crate) fn absolute(text: &str) -> Checked {
    let path = Path::new(text);
    let plain = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    ensure(path.is_absolute() && plain, "the path is not absolute, or holds \"..\"")
}

pub(crate) fn credential(text: &str) -> Checked {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    ensure(
        !text.is_empty() && !text.starts_with('.') && text.bytes().all(word),
        "a credential name has only letters, digits, \"-\", \"_\" and \".\"",
    )
}

pub(crate) fn word(text: &str) -> Checked {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    ensure(!text.is_empty() && text.bytes().all(word), "the name has only letters, digits, \"-\" and \"_\"")
}

pub(crate) fn time_zone(text: &str) -> Checked {
    let part = |p: &str| {
        p.starts_with(|c: char| c.is_ascii_alphabetic())
            && p.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'+'))
    };
    ensure(text.split('/').all(part), "this is not the form of a time zone name")
}

pub(crate) fn http_url(text: &str) -> Checked {
    let url = url::Url::parse(text).map_err(|_| "this is not an address".to_owned())?;
    ensure(matches!(url.scheme(), "http" | "https"), "the address does not begin with http:// or https://")?;
    ensure(url.host_str().is_some_and(|h| !h.is_empty()), "the address names no host")?;
    ensure(
        url.username().is_empty() && url.password().is_none(),
        "the address holds a user name or password",
    )?;
    ensure(url.query().is_none() && url.fragment().is_none(), "the address holds a query or fragment")
}

pub(crate) fn lan_host(text: &str) -> Checked {
    let plain = !text.contains(['/', '@', '?', '#', '\\', '*', ' ', '%']);
    let url = url::Url::parse(&format!("http://{text}/"));
    ensure(
        plain && url.is_ok_and(|u| u.host_str().is_some_and(|h| !h.is_empty()) && u.path() == "/"),
        "this is not the form host or host:port",
    )
}

pub(crate) fn scope(text: &str) -> Checked {
    Scope::parse(text).map(drop).map_err(|_| "this is not a known scope".to_owned())
}

pub(crate) fn tool(text: &str) -> Checked {
    ToolName::parse(text).map(drop).map_err(|_| "this is not the form of a tool name".to_owned())
}

pub(crate) fn command(text: &str) -> Checked {
    if text.contains('/') {
        return absolute(text);
    }
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+');
    ensure(!text.is_empty() && text.bytes().all(word), "this is not the name of a program")
}
