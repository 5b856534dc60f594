//! Adds to the OpenAPI document what requests may hold beyond the types of their fields, once for all operations.
//!
//! Knows: the bounds of parameters by their names, the optional bodies, and that no request accepts unknown fields.
//! Promises: a schema that both requests and responses use has a copy for requests, named `<Name>Input`, because
//! responses may get new fields and requests may not. Leaves to others: the bounds of the fields of bodies (`fields`).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::fields;
use crate::limits::{PAGE, VERSION, WAIT_MS};

const SCHEMAS: &str = "#/components/schemas/";
/// The end of the names of schemas that only requests use.
const INPUT: &str = "Input";
/// Where a request body has its schema.
const BODY: &str = "/content/application~1json/schema";
/// Bodies that may be left out.
const OPTIONAL: [&str; 7] = [
    "CancelRequest",
    "RetryRequest",
    "RotateRequest",
    "RunRequest",
    "RunCancelRequest",
    "RunSignal",
    "StepCompleteRequest",
];

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
            let body = operation["requestBody"].pointer(BODY).and_then(|schema| schema["$ref"].as_str());
            let optional = body.is_some_and(|name| OPTIONAL.contains(&name.trim_start_matches(SCHEMAS)));
            operation["requestBody"]["required"] = json!(!optional);
        }
    }
    let (asked, answered) = (reached(document, asked), reached(document, answered));
    separate(document, &asked, &answered);
    let own = |name: &str| if answered.contains(name) { format!("{name}{INPUT}") } else { name.to_owned() };
    // Before the schemas are flattened, for the parts of a composed schema; and after that, for its own fields.
    fields::add(document, own);
    for name in asked.iter().map(|name| own(name)) {
        flatten(document, &name);
        let schema = &mut document["components"]["schemas"][&name];
        if schema["properties"].is_object() {
            schema["additionalProperties"] = json!(false);
        }
    }
    fields::add(document, own);
    if let Some(schema) = document["paths"]["/api/v1/config"]["put"]["requestBody"].pointer_mut(BODY) {
        let live = crate::SETTINGS.iter().filter(|setting| setting.live).map(|setting| setting.key);
        schema["propertyNames"] = json!({"enum": live.collect::<Vec<_>>()});
    }
}

/// Gives requests their own copies of the schemas that they share with responses.
fn separate(document: &mut Value, asked: &BTreeSet<String>, answered: &BTreeSet<String>) {
    let shared: BTreeSet<&String> = asked.intersection(answered).collect();
    let schemas = &mut document["components"]["schemas"];
    for name in &shared {
        schemas[format!("{name}{INPUT}")] = schemas[name.as_str()].clone();
    }
    let copies = shared.iter().map(|name| format!("{name}{INPUT}"));
    for name in copies.chain(asked.difference(answered).cloned()) {
        rename(&mut schemas[name], &shared);
    }
    let operations = document["paths"].as_object_mut().into_iter().flatten();
    for (_, operation) in operations.flat_map(|(_, methods)| methods.as_object_mut().into_iter().flatten()) {
        if let Some(body) = operation.get_mut("requestBody") {
            rename(body, &shared);
        }
    }
}

/// Makes references to these schemas lead to their copies.
fn rename(part: &mut Value, shared: &BTreeSet<&String>) {
    match part {
        Value::Object(fields) => {
            if let Some(Value::String(to)) = fields.get_mut("$ref")
                && to.strip_prefix(SCHEMAS).is_some_and(|name| shared.iter().any(|known| *known == name))
            {
                to.push_str(INPUT);
            }
            fields.values_mut().for_each(|field| rename(field, shared));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, shared)),
        _ => {}
    }
}

/// Makes one schema of a schema that is composed by `allOf`: only then does `additionalProperties` close it.
fn flatten(document: &mut Value, name: &str) {
    let Some(parts) = document["components"]["schemas"][name]["allOf"].as_array().cloned() else { return };
    let (mut properties, mut required) = (serde_json::Map::new(), Vec::new());
    for part in parts {
        let part = match part["$ref"].as_str().and_then(|to| to.strip_prefix(SCHEMAS)) {
            Some(other) => document["components"]["schemas"][other].clone(),
            None => part,
        };
        properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
        required.extend(part["required"].as_array().cloned().unwrap_or_default());
    }
    let schema = &mut document["components"]["schemas"][name];
    *schema =
        json!({"type": "object", "description": schema["description"], "properties": properties, "required": required});
}

/// `*`, or entity tags: a tag that is no version of ours matches none.
const IF_MATCH: &str = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#;

/// Bounds of a parameter, by its name.
fn bound(parameter: &mut Value) {
    let bounds = match parameter["name"].as_str().unwrap_or_default() {
        "limit" => json!({"minimum": PAGE.start(), "maximum": PAGE.end()}),
        "version" => json!({"minimum": VERSION.start(), "maximum": VERSION.end()}),
        "format" => json!({"enum": ["svg", "mermaid"]}),
        "wait_ms" => json!({"minimum": WAIT_MS.start(), "maximum": WAIT_MS.end()}),
        "Idempotency-Key" => json!({"pattern": fields::IDEMPOTENCY_KEY}),
        "If-Match" => json!({"pattern": IF_MATCH}),
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
        for closed in
            ["KeyRequest", "CancelRequest", "BatchRequest", "Submit", "BatchItem", "RetryInput", "BulkFilterInput"]
        {
            assert_eq!(schemas[closed]["additionalProperties"], json!(false), "{closed}");
        }
        for open in ["Job", "Problem", "NewKey", "Retry", "BulkFilter"] {
            assert_eq!(schemas[open].get("additionalProperties"), None, "{open}");
        }
        assert_eq!(document["paths"]["/api/v1/jobs/{id}/cancel"]["post"]["requestBody"]["required"], json!(false));
        assert_eq!(document["paths"]["/api/v1/jobs"]["post"]["requestBody"]["required"], json!(true));
        let parameters = document["paths"]["/api/v1/jobs"]["get"]["parameters"].as_array().unwrap();
        let limit = parameters.iter().find(|parameter| parameter["name"] == "limit").unwrap();
        assert_eq!((&limit["schema"]["minimum"], &limit["schema"]["maximum"]), (&json!(1), &json!(500)));
    }
}
