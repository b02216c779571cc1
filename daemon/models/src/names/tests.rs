use super::*;

fn names(dotted: &[&str]) -> Names {
    let tool = |name: &&str| ToolSpec {
        name: hearth_scope::ToolName::parse(name).unwrap(),
        version: 1,
        description: String::new(),
        schema: serde_json::Value::Null,
        effect: hearth_scope::EffectClass::Read,
        timeout: std::time::Duration::ZERO,
    };
    Names::of(&dotted.iter().map(tool).collect::<Vec<_>>())
}

#[test]
fn there_and_back() {
    let all = ["memory.read", "a.b_c", "a_b.c", "a_b_c", "clock"];
    let names = names(&all);
    for dotted in all {
        let wire = names.wire(dotted);
        assert!(!wire.contains('.'));
        assert_eq!(names.dotted(&wire), dotted);
    }
    assert_eq!(names.wire("memory.read"), "memory_read");
    assert_eq!(names.wire("a_b.c"), "a_b_c_2");
}

#[test]
fn other_names_stay_as_they_are() {
    let names = names(&["memory.read"]);
    assert_eq!(names.dotted("memory.read"), "memory.read");
    assert_eq!(names.dotted("memory-read"), "memory-read");
    assert_eq!(names.dotted(""), "");
    assert_eq!(names.wire("gone.tool"), "gone_tool");
}
