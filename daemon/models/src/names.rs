//! Tool names on the wire: providers allow no dots.

use hearth_turn::ToolSpec;

/// The names of the tools on offer, dotted and as they go over the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(Vec<(String, String)>);

impl Names {
    /// Maps `memory.read` to `memory_read`. Where two tools would get the same
    /// wire name, the later one gets a number at its end.
    pub fn of(tools: &[ToolSpec]) -> Self {
        let mut pairs: Vec<(String, String)> = Vec::with_capacity(tools.len());
        for tool in tools {
            let dotted = tool.name.as_str();
            let plain = flat(dotted);
            let wire = std::iter::once(plain.clone())
                .chain((2..).map(|n| format!("{plain}_{n}")))
                .find(|w| pairs.iter().all(|(taken, _)| taken != w))
                .unwrap_or(plain);
            pairs.push((wire, dotted.to_owned()));
        }
        Self(pairs)
    }

    /// The wire name of a tool; tools that are not on offer (history) are mapped the plain way.
    pub fn wire(&self, dotted: &str) -> String {
        let found = self.0.iter().find(|(_, d)| d == dotted);
        found.map_or_else(|| flat(dotted), |(wire, _)| wire.clone())
    }

    /// The dotted name of an offered tool that the model named either way, else
    /// the name as the model wrote it.
    pub fn dotted(&self, name: &str) -> String {
        self.known(name).unwrap_or(name).to_owned()
    }

    /// The dotted name, where it is an offered tool's.
    pub fn known(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(wire, dotted)| wire == name || dotted == name).map(|(_, d)| d.as_str())
    }
}

fn flat(dotted: &str) -> String {
    dotted.replace('.', "_")
}

#[cfg(test)]
mod tests;
