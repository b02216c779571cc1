//! What the daemon does for itself beside the turns.

use std::sync::Arc;
use std::time::Duration;

use hearth_audit::Kind;
use hearth_store::{Batch, Store, StoreError, outbox};

use crate::clock::SystemClock;
use crate::runtime::gateway::Desk;
use crate::runtime::ports::blocking;

/// Quiet time after which the index is committed.
const IDLE: Duration = Duration::from_secs(30);
/// Answers are kept this long for whoever asks again with the same identity.
const KEPT: Duration = Duration::from_secs(30 * 86_400);
/// Answers that are forgotten at once.
const PRUNED: usize = 256;
/// Time between two looks at the wall clock.
const CLOCK_WATCH: Duration = Duration::from_secs(60);
/// A wall clock that moved this far against the monotonic one was set; less is
/// the steering of a time service.
const CLOCK_STEP_MS: u64 = 2_000;

/// Forgets old answers and commits the index when nothing has happened for a
/// while: the index is behind the journal until then.
pub async fn when_idle(desk: Arc<Desk>, clock: SystemClock) {
    loop {
        desk.activity.notified().await;
        while tokio::time::timeout(IDLE, desk.activity.notified()).await.is_ok() {}
        let store = desk.store();
        let result = match prune(store, &clock).await {
            Ok(()) => store.checkpoint().await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {}
            Err(StoreError::Closed) => return,
            Err(error) => log::error!("the index could not be committed: {error}"),
        }
    }
}

async fn prune(store: &Store, clock: &SystemClock) -> Result<(), StoreError> {
    // Without a clock nothing is known to be old.
    let Some(now) = clock.wall_ms() else { return Ok(()) };
    let before = now.saturating_sub(u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX));
    let reading = store.clone();
    let writes = blocking(move || outbox::prune(&reading, before, PRUNED)).await?;
    if writes.is_empty() { Ok(()) } else { store.append(Batch::new().put(writes)).await }
}

/// Records when the wall clock is set, so that times in the log can be understood.
pub async fn watch_clock(store: Store, clock: SystemClock) {
    let mut before = offset(&clock);
    loop {
        tokio::time::sleep(CLOCK_WATCH).await;
        let now = offset(&clock);
        if let Some(delta_ms) = step(before, now) {
            log::info!("the clock was set by {delta_ms} ms");
            match store.append(Batch::new().audit(Kind::ClockStep { delta_ms })).await {
                Err(StoreError::Closed) => return,
                Err(error) => log::error!("a change of the clock could not be recorded: {error}"),
                Ok(()) => {}
            }
        }
        before = now;
    }
}

/// How far the wall clock is ahead of the time since boot, in milliseconds;
/// `None` while it is not set.
fn offset(clock: &SystemClock) -> Option<i64> {
    let wall = i64::try_from(clock.wall_ms()?).ok()?;
    wall.checked_sub(i64::try_from(clock.since_boot().as_millis()).ok()?)
}

/// By how much the clock was set between two looks, if it was. Setting it for the
/// first time counts as no step: entries before it have no wall time.
fn step(before: Option<i64>, now: Option<i64>) -> Option<i64> {
    let delta = now?.checked_sub(before?)?;
    (delta.unsigned_abs() >= CLOCK_STEP_MS).then_some(delta)
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn only_a_clock_that_was_set_is_a_step() {
        #[track_caller]
        fn check(before: Option<i64>, now: Option<i64>, expected: Option<i64>) {
            assert_eq!(step(before, now), expected);
        }
        check(Some(0), Some(0), None);
        check(Some(0), Some(1_999), None);
        check(Some(0), Some(2_000), Some(2_000));
        check(Some(5_000), Some(-5_000), Some(-10_000));
        check(None, Some(5_000), None);
        check(Some(5_000), None, None);
        check(Some(i64::MIN), Some(i64::MAX), None);
    }
}
