//! Web pages to plain text.

use std::cell::RefCell;
use std::rc::Rc;

use html_escape::decode_html_entities;
use lol_html::html_content::{Element, EndTag, TextType};
use lol_html::{HtmlRewriter, MemorySettings, Settings, doc_text, element};
use url::Url;

/// Most memory that the parser may take, in bytes.
const MEMORY_MAX: usize = 4 * 1024 * 1024;
/// Most text that is made of one page, in bytes.
const TEXT_MAX: usize = 512 * 1024;
/// Longest address of a link that is kept, in bytes.
const LINK_MAX: usize = 300;
/// Longest title, in bytes.
const TITLE_MAX: usize = 300;

/// The readable part of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) title: String,
    pub(crate) body: String,
    /// True when the page was too long or too deep to be read to its end.
    pub(crate) truncated: bool,
}

/// Headings, paragraphs, lists and tables keep their shape, links become
/// `[text](address)`; scripts, styles, embedded pages and pictures are dropped.
/// Never fails: what cannot be parsed ends the text.
pub(crate) fn to_text(html: &str, base: &Url) -> Text {
    let state = Rc::new(RefCell::new(State { base: Some(base.clone()), ..State::default() }));
    let (on_element, on_text) = (state.clone(), state.clone());
    let settings = Settings::new()
        .with_strict(false)
        .with_memory_settings(MemorySettings::new().with_max_allowed_memory_usage(MEMORY_MAX))
        .append_element_content_handler(element!("*", |e: &mut Element| {
            State::open(&on_element, e);
            Ok(())
        }))
        .append_document_content_handler(doc_text!(|chunk| {
            let mut state = on_text.borrow_mut();
            state.chunk(chunk.as_str(), chunk.text_type());
            if chunk.last_in_text_node() {
                state.end_of_node();
            }
            Ok(())
        }));
    let mut rewriter = HtmlRewriter::new(settings, |_: &[u8]| {});
    let whole = rewriter.write(html.as_bytes()).is_ok() && rewriter.end().is_ok();
    let mut state = state.take();
    state.close_link();
    Text {
        title: crate::text::shorten(state.title.trim(), TITLE_MAX),
        truncated: !whole || state.full(),
        body: state.out.trim().to_owned(),
    }
}

#[derive(Default)]
struct State {
    base: Option<Url>,
    out: String,
    title: String,
    /// Raw text of the current node: a character reference can be split.
    node: String,
    space: bool,
    /// Depth of elements whose text is not for reading.
    silent: u32,
    in_title: bool,
    preformatted: u32,
    link: Option<Link>,
}

/// An open link: its address and where its text starts.
struct Link {
    address: String,
    start: usize,
}

impl State {
    fn full(&self) -> bool {
        self.out.len() >= TEXT_MAX
    }

    fn chunk(&mut self, text: &str, kind: TextType) {
        let reads = match kind {
            TextType::Data | TextType::CDataSection | TextType::PlainText => !self.in_title,
            TextType::RCData => self.in_title,
            TextType::RawText | TextType::ScriptData => false,
        };
        if reads && self.silent == 0 && !self.full() {
            self.node.push_str(text);
        }
    }

    fn end_of_node(&mut self) {
        let node = std::mem::take(&mut self.node);
        let text = decode_html_entities(&node);
        if self.in_title {
            if self.title.len() < TITLE_MAX {
                self.title.push_str(&text);
            }
            return;
        }
        for c in text.chars().filter(|c| !is_invisible(*c)) {
            match c {
                '\n' if self.preformatted > 0 => self.out.push('\n'),
                c if c.is_whitespace() || c.is_control() => self.space = true,
                c => self.push(c),
            }
        }
    }

    fn push(&mut self, c: char) {
        if std::mem::take(&mut self.space) && !self.out.is_empty() && !self.out.ends_with(['\n', '[']) {
            self.out.push(' ');
        }
        self.out.push(c);
    }

    fn write(&mut self, text: &str) {
        text.chars().for_each(|c| self.push(c));
    }

