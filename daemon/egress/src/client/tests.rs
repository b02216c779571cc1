use super::*;

fn client(base: &str) -> Result<Client, EgressError> {
    let headers = vec![("authorization".to_owned(), SecretValue::new("Bearer canary-7"))];
    Client::for_endpoint(EndpointPolicy {
        base: Url::parse(base).unwrap(),
        connect: Duration::from_secs(2),
        headers,
    })
}

#[test]
fn the_path_cannot_leave_the_server() {
    let client = client("http://pi.lan:11434/prefix?q=1#f").unwrap();
    for (path, url) in [
        ("/api/chat", Some("http://pi.lan:11434/api/chat")),
        ("/v1/models?x=1", Some("http://pi.lan:11434/v1/models?x=1")),
        ("/a/../../b", Some("http://pi.lan:11434/b")),
        ("/@evil.example/", Some("http://pi.lan:11434/@evil.example/")),
        ("/http://evil.example/", Some("http://pi.lan:11434/http://evil.example/")),
        ("//evil.example/", None),
        ("/\\evil.example/", None),
        ("\\\\evil.example/", None),
        ("http://evil.example/", None),
        ("@evil.example/", None),
        ("", None),
        ("api", None),
        ("/\t/evil.example/", None),
    ] {
        assert_eq!(client.url(path).ok().as_ref().map(Url::as_str), url, "{path:?}");
    }
}

#[test]
fn endpoints_and_headers_that_cannot_be_used() {
    for base in
        ["ftp://pi.lan/", "file:///etc/passwd", "http://user@pi.lan/", "http://user:pw@pi.lan/", "data:x"]
    {
        let error = client(base).unwrap_err();
        assert!(matches!(error, EgressError::BadUrl(_)), "{base}: {error}");
        assert!(!error.to_string().contains("pw"));
    }
    for (name, value) in [("a b", "x"), ("key", "line\nbreak")] {
        let headers = vec![(name.to_owned(), SecretValue::new(value))];
        let base = Url::parse("http://pi.lan").unwrap();
        let error = Client::for_endpoint(EndpointPolicy { base, connect: Duration::from_secs(1), headers })
            .unwrap_err();
        assert!(!error.to_string().contains("break"), "{error}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let client = client("http://pi.lan").unwrap();
    let secret = SecretValue::new("canary-7");
    let shown = format!("{client:?} {secret:?} {:?}", secret.prefixed("Bearer "));
    assert!(!shown.contains("canary"), "{shown}");
    assert_eq!(secret.redact("a canary-7 b"), "a [secret] b");
    assert_eq!(SecretValue::new("a").redact("banana"), "banana");
    assert_eq!(secret.prefixed("Bearer ").expose(), "Bearer canary-7");
}
