//! The only place that reads clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hearth_audit::Stamp;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::time::{ClockId, clock_gettime};
use ulid::Ulid;

/// A wall clock that shows an earlier time than this was never set: the daemon
/// did not exist then (2026-11-01 00:00 UTC).
const FLOOR_MS: u64 = 1_793_491_200_000;

/// The clocks of the machine.
#[derive(Debug, Clone)]
pub struct SystemClock {
    boot: Ulid,
    zone: TimeZone,
    last_id: Arc<AtomicU64>,
}

impl SystemClock {
    /// Reads the identity of this boot; where the kernel gives none, the daemon's
    /// own start counts as a boot and `fallback` is its identity.
    pub fn new(zone: TimeZone, fallback: [u8; 16]) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok())
            .unwrap_or(u128::from_be_bytes(fallback));
        Self { boot: Ulid(boot), zone, last_id: Arc::default() }
    }

    /// Time since boot, sleep included.
    pub fn since_boot(&self) -> Duration {
        let t = clock_gettime(ClockId::Boottime);
        Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
    }

    /// Milliseconds since 1970 (UTC), or `None` while the clock is certainly unset.
    pub fn wall_ms(&self) -> Option<u64> {
        u64::try_from(wall().as_millisecond()).ok().filter(|&ms| ms >= FLOOR_MS)
    }

    /// The time for an audit entry.
    pub fn stamp(&self) -> Stamp {
        let mono_ns = u64::try_from(self.since_boot().as_nanos()).unwrap_or(u64::MAX);
        Stamp { boot: self.boot, mono_ns, wall_ms: self.wall_ms() }
    }

    /// A new identity, ordered by time where the clock is set. Of two made in the
    /// same millisecond the later one is larger in its upper 68 bits.
    pub fn new_id(&self) -> Ulid {
        let mut random = [0; 16];
        fill(&mut random);
        let random = u128::from_be_bytes(random);
        let Some(ms) = self.wall_ms() else { return Ulid::from_parts(0, random) };
        let wanted = (ms << 20) | (random >> 108) as u64;
        let last = self
            .last_id
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(wanted.max(last + 1)));
        let place = wanted.max(last.unwrap_or(0) + 1);
        Ulid((u128::from(place) << 60) | (random & ((1 << 60) - 1)))
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the only place that reads the wall clock")]
fn wall() -> Timestamp {
    Timestamp::now()
}

/// Fills `bytes` from the operating system's random source.
pub fn fill(bytes: &mut [u8]) {
    // Without randomness there are no keys and no nonces: nothing may go on.
    getrandom::fill(bytes).expect("the operating system gives randomness");
}

impl hearth_tools::Clock for SystemClock {
    fn now(&self) -> hearth_tools::Reading {
        hearth_tools::Reading { wall: wall(), synchronised: self.wall_ms().is_some() }
    }

    fn zone(&self) -> TimeZone {
        self.zone.clone()
    }
}
