//! Shorter words for what the tests do.

use muster_expr::{Absent, EvalError, Expr, Fault, Limits, Names, Type, Values};
use serde_json::{Value, json};

/// Values of a run: an input, three steps, times.
pub(crate) fn values() -> Values {
    let mut values = Values::new();
    values.set(
        "input",
        json!({
            "order": "A-1", "total": 12.5, "n": 7, "none": null, "yes": true, "when": "2026-03-01T10:30:00Z",
            "lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}, {"sku": "c", "n": 3}],
            "tags": ["x", "y"], "map": {"k": 1, "dotted.key": 2}
        }),
    );
    values.set_at(&["steps", "charge", "result"], json!({"id": "ch_1", "amount": 12.5}));
    values.set_at(&["steps", "charge", "state"], json!("succeeded"));
    values.set_absent(&["steps", "parcel", "result"], Absent::Missing("the step failed".into()));
    values.set_at(&["steps", "parcel", "state"], json!("failed"));
    values.set_absent(&["steps", "big", "result"], Absent::Truncated("only the first 64 KiB are kept".into()));
    values.set_at(&["steps", "big", "state"], json!("succeeded"));
    // 2026-03-01T22:15:30.250Z, a Sunday
    values.set_time(&["now"], 1_772_403_330_250);
    values
}

/// The names that belong to [`values`].
pub(crate) fn names() -> Names {
    let step = || {
        Type::closed([("result", Type::open([("id", Type::String)])), ("state", Type::String), ("attempts", Type::Int)])
    };
    Names::new()
        .with(
            "input",
            Type::from_schema(&json!({
                "type": "object", "additionalProperties": false,
                "properties": {
                    "order": {"type": "string"}, "total": {"type": "number"}, "n": {"type": "integer"},
                    "none": {}, "yes": {"type": "boolean"}, "when": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "map": {"type": "object"},
                    "lines": {"type": "array", "items": {
                        "type": "object", "additionalProperties": false,
                        "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}}
                    }}
                }
            })),
        )
        .with("steps", Type::closed([("charge", step()), ("parcel", step()), ("big", step())]))
        .with("now", Type::Timestamp)
}

pub(crate) fn evaluate(source: &str) -> Result<Value, EvalError> {
    evaluate_with(source, &values())
}

pub(crate) fn evaluate_with(source: &str, values: &Values) -> Result<Value, EvalError> {
    Expr::parse(source).unwrap_or_else(|fault| panic!("{source}: {fault}")).evaluate(values, &Limits::default())
}

/// The faults of a source, of its syntax or its names.
pub(crate) fn faults(source: &str) -> Vec<Fault> {
    match Expr::parse(source) {
        Ok(expr) => expr.check(&names()).err().unwrap_or_default(),
        Err(fault) => vec![fault],
    }
}

/// Each source has its value, and the checker has nothing against it.
pub(crate) fn table(rows: &[(&str, Value)]) {
    for (source, expected) in rows {
        assert_eq!(faults(source), [], "{source}");
        assert_eq!(evaluate(source).as_ref(), Ok(expected), "{source}");
    }
}

/// Each source fails with this code, and a message that says this.
pub(crate) fn failing(rows: &[(&str, &str, &str)]) {
    for (source, code, message) in rows {
        let error = evaluate(source).expect_err(source);
        assert_eq!(error.code(), *code, "{source}: {error}");
        assert!(error.to_string().contains(message), "{source}: {error}");
    }
}
