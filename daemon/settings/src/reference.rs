//! The reference page and the example file, made from the declarations.

use std::fmt::Write as _;

use crate::layers::variable;
use crate::sections::SECTIONS;
use crate::spec::{Default, SectionSpec};

fn header(section: &SectionSpec) -> String {
    let (open, close) = if section.rows > 0 { ("[[", "]]") } else { ("[", "]") };
    format!("{open}{}{close}", section.path)
}

fn joined(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// The reference page of all settings, as Markdown.
pub fn reference() -> String {
    let mut page = String::from(INTRODUCTION);
    for section in SECTIONS {
        let _ = write!(page, "\n## `{}`\n\n{}\n", header(section), joined(section.about));
        if section.rows > 0 {
            let _ = writeln!(page, "\nAt most {} rows.", section.rows);
        }
        for spec in section.keys {
            let key = match section.rows {
                0 => format!("{}.{}", section.path, spec.name),
                _ => format!("{}.1.{}", section.path, spec.name),
            };
            let default = match spec.default {
                Default::Set(_) if section.required.contains(&spec.name) => "required".to_owned(),
                Default::Set(text) => format!("default `{text}`"),
                Default::Unset { example } => format!("unset; for example `{example}`"),
            };
            let _ = write!(
                page,
                "\n### `{}`\n\n{}\n\n- {}\n- {}\n- `{}`\n",
                spec.name,
                joined(spec.doc),
                capitalised(&spec.kind.words()),
                capitalised(&default),
                variable(&key),
            );
        }
    }
    page
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

const INTRODUCTION: &str = "\
# Settings

<!-- Made from the declarations in daemon/settings; `UPDATE=1 cargo test -p hearth-settings` rewrites it. -->

Hearth reads one TOML file: the one named with `--config`, else by `HEARTH_CONFIG`, else
`/etc/hearth/hearth.toml`, which may be missing. Each value comes from the last of these that sets it:

1. the default;
2. the file (at most 256 KiB, not writable by everybody);
3. the environment variable given with each key. Lists are separated by commas, rows of repeated
   tables are numbered from 1 without gaps.

`hearth config show` prints every value with where it came from. `hearth config check` lists all
problems at once, each with its line. An unknown key stops the daemon; an unknown `HEARTH_...`
variable only makes it warn.

**Secrets** are never written into the file or the environment. A setting names where one lies:
`{ file = \"/path\" }` (in the environment `file:/path`), a regular file that group and others cannot
read, or `{ credential = \"name\" }` (`credential:name`), a file in `$CREDENTIALS_DIRECTORY`, which
systemd fills by `LoadCredential=` or `LoadCredentialEncrypted=`. Exactly one source is allowed.
";

/// A configuration file that lists every key, all commented out.
pub fn example() -> String {
    let mut file = String::from(
        "# Configuration of Hearth. Every setting is listed with its default and commented out:\n\
         # remove the first \"#\" of a line to change it. Lines with \"# \" are explanations.\n\
         # docs/manual/settings.md has the ranges; `hearth config check` finds mistakes.\n",
    );
    for section in SECTIONS {
        file.push('\n');
        for line in section.about {
            let _ = writeln!(file, "# {}", line.trim());
        }
        // An empty plain table changes nothing; a row would.
        let mark = if section.rows > 0 { "#" } else { "" };
        let _ = writeln!(file, "{mark}{}", header(section));
        for spec in section.keys {
            for line in spec.doc {
                let _ = writeln!(file, "# {}", line.trim());
            }
            let _ = writeln!(file, "#{} = {}", spec.name, spec.default.example());
        }
    }
    file
}
