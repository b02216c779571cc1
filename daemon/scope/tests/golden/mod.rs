//! Golden files below `tests/goldens` of the workspace; `UPDATE=1` rewrites them.

use std::path::Path;

/// Compares `actual` with the golden file `name`.
pub(crate) fn check(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (n, (want, have)) in expected.lines().zip(actual.lines()).enumerate() {
        assert_eq!(want, have, "{name}, line {}; UPDATE=1 accepts the change", n + 1);
    }
    assert_eq!(expected, actual, "{name}; UPDATE=1 accepts the change");
}
