//! Adds to the OpenAPI document what requests may hold beyond the types of their fields, once for all operations.
//!
//! Knows: the bounds of parameters by their names, the optional bodies, and that no request accepts unknown fields.
//! Leaves to others: rules between fields, and rules for text that a pattern expresses badly; the descriptions state
//! those.

use std::collections::BTreeSet;

use serde_json::{Value, json};

const SCHEMAS: &str = "#/components/schemas/";
/// Bodies that may be left out.
const OPTIONAL: [&str; 3] = ["CancelRequest", "RetryRequest", "RotateRequest"];

/// Adds the bounds to a whole document.
pub(crate) fn add(document: &mut Value) {
    let (mut asked, mut answered) = (BTreeSet::new(), BTreeSet::new());
    let operations = document["paths"].as_object_mut().into_iter().flatten();
    for (_, operation) in operations.flat_map(|(_, methods)| methods.as_object_mut().into_iter().flatten()) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            bound(parameter);
        }
        named(&operation["responses"], &mut answered);
        if operation.get("requestBody").is_some() {
            named(&operation["requestBody"], &mut asked);
            let body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str();
            let optional = body.is_some_and(|name| OPTIONAL.contains(&name.trim_start_matches(SCHEMAS)));
            operation["requestBody"]["required"] = json!(!optional);
        }
    }
    let (asked, answered) = (reached(document, asked), reached(document, answered));
    // Responses may get new fields. Requests may not, unless their schema is part of a larger one.
    let mut parts = BTreeSet::new();
    let schemas = document["components"]["schemas"].as_object().into_iter().flatten();
    schemas.for_each(|(_, schema)| named(&schema["allOf"], &mut parts));
    for name in asked.difference(&answered).filter(|name| !parts.contains(*name)) {
        let schema = &mut document["components"]["schemas"][name];
        if schema["properties"].is_object() {
            schema["additionalProperties"] = json!(false);
        }
    }
}

/// Bounds of a parameter, by its name.
fn bound(parameter: &mut Value) {
    let bounds = match parameter["name"].as_str().unwrap_or_default() {
        "limit" => json!({"minimum": 1, "maximum": 500}),
        "wait_ms" => json!({"minimum": 0, "maximum": 30_000}),
        "Idempotency-Key" => json!({"minLength": 1, "maxLength": 256, "pattern": "^[!#-~]+$"}),
        "If-Match" => json!({"pattern": "^(\\*|\"[0-9]{1,9}\")$"}),
        name if name.ends_with("_after") || name.ends_with("_before") => json!({"format": "date-time"}),
        "after" | "before" => json!({"format": "date-time"}),
        _ => return,
    };
    let bounds = bounds.as_object().into_iter().flatten();
    bounds.for_each(|(name, value)| parameter["schema"][name] = value.clone());
}

/// Collects the names of the schemas that a part of the document refers to.
fn named(part: &Value, found: &mut BTreeSet<String>) {
    match part {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix(SCHEMAS));
            found.extend(name.map(str::to_owned));
            fields.values().for_each(|field| named(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| named(item, found)),
        _ => {}
    }
}

/// These schemas, and all schemas that they refer to.
fn reached(document: &Value, mut known: BTreeSet<String>) -> BTreeSet<String> {
    loop {
        let mut more = known.clone();
        known.iter().for_each(|name| named(&document["components"]["schemas"][name], &mut more));
        if more.len() == known.len() {
            return known;
        }
        known = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_take_no_other_fields_and_answers_may_grow() {
        let document: Value = serde_json::from_slice(&crate::routes::document(None)).unwrap();
        let schemas = &document["components"]["schemas"];
        for closed in ["KeyRequest", "CancelRequest", "BatchRequest"] {
            assert_eq!(schemas[closed]["additionalProperties"], json!(false), "{closed}");
        }
        for open in ["Job", "Problem", "NewKey"] {
            assert_eq!(schemas[open].get("additionalProperties"), None, "{open}");
        }
        assert_eq!(document["paths"]["/api/v1/jobs/{id}/cancel"]["post"]["requestBody"]["required"], json!(false));
        assert_eq!(document["paths"]["/api/v1/jobs"]["post"]["requestBody"]["required"], json!(true));
        let parameters = document["paths"]["/api/v1/jobs"]["get"]["parameters"].as_array().unwrap();
        let limit = parameters.iter().find(|parameter| parameter["name"] == "limit").unwrap();
        assert_eq!((&limit["schema"]["minimum"], &limit["schema"]["maximum"]), (&json!(1), &json!(500)));
    }
}
