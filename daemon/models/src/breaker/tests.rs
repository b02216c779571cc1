use super::*;

#[test]
fn opens_probes_and_closes() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut b = Breaker::default();
    b.failure(at(0));
    b.failure(at(0));
    assert_eq!(b.permit(at(0)), Permit::Yes);
    b.failure(at(0));
    assert_eq!(b.permit(at(14)), Permit::No);
    assert_eq!(b.permit(at(15)), Permit::Probe);
    assert_eq!(b.permit(at(16)), Permit::No, "one probe at a time");
    assert_eq!(b.permit(at(31)), Permit::Probe, "a lost probe is replaced");
    b.failure(at(31));
    assert_eq!(b.permit(at(60)), Permit::No);
    assert_eq!(b.permit(at(61)), Permit::Probe);
    b.success();
    assert_eq!(b.permit(at(61)), Permit::Yes);
    assert_eq!(b, Breaker::default());
}

#[test]
fn the_rest_is_never_longer_than_five_minutes() {
    let now = Instant::now();
    let mut b = Breaker::default();
    for _ in 0..1000 {
        b.failure(now);
    }
    assert_eq!(b.permit(now + OPEN_MAX), Permit::Probe);
}

#[test]
fn a_success_in_between_starts_the_count_anew() {
    let now = Instant::now();
    let mut b = Breaker::default();
    for _ in 0..10 {
        b.failure(now);
        b.failure(now);
        b.success();
    }
    assert_eq!(b.permit(now), Permit::Yes);
}
