use std::sync::Arc;

use crate::Registry;
use crate::testing::{FixedClock, call, context, failure, output};

async fn check(clock: FixedClock, args: &str, expected: Result<&str, &str>) {
    let registry = Registry::builder().clock(Arc::new(clock)).build();
    let outcome = call(&registry, &context(), "time.now", args).await;
    match expected {
        Ok(json) => {
            let expected: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(output(outcome).0, expected, "{args}");
        }
        Err(text) => {
            let failure = failure(outcome);
            assert!(failure.contains(text), "{args}: {failure}");
        }
    }
}

#[tokio::test]
async fn tells_the_time_of_home() {
    let winter = || FixedClock("2026-12-01T22:30:00.9Z", true);
    check(
        winter(),
        "{}",
        Ok(r#"{"local":"2026-12-01 23:30:00","weekday":"Tuesday","zone":"Europe/Berlin",
        "utc":"2026-12-01T22:30:00Z","synchronised":true}"#),
    )
    .await;
    check(
        FixedClock("2026-10-25T00:59:59Z", true),
        "{}",
        Ok(r#"{"local":"2026-10-25 02:59:59",
        "weekday":"Sunday","zone":"Europe/Berlin","utc":"2026-10-25T00:59:59Z","synchronised":true}"#),
    )
    .await;
    check(
        FixedClock("1970-01-01T00:00:05Z", false),
        "{}",
        Ok(r#"{"local":"1970-01-01 01:00:05",
        "weekday":"Thursday","zone":"Europe/Berlin","utc":"1970-01-01T00:00:05Z","synchronised":false,
        "note":"the clock has not been set since the start and may be wrong"}"#),
    )
    .await;
}

#[tokio::test]
async fn refuses_arguments_that_it_does_not_have() {
    check(FixedClock("2026-12-01T22:30:00Z", true), r#"{"zone":"UTC"}"#, Err("unknown field `zone`")).await;
}
