//! Power cuts, failures and freezes at every operation of scripted tool turns,
//! with creation, growth, rotation, checkpoints and a restart among them.
//!
//! `HEARTH_POWER_CUTS` says how many cuts are made (default 5,000).

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Disks, Run};
use hearth_store::sim::{Rng, SimDisk};

/// Cuts at each operation of a run.
const CUTS_EACH: u64 = 4;

fn wanted() -> u64 {
    std::env::var("HEARTH_POWER_CUTS").ok().map_or(5_000, |n| n.parse().expect("a number of cuts"))
}

type Findings = Arc<Mutex<Vec<String>>>;

/// Cuts the power before every operation of a run; what each start then finds
/// is checked. Answers how many cuts there were.
fn cut_everywhere(seed: u64, turns: u64, each: u64, without_syncs: bool) -> (u64, Vec<String>) {
    let disks = Disks::default();
    let run = Run::new(disks.clone());
    if without_syncs {
        disks.state.ignore_syncs();
    }
    let cuts = Arc::new(AtomicU64::new(0));
    let findings = Findings::default();
    let watch = {
        let (run, disks, cuts, findings) = (run.clone(), disks.clone(), cuts.clone(), findings.clone());
        Arc::new(move |n: u64, _: &SimDisk| {
            for k in 0..each {
                let mut rng = Rng(seed.wrapping_mul(1_000_003) ^ (n << 8) ^ k);
                // Before some cuts the process was killed, and nothing was lost then.
                let mut image = match k % 4 {
                    2 => disks.killed(),
                    _ => disks.power_cut(&mut rng),
                };
                if k % 4 >= 2 {
                    // The next start is cut off, or its first record is.
                    image.state.freeze_at(1 + rng.below(40));
                    common::start(&image);
                    image = image.power_cut(&mut rng);
                }
                cuts.fetch_add(1, Ordering::Relaxed);
                if let Err(what) = run.check(&image) {
                    findings.lock().unwrap().push(format!("seed {seed}, operation {n}, cut {k}: {what}"));
                }
            }
        })
    };
    disks.state.watch(watch.clone());
    disks.marker.watch(watch);
    let done = run.script(seed, turns);
    let quiet = Arc::new(|_: u64, _: &SimDisk| {});
    disks.state.watch(quiet.clone());
    disks.marker.watch(quiet);
    done.unwrap();
    let (batches, effects) = run.counts();
    assert!(batches as u64 > turns && effects > 0, "the run did something");
    let found = std::mem::take(&mut *findings.lock().unwrap());
    (cuts.load(Ordering::Relaxed), found)
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let (mut cuts, mut seed) = (0, 1);
    while cuts < wanted() {
        let (made, findings) = cut_everywhere(seed, 12, CUTS_EACH, false);
        assert!(findings.is_empty(), "{} findings, the first: {}", findings.len(), findings[0]);
        (cuts, seed) = (cuts + made, seed + 1);
    }
    println!("power_cuts {cuts} lost 0 runs {}", seed - 1);
}

/// The control: on a disk that does not honour syncs the same check must fail.
#[test]
fn without_syncs_the_check_finds_losses() {
    common::hush_redb();
    let (cuts, findings) = cut_everywhere(1, 6, CUTS_EACH, true);
    println!("control_cuts {cuts} found {}", findings.len());
    assert!(findings.len() as u64 > cuts / 4, "only {} of {cuts} cuts were found", findings.len());
}

/// Runs the script on disks of which one stops working at its `n`-th operation.
/// Answers whether the script reached its end.
fn broken_at(n: u64, freeze: bool, on_marker: bool) -> bool {
    let disks = Disks::default();
    let run = Run::new(disks.clone());
    let broken = if on_marker { &disks.marker } else { &disks.state };
    if freeze {
        broken.freeze_at(n)
    } else {
        broken.fail_at(n)
    }
    let result = run.script(3, 5);
    let mut rng = Rng(n);
    let mut images = vec![disks.killed()];
    images.extend((0..3).map(|_| disks.power_cut(&mut rng)));
    for (i, image) in images.iter().enumerate() {
        if let Err(what) = run.check(image) {
            panic!("operation {n}, freeze {freeze}, marker {on_marker}, image {i}: {what} ({result:?})");
        }
    }
    result.is_ok()
}

#[test]
fn a_disk_that_fails_or_freezes_at_any_operation_loses_nothing() {
    let mut points = 0;
    for (freeze, on_marker) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut n = 1;
        while !broken_at(n, freeze, on_marker) {
            n += 1;
        }
        points += n - 1;
        assert!(n > 2, "the disk was used");
    }
    println!("broken_disk_points {points} lost 0");
}
