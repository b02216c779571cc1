use super::*;

fn provider(url: &str, wire: Wire) -> Provider {
    Provider::new("p", wire, Url::parse(url).unwrap(), "m")
}

#[test]
fn places() {
    for (url, place) in [
        ("http://127.0.0.1:11434", Place::Local),
        ("http://localhost", Place::Local),
        ("http://[::1]:8080", Place::Local),
        ("http://192.168.1.7", Place::Local),
        ("http://[fd00::7]", Place::Local),
        ("http://nas:11434", Place::Local),
        ("http://nas.local", Place::Local),
        ("http://ollama.home.arpa", Place::Local),
        ("https://api.example.com", Place::Remote),
        ("https://8.8.8.8", Place::Remote),
        ("https://notlocalhost.com", Place::Remote),
        ("https://local.example.com", Place::Remote),
        ("http://100.64.0.1", Place::Remote),
        ("http://[2001:db8::1]", Place::Remote),
    ] {
        assert_eq!(provider(url, Wire::Ollama).place, place, "{url}");
    }
}

#[test]
fn paths() {
    for (url, route, path) in [
        ("http://h", "/v1/messages", "/v1/messages"),
        ("http://h/", "/v1/messages", "/v1/messages"),
        ("http://h/v1", "/v1/messages", "/v1/messages"),
        ("http://h/v1/", "/v1/messages", "/v1/messages"),
        ("http://h/api/v1", "/v1/models", "/api/v1/models"),
        ("http://h/ollama", "/api/chat", "/ollama/api/chat"),
    ] {
        assert_eq!(provider(url, Wire::OpenAi).path(route), path, "{url}");
    }
}

#[test]
fn keys_are_sent_and_not_shown() {
    for (wire, name, value) in [
        (Wire::OpenAi, "authorization", "Bearer canary"),
        (Wire::Ollama, "authorization", "Bearer canary"),
        (Wire::Anthropic, "x-api-key", "canary"),
    ] {
        let mut provider = provider("https://h", wire);
        provider.api_key = Some(SecretValue::new("canary"));
        let policy = provider.policy();
        assert_eq!(policy.headers[0].0, name);
        assert_eq!(policy.headers[0].1.expose(), value);
        assert!(!format!("{provider:?}{policy:?}").contains("canary"));
    }
}
