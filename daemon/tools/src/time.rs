//! `time.now`: the time, from the clock and not from the model.

use std::sync::Arc;
use std::time::Duration;

use hearth_scope::{EffectClass, Label, Scope};
use hearth_turn::ToolError;
use serde::Deserialize;
use serde_json::json;

use crate::context::ToolContext;
use crate::port::Clock;
use crate::tool::{Done, Meta, Reach, Typed};

pub(crate) struct Now {
    pub(crate) clock: Arc<dyn Clock>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Args {}

impl Typed for Now {
    type Args = Args;
    const META: Meta = Meta {
        name: "time.now",
        version: 1,
        description: "Current date, time and weekday.",
        schema: r#"{"type":"object","properties":{}}"#,
        effect: EffectClass::Read,
        timeout: Duration::from_secs(5),
        reach: Reach::Always,
    };

    fn need(&self, _args: &Args) -> Result<(Vec<Scope>, String), ToolError> {
        Ok((Vec::new(), "clock".into()))
    }

    async fn call(&self, _args: Args, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let reading = self.clock.now();
        let local = reading.wall.to_zoned_datetime(self.clock.zone());
        let mut output = json!({
            "local": local.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            "weekday": local.strftime("%A").to_string(),
            "zone": local.time_zone().iana_name().map_or_else(|| local.offset().to_string(), str::to_owned),
            "utc": reading.wall.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "synchronised": reading.synchronised,
        });
        if !reading.synchronised {
            output["note"] = "the clock has not been set since the start and may be wrong".into();
        }
        Ok(Done::read(output, Label::NEUTRAL))
    }
}

#[cfg(test)]
mod tests;
