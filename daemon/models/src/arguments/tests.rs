use super::*;
use serde_json::json;

fn check(value: Value, expected: Result<Value, &str>) {
    let parsed = parse_arguments(&value).map(Value::Object);
    assert_eq!(parsed, expected.map_err(str::to_owned), "{value}");
}

#[test]
fn three_shapes_are_accepted_and_nothing_else() {
    let room = json!({"room": "kitchen"});
    check(room.clone(), Ok(room.clone()));
    check(json!(r#"{"room":"kitchen"}"#), Ok(room.clone()));
    check(json!(r#""{\"room\":\"kitchen\"}""#), Ok(room.clone()));
    check(json!({}), Ok(json!({})));
    check(json!("{}"), Ok(json!({})));
    check(json!("{room:"), Err("{room:"));
    check(json!(""), Err(""));
    check(json!("kitchen"), Err("kitchen"));
    check(json!("[1]"), Err("[1]"));
    check(json!("null"), Err("null"));
    check(json!(null), Err("null"));
    check(json!([{"room": 1}]), Err(r#"[{"room":1}]"#));
    check(json!(3), Err("3"));
    // Three times encoded is once too often.
    let thrice = serde_json::to_string(&serde_json::to_string(&room.to_string()).unwrap()).unwrap();
    assert!(parse_arguments(&Value::String(thrice)).is_err());
}

#[test]
fn errors_are_short_and_depth_is_bounded() {
    assert_eq!(parse_text(&"ü".repeat(5000)).unwrap_err().chars().count(), SHOWN);
    assert!(parse_text(&format!("{{\"a\":{}", "[".repeat(100_000))).is_err());
}