    /// Starts a line, after an empty one when `paragraph`.
    fn line(&mut self, paragraph: bool) {
        self.space = false;
        self.out.truncate(self.out.trim_end_matches(' ').len());
        let wanted = if paragraph { "\n\n" } else { "\n" };
        while !self.out.is_empty() && !self.out.ends_with(wanted) {
            self.out.push('\n');
        }
    }

    fn open(this: &Rc<RefCell<Self>>, element: &mut Element) {
        let tag = element.tag_name();
        let mut state = this.borrow_mut();
        if matches!(
            tag.as_str(),
            "svg" | "math" | "template" | "object" | "canvas" | "audio" | "video" | "select"
        ) {
            if on_end(this, element, |state| state.silent = state.silent.saturating_sub(1)) {
                state.silent += 1;
            }
            return;
        }
        if state.silent > 0 || state.full() {
            return;
        }
        match tag.as_str() {
            "title" => {
                state.in_title = on_end(this, element, |state| state.in_title = false);
            }
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                state.line(true);
                let level = usize::from(tag.as_bytes()[1] - b'0');
                state.write(&"#".repeat(level));
                state.space = true;
                on_end(this, element, |state| state.line(true));
            }
            "p" | "article" | "section" | "table" | "blockquote" | "ul" | "ol" | "dl" => {
                state.line(true);
                on_end(this, element, |state| state.line(true));
            }
            "div" | "tr" | "dt" | "dd" | "header" | "footer" | "main" | "nav" | "aside" | "form"
            | "figure" | "figcaption" | "option" => {
                state.line(false);
                on_end(this, element, |state| state.line(false));
            }
            "li" => {
                state.line(false);
                state.write("-");
                state.space = true;
                on_end(this, element, |state| state.line(false));
            }
            "td" | "th" if !state.out.is_empty() && !state.out.ends_with('\n') => {
                state.space = true;
                state.write("|");
                state.space = true;
            }
            "br" | "hr" => state.line(false),
            "pre" => {
                state.line(true);
                if on_end(this, element, |state| {
                    state.preformatted = state.preformatted.saturating_sub(1);
                    state.line(true);
                }) {
                    state.preformatted += 1;
                }
            }
            "img" => {
                let text = element.get_attribute("alt").unwrap_or_default();
                let text = crate::text::shorten(decode_html_entities(&text).trim(), 200);
                if !text.is_empty() {
                    state.write(&format!("[image: {text}]"));
                }
            }
            "a" => {
                state.close_link();
                let address = element.get_attribute("href").and_then(|href| state.address(&href));
                if let Some(address) = address {
                    state.push('[');
                    state.link = Some(Link { address, start: state.out.len() });
                    on_end(this, element, State::close_link);
                }
            }
            _ => {}
        }
    }

    /// An absolute http or https address of bearable length.
    fn address(&self, href: &str) -> Option<String> {
        let href = decode_html_entities(href);
        if href.trim().starts_with('#') {
            return None;
        }
        let url = self.base.as_ref()?.join(href.trim()).ok()?;
        let fits = matches!(url.scheme(), "http" | "https") && url.as_str().len() <= LINK_MAX;
        // Brackets would end the address early.
        fits.then(|| url.as_str().replace('(', "%28").replace(')', "%29"))
    }

    fn close_link(&mut self) {
        let Some(Link { address, start }) = self.link.take() else { return };
        match self.out.get(start..).map(str::trim) {
            // A link without text, or text that was taken back, leaves nothing.
            None | Some("") => self.out.truncate(start.saturating_sub(1).min(self.out.len())),
            Some(_) => {
                self.out.truncate(self.out.trim_end().len());
                self.out.push_str(&format!("]({address})"));
            }
        }
    }
}

/// Calls `then` at the end of the element; false when it cannot have one.
fn on_end(this: &Rc<RefCell<State>>, element: &mut Element, then: fn(&mut State)) -> bool {
    let this = this.clone();
    let Some(handlers) = element.end_tag_handlers() else { return false };
    handlers.push(Box::new(move |_: &mut EndTag| {
        then(&mut this.borrow_mut());
        Ok(())
    }));
    true
}

/// Characters that show nothing and can hide text from a person.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}'
        | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}
