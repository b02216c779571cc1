//! Qualifiers: how each form is checked, brought to one canonical text, and
//! compared. Comparison reads canonical texts only.

mod mqtt;
mod path;
mod text;
mod web;

use crate::base::Form;

/// Longest qualifier, in bytes, before and after canonicalisation.
pub const QUALIFIER_MAX: usize = 1024;

/// Checks a qualifier and returns its canonical text, or says what is wrong.
pub(crate) fn canonical(form: Form, text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err("it is empty; leave the colon out to mean everything");
    }
    if text.len() > QUALIFIER_MAX {
        return Err("it is longer than 1024 bytes");
    }
    if text.chars().any(|c| c.is_control() || reorders(c)) {
        return Err("it holds control or text-direction characters");
    }
    if text.trim() != text {
        return Err("it starts or ends with white space");
    }
    // In a URL this is checked where its path is known.
    if form != Form::Url && text.split('/').any(|segment| segment == "..") {
        return Err("it holds a \"..\" segment");
    }
    let canonical = match form {
        Form::Path => path::canonical(text),
        Form::Url => web::canonical_url(text),
        Form::Domain => web::canonical_domain(text),
        Form::Commands => text::canonical_commands(text),
        Form::Glob => Ok(text::collapse_stars(text)),
        Form::Pair => text::canonical_pair(text),
        Form::Topic => mqtt::canonical(text),
        Form::Bare => Err("this permission takes none"),
    }?;
    if canonical.len() > QUALIFIER_MAX {
        return Err("its canonical form is longer than 1024 bytes");
    }
    Ok(canonical)
}

/// True when everything that `needed` stands for, `held` stands for too.
/// Reflexive and transitive for every form.
pub(crate) fn contains(form: Form, held: &str, needed: &str) -> bool {
    match form {
        Form::Path => path::contains(held, needed),
        Form::Url => web::url_contains(held, needed),
        Form::Domain => web::domain_contains(held, needed),
        Form::Commands => text::commands_contain(held, needed),
        Form::Glob => text::glob_contains(held, needed),
        Form::Pair => path::segments_contain(held.split('/'), needed.split('/')),
        Form::Topic => mqtt::contains(held, needed),
        Form::Bare => held == needed,
    }
}

/// What two qualifiers, neither of which contains the other, have in common.
pub(crate) enum Common {
    /// Nothing at all.
    Nothing,
    /// Exactly this.
    Exactly(String),
    /// Possibly something, but no single qualifier says what.
    Both,
}

/// See [`Common`]. `a` and `b` must be canonical and incomparable.
pub(crate) fn common(form: Form, a: &str, b: &str) -> Common {
    const WILD: [char; 3] = ['*', '+', '#'];
    let disjoint = match form {
        // Trees: two nodes, neither above the other.
        Form::Url | Form::Domain | Form::Bare => true,
        Form::Commands => {
            let both = text::commands_in_both(a, b);
            return if both.is_empty() { Common::Nothing } else { Common::Exactly(both) };
        }
        Form::Path | Form::Glob | Form::Pair | Form::Topic => {
            let fixed = |s: &str| s.split(WILD).next().unwrap_or_default().len();
            let (x, y) = (fixed(a), fixed(b));
            let shared = x.min(y);
            let literal = (x == a.len(), y == b.len());
            literal == (true, true)
                || (form == Form::Glob && (literal.0 || literal.1))
                || a.as_bytes()[..shared] != b.as_bytes()[..shared]
        }
    };
    if disjoint { Common::Nothing } else { Common::Both }
}

/// False for qualifiers such as `/`, `*` or `#` that name nothing in particular:
/// these are the bare base in disguise.
pub(crate) fn narrows(qualifier: &str) -> bool {
    qualifier.chars().any(char::is_alphanumeric)
}

/// Characters that change the order in which text is shown to a person.
fn reorders(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
