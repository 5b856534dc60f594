//! Adds to the OpenAPI document the refusals that every operation may answer with, once for all operations.
//!
//! Knows: which refusals follow from what an operation takes: a key, a body, a name in its path, parameters.
//! Promises: the document declares every refusal that the gateway sends, with the content type
//! `application/problem+json`. Leaves to others: refusals that are specific to a route (its description).

use http::Method;
use serde_json::{Map, Value, json};

use crate::{
    access::{Access, needed},
    endpoints,
};

const PROBLEM: &str = "application/problem+json";

/// Adds the refusals to a whole document.
pub(crate) fn declare(document: &mut Value) {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap_or_default();
            let access = needed(endpoints::operation(&method, Some(path)));
            if access == Access::Open {
                operation["security"] = json!([]);
            }
            operation["operationId"] = name_of(&method, path).into();
            let refusals = refusals(access, path, operation);
            if let Some(responses) = operation["responses"].as_object_mut() {
                add(responses, &refusals);
            }
        }
    }
}

/// An operation id that is unique: the names of the handler functions repeat from resource to resource.
fn name_of(method: &Method, path: &str) -> String {
    let words = path.split(['/', '{', '}', '.']).filter(|word| !matches!(*word, "" | "api" | "v1"));
    let mut name = words.fold(method.as_str().to_lowercase(), |name, word| name + "_" + word);
    if path == "/" {
        name.push_str("_root");
    }
    name
}

/// The refusals of an operation that do not depend on what it does.
fn refusals(access: Access, path: &str, operation: &Value) -> Vec<(u16, &'static str)> {
    let mut all = vec![
        (400, "The head names two lengths of the body, or the body is not JSON"),
        (500, "A fault of ours: `internal`, or a record that is damaged: `job_unreadable`"),
        (503, "Overloaded, or a store is away; `Retry-After` says when to come back"),
    ];
    if access != Access::Open {
        all.push((401, "No key, or one that is not known"));
        all.push((403, "The key may not do this"));
        all.push((422, "A field, parameter or header has a value that it may not have"));
        all.push((429, "Over the tenant's rate; `Retry-After` says when to come back"));
    }
    if path.contains('{') {
        all.push((404, "No such thing, or not yours"));
    }
    if operation.get("requestBody").is_some() {
        all.push((413, "The body is too large"));
        all.push((415, "The body is not plain JSON, by its declared type or encoding"));
    }
    all
}

fn add(responses: &mut Map<String, Value>, refusals: &[(u16, &str)]) {
    // Each status gets its own entry below.
    responses.remove("4XX");
    for response in responses.values_mut() {
        let Some(content) = response.get_mut("content").and_then(Value::as_object_mut) else { continue };
        let is_problem = |content: &Value| content["schema"]["$ref"] == "#/components/schemas/Problem";
        if content.get("application/json").is_some_and(is_problem)
            && let Some(problem) = content.remove("application/json")
        {
            content.insert(PROBLEM.to_owned(), problem);
        }
    }
    for (status, description) in refusals {
        responses.entry(status.to_string()).or_insert_with(|| {
            json!({"description": description, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}})
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_declares_what_it_refuses_as_it_is_sent() {
        let document: Value = serde_json::from_slice(&crate::routes::document(None)).unwrap();
        assert!(!document.to_string().contains(":null"), "what is not there is left out");
        let (mut operations, mut names) = (0, std::collections::BTreeSet::new());
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                operations += 1;
                assert!(
                    names.insert(operation["operationId"].as_str().unwrap()),
                    "a second {}",
                    operation["operationId"]
                );
                let responses = operation["responses"].as_object().unwrap();
                for (status, response) in responses {
                    let content = &response["content"];
                    // A replica that is not ready answers with a body of its own format.
                    let unready = path == "/readyz" && status == "503";
                    let is_refusal = status.starts_with(['4', '5']) && !unready;
                    let refusal = &content[PROBLEM]["schema"]["$ref"];
                    assert_eq!(
                        *refusal == "#/components/schemas/Problem",
                        is_refusal,
                        "{method} {path} {status}: {content}"
                    );
                    let plain = content["application/json"].to_string();
                    assert!(!plain.contains("schemas/Problem\""), "{method} {path} {status}: {content}");
                }
                assert!(responses.contains_key("400"), "{method} {path}");
                assert_eq!(responses.contains_key("404"), path.contains('{'), "{method} {path}");
                assert_eq!(responses.contains_key("415"), operation.get("requestBody").is_some(), "{method} {path}");
                let open = operation["security"] == json!([]);
                assert_eq!(responses.contains_key("401"), !open, "{method} {path}");
            }
        }
        assert_eq!(operations, endpoints::HTTP.len());
    }
}
