//! What an expression reads, before it runs.

use muster_expr::Expr;

#[test]
fn reads_are_the_longest_paths_that_are_known() {
    for (source, reads) in [
        ("1 + 1", vec![]),
        ("input.order", vec!["input.order"]),
        ("input.order == steps.charge.result.id", vec!["input.order", "steps.charge.result.id"]),
        ("input.order == input", vec!["input"]),
        ("input.a.b + input.a + input.a.c", vec!["input.a"]),
        ("steps['charge'].result['id']", vec!["steps.charge.result.id"]),
        ("input.lines[0].sku", vec!["input.lines"]),
        ("input.map[input.key].x", vec!["input.key", "input.map"]),
        ("has(steps.charge.result)", vec!["steps.charge.result"]),
        ("has(input.a).b", vec!["input.a"]),
        ("input.lines.all(l, l.n > input.least)", vec!["input.least", "input.lines"]),
        ("[1].map(input, input.x + .input.y)", vec!["input.y"]),
        ("size(input.a) + size(run.labels.b)", vec!["input.a", "run.labels.b"]),
        ("now.getHours(input.zone)", vec!["input.zone", "now"]),
        ("input.order.matches('a')", vec!["input.order"]),
        ("{'a': input.x}.a", vec!["input.x"]),
    ] {
        let expr = Expr::parse(source).expect(source);
        let found: Vec<_> = expr.reads().paths().map(|path| path.join(".")).collect();
        assert_eq!(found, reads, "{source}");
    }
}

#[test]
fn reads_can_be_asked() {
    let expr = Expr::parse("steps.charge.result.id == input.x").expect("an expression");
    let reads = expr.reads();
    assert_eq!(reads.names().collect::<Vec<_>>(), ["input", "steps"]);
    assert!(reads.touches(&["steps"]) && reads.touches(&["steps", "charge", "result", "id", "more"]));
    assert!(!reads.touches(&["steps", "other"]) && !reads.touches(&["now"]));
    assert!(!reads.is_empty());
}
