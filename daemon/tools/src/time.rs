//! `time.now`: the time, from the clock and not from the model.

use std::sync::Arc;
use std::time::Duration;

use hearth_scope::{EffectClass, Scope};
use hearth_turn::ToolError;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::json;

use crate::context::ToolContext;
use crate::port::Clock;
use crate::tool::{Done, Meta, Reach, Typed};

/// Longest name of a time zone, in bytes.
const ZONE_MAX: usize = 64;

pub(crate) struct Now {
    pub(crate) clock: Arc<dyn Clock>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Args {
    zone: Option<String>,
}

impl Typed for Now {
    type Args = Args;
    const META: Meta = Meta {
        name: "time.now",
        version: 1,
        description: "Current date, time and weekday.",
        schema: r#"{"type":"object","properties":{"zone":{"type":"string","description":"like Europe/Paris; default: home"}}}"#,
        effect: EffectClass::Read,
        timeout: Duration::from_secs(5),
        reach: Reach::Always,
    };

    fn need(&self, args: &Args) -> Result<(Vec<Scope>, String), ToolError> {
        args.zone.as_deref().map(zone).transpose()?;
        Ok((Vec::new(), "clock".into()))
    }

    async fn call(&self, args: Args, _ctx: &ToolContext) -> Result<Done, ToolError> {
        let zone = match args.zone {
            Some(name) => zone(&name)?,
            None => self.clock.zone(),
        };
        let reading = self.clock.now();
        let local = reading.wall.to_zoned_datetime(zone);
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
        Ok(Done::read(output))
    }
}

/// Finds a zone by its IANA name. The name becomes part of a path in the
/// system's zone database, so its form is checked first.
fn zone(name: &str) -> Result<TimeZone, ToolError> {
    let fits = name.len() <= ZONE_MAX
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_+-".contains(&b));
    let unknown = || ToolError::InvalidArguments("unknown time zone; use one like Europe/Paris".into());
    if !fits {
        return Err(unknown());
    }
    TimeZone::get(name).map_err(|_| unknown())
}

#[cfg(test)]
mod tests;
