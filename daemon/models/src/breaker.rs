//! A breaker for one server. Time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open it.
const THRESHOLD: u32 = 3;
const OPEN_MIN: Duration = Duration::from_secs(15);
const OPEN_MAX: Duration = Duration::from_secs(300);

/// Whether a request may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// The server is fine as far as is known.
    Yes,
    /// It was down; this one request tries whether it is back.
    Probe,
    /// Not now.
    No,
}

/// Closed at first; three failures in a row open it for 15 seconds, and each
/// failed probe doubles that up to five minutes. A success closes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Instant>,
    probing: Option<Instant>,
}

impl Breaker {
    /// Asks for a request at `now`.
    pub fn permit(&mut self, now: Instant) -> Permit {
        match self.open_until {
            None => Permit::Yes,
            Some(until) if now < until => Permit::No,
            // A probe that never reported back (it was cancelled) counts for one period.
            Some(_) if self.probing.is_some_and(|since| now < since + OPEN_MIN) => Permit::No,
            Some(_) => {
                self.probing = Some(now);
                Permit::Probe
            }
        }
    }

    /// A request was answered, be it with a refusal that is no fault of the server.
    pub fn success(&mut self) {
        *self = Self::default();
    }

    /// A request failed at `now`.
    pub fn failure(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.probing = None;
        if self.failures >= THRESHOLD {
            let doublings = (self.failures - THRESHOLD).min(8);
            self.open_until = Some(now + (OPEN_MIN * (1 << doublings)).min(OPEN_MAX));
        }
    }

    /// When an open breaker lets a probe through; `None` while it is closed.
    pub fn open_until(&self) -> Option<Instant> {
        self.open_until
    }
}

#[cfg(test)]
mod tests;
