//! Repair of tool names that a small model got slightly wrong.

use crate::tool::ToolSpec;

/// The tool that was probably meant by `name`: equal but for separators and
/// case, or within a small edit distance, and the only one so close. Never a
/// tool whose effect cannot be undone.
pub(crate) fn closest<'a>(name: &str, tools: &'a [ToolSpec]) -> Option<&'a ToolSpec> {
    let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_', '.', ' ', '/'], "");
    let wanted = plain(name.trim().trim_start_matches("functions."));
    if wanted.is_empty() || wanted.len() > 64 {
        return None;
    }
    let allowed = 1 + wanted.len() / 8;
    let mut best: Option<(usize, &ToolSpec)> = None;
    let mut ties = 0;
    for tool in tools {
        let d = strsim::levenshtein(&wanted, &plain(tool.name.as_str()));
        match best {
            Some((b, _)) if d > b => {}
            Some((b, _)) if d == b => ties += 1,
            _ => {
                best = Some((d, tool));
                ties = 0;
            }
        }
    }
    best.filter(|&(d, tool)| d <= allowed && ties == 0 && tool.effect.is_read_only()).map(|(_, tool)| tool)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hearth_scope::{EffectClass, ToolName};

    use super::*;

    fn tools() -> Vec<ToolSpec> {
        let tool = |name: &str, effect| ToolSpec {
            name: ToolName::parse(name).unwrap(),
            version: 1,
            description: String::new(),
            schema: serde_json::json!({}),
            effect,
            timeout: Duration::from_secs(1),
        };
        vec![
            tool("memory.read", EffectClass::PrivateRead),
            tool("memory.write", EffectClass::Persist),
            tool("time.now", EffectClass::Read),
            tool("fs.read", EffectClass::PrivateRead),
            tool("fs.delete", EffectClass::Destroy),
        ]
    }

    #[test]
    fn repairs_near_names_of_reading_tools_only() {
        #[track_caller]
        fn check(name: &str, expect: Option<&str>) {
            let tools = tools();
            let found = closest(name, &tools).map(|t| t.name.as_str());
            assert_eq!(found, expect, "{name}");
        }
        check("memory-read", Some("memory.read"));
        check("memoryRead", Some("memory.read"));
        check("functions.memory_read", Some("memory.read"));
        check("memory_reads", Some("memory.read"));
        check("time", None);
        check("timenow", Some("time.now"));
        check("memory_wrote", None);
        check("fs-delete", None);
        check("web_search", None);
        check("", None);
        check(&"x".repeat(5000), None);
    }
}
