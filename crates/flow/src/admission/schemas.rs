//! Payload schemas: reads the JSON Schema of a topic, and checks payloads against it.
//!
//! Knows: which JSON Schemas are accepted, and the maximum cost of a check. Promises: nothing is ever fetched: a
//! reference leads into the same schema or is refused. A schema that refers to itself is refused too, because its
//! cost has no bound. Patterns run in linear time. A schema is compiled once per version of its topic's settings. A
//! check that takes longer than a moment runs outside the request tasks, a few at a time, and is answered within
//! [`PATIENCE`]. Fault messages do not repeat the payload. Leaves to others: access, storing the schema (`settings`).

mod cost;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use jsonschema::{PatternOptions, ValidationError, Validator};
use muster_domain::{Tenant, Topic};
use muster_store::TopicRecord;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    bounds::depth,
    refusal::{Refusal, SchemaFault},
};

/// The most bytes of a schema.
const MOST_BYTES: usize = 64 * 1024;
/// The greatest nesting depth of a schema.
const MOST_DEPTH: usize = 32;
/// The most bytes that a compiled pattern may take.
const MOST_PATTERN: usize = 256 * 1024;
/// The greatest product of the parts of a schema and the parts of a payload.
const MOST_WORK: u64 = 50_000_000;
/// Checks up to this cost run in the request's task: they take well below a millisecond.
const AT_ONCE: u64 = 20_000;
/// How many costlier checks run at one time.
const BESIDE: usize = 2;
/// How long a request waits for its check.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most compiled schemas that are kept.
const MOST_KEPT: usize = 1_000;
/// The most bytes of one fault message.
const MOST_WORDS: usize = 500;
/// The most faults that are named.
const MOST_FAULTS: usize = 100;

/// Reads a schema, or returns its faults.
pub fn read_schema(text: &str) -> Result<Value, Vec<SchemaFault>> {
    if text.len() > MOST_BYTES {
        return Err(vec![whole(format!("has {} bytes; at most {MOST_BYTES} are taken", text.len()))]);
    }
    if depth(text.as_bytes()) > MOST_DEPTH {
        return Err(vec![whole(format!("nests deeper than {MOST_DEPTH} levels"))]);
    }
    let schema: Option<Value> = serde_json::from_str(text).ok().filter(Value::is_object);
    let schema = schema.ok_or_else(|| vec![whole("must be a JSON Schema: an object")])?;
    Schema::compile(&schema).map(|_| schema)
}

/// A fault of the whole payload or schema.
fn whole(detail: impl Into<String>) -> SchemaFault {
    SchemaFault { pointer: String::new(), detail: detail.into() }
}

/// A JSON pointer to `name` inside `at`.
pub fn pointer(at: &str, name: &str) -> String {
    if name.contains(['~', '/']) {
        format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
    } else {
        format!("{at}/{name}")
    }
}

/// A compiled schema.
struct Schema {
    validator: Validator,
    /// The maximum cost of checking one part of a payload.
    cost: u64,
}

impl Schema {
    fn compile(schema: &Value) -> Result<Schema, Vec<SchemaFault>> {
        let cost = cost::of(schema)?;
        let patterns = PatternOptions::regex().size_limit(MOST_PATTERN);
        let options = jsonschema::options().offline().with_pattern_options(patterns).should_validate_formats(true);
        let validator = options.build(schema).map_err(|error| vec![wrong(&error, &error.to_string())])?;
        Ok(Schema { validator, cost })
    }

    /// The maximum cost of checking this payload, estimated from its length.
    fn guess(&self, payload: &Bytes) -> u64 {
        self.cost.saturating_mul(payload.len() as u64 / 2 + 1)
    }

    /// All faults of a payload. A missing payload is checked as `null`.
    fn judge(&self, payload: &[u8]) -> Vec<SchemaFault> {
        let given = if payload.is_empty() { b"null" } else { payload };
        let Ok(value) = serde_json::from_slice::<Value>(given) else {
            return vec![whole("nests too deeply to be judged by the topic's schema")];
        };
        let size = cost::parts(&value) + payload.len() as u64 / 32;
        if self.cost.saturating_mul(size) > MOST_WORK {
            return vec![whole("is too large to be judged by so large a schema as the topic's")];
        }
        if self.validator.is_valid(&value) {
            return Vec::new();
        }
        let told = |error: ValidationError<'_>| wrong(&error, &error.masked().to_string());
        self.validator.iter_errors(&value).take(MOST_FAULTS).map(told).collect()
    }
}

fn wrong(error: &ValidationError<'_>, words: &str) -> SchemaFault {
    let mut end = words.len().min(MOST_WORDS);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    SchemaFault { pointer: error.instance_path().to_string(), detail: words[..end].to_owned() }
}

/// The schema of one version of a topic's settings, or its faults.
type Compiled = Arc<Result<Schema, Vec<SchemaFault>>>;

/// The schemas that this replica has compiled.
pub(super) struct Schemas {
    kept: Mutex<HashMap<(Tenant, Topic), (u64, Compiled)>>,
    beside: Arc<Semaphore>,
}

impl Default for Schemas {
    fn default() -> Schemas {
        Schemas { kept: Mutex::default(), beside: Arc::new(Semaphore::new(BESIDE)) }
    }
}

impl Schemas {
    /// Checks a payload against the schema of its topic.
    pub(super) async fn judge(
        &self,
        (tenant, topic): (&Tenant, &Topic),
        told: &TopicRecord,
        payload: &Bytes,
    ) -> Result<(), Refusal> {
        let Some(schema) = &told.settings.schema else { return Ok(()) };
        let name = (tenant.clone(), topic.clone());
        let compiled = match self.find(&name, told.version) {
            Some(compiled) => compiled,
            None => {
                let schema = schema.clone();
                let compiled: Compiled = self.beside(move || Arc::new(Schema::compile(&schema))).await?;
                self.keep(name, told.version, compiled.clone());
                compiled
            }
        };
        let Ok(schema) = &*compiled else {
            // The schema was accepted when it was written, so another version of this program must have accepted it.
            return Err(Refusal::SchemaUnusable { topic: topic.clone() });
        };
        let faults = if schema.guess(payload) <= AT_ONCE {
            schema.judge(payload)
        } else {
            let (compiled, payload) = (compiled.clone(), payload.clone());
            self.beside(move || compiled.as_ref().as_ref().map_or_else(Clone::clone, |s| s.judge(&payload))).await?
        };
        if faults.is_empty() { Ok(()) } else { Err(Refusal::Payload { topic: topic.clone(), faults }) }
    }

    fn find(&self, name: &(Tenant, Topic), version: u64) -> Option<Compiled> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(name).filter(|(known, _)| *known == version).map(|(_, compiled)| compiled.clone())
    }

    fn keep(&self, name: (Tenant, Topic), version: u64, compiled: Compiled) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(name, (version, compiled));
    }

    /// Runs work outside the request tasks, a few at a time.
    async fn beside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
        let turns = self.beside.clone();
        let done = async move {
            let turn = turns.acquire_owned().await.ok()?;
            tokio::task::spawn_blocking(move || {
                // Hold the turn until the work is done, even if the request has timed out.
                let _turn = turn;
                work()
            })
            .await
            .ok()
        };
        tokio::time::timeout(PATIENCE, done).await.ok().flatten().ok_or(Refusal::CheckLate)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(schema: &Value, payload: &str) -> Vec<String> {
        let schema = Schema::compile(schema).expect("a schema");
        schema.judge(payload.as_bytes()).into_iter().map(|fault| fault.pointer).collect()
    }

    fn refused(text: &str) -> Vec<SchemaFault> {
        read_schema(text).expect_err(text)
    }

    #[test]
    fn every_wrong_place_is_named_and_the_payload_is_not_repeated() {
        let schema = json!({
            "type": "object",
            "required": ["to"],
            "properties": {
                "to": {"type": "array", "items": {"$ref": "#/$defs/address"}},
                "n": {"type": "integer", "minimum": 1},
                "a/b": {"type": "string", "maxLength": 3},
            },
            "$defs": {"address": {"type": "string", "pattern": "^[^@ ]+@[^@ ]+$"}},
        });
        assert_eq!(judged(&schema, r#"{"to":["a@b"],"n":12345678901234567890,"a/b":"x"}"#), [""; 0]);
        let wrong = judged(&schema, r#"{"to":["a@b","nobody"],"n":0,"a/b":"secret"}"#);
        let mut sorted = wrong.clone();
        sorted.sort();
        assert_eq!(sorted, ["/a~1b", "/n", "/to/1"], "{wrong:?}");
        assert_eq!(judged(&schema, "{}"), [""]);
        assert_eq!(judged(&schema, ""), [""], "a payload that is not given is null");
        let words = Schema::compile(&schema).unwrap().judge(br#"{"to":["nobody"]}"#);
        assert!(!words[0].detail.contains("nobody") && !words[0].detail.is_empty(), "{words:?}");
    }

    #[test]
    fn old_drafts_and_formats_are_understood() {
        let draft7 = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"d": {"format": "date-time"}}, "properties": {"at": {"$ref": "#/definitions/d"}},
        });
        assert_eq!(judged(&draft7, r#"{"at":"2026-01-01T00:00:00Z"}"#), [""; 0]);
        assert_eq!(judged(&draft7, r#"{"at":"soon"}"#), ["/at"]);
    }

    #[test]
    fn a_schema_that_is_wrong_is_refused_at_its_place() {
        for (text, pointer) in [
            ("7", ""),
            ("true", ""),
            (r#"{"type":"objekt"}"#, "/type"),
            (r#"{"properties":{"a":{"minimum":"1"}}}"#, "/properties/a/minimum"),
            (r#"{"properties":{"a":{"$ref":"https://example.com/x.json"}}}"#, "/properties/a/$ref"),
            (r#"{"properties":{"a":{"$ref":"file:///etc/passwd"}}}"#, "/properties/a/$ref"),
            (r##"{"$ref":"#/$defs/none"}"##, "/$ref"),
            (r##"{"$ref":"#"}"##, "/$ref"),
            (r##"{"items":{"$dynamicRef":"#x"}}"##, "/items/$dynamicRef"),
            (r#"{"items":{"$id":"https://x.y/z"}}"#, "/items/$id"),
            (r#"{"$schema":"https://example.com/mine"}"#, ""),
        ] {
            assert_eq!(refused(text)[0].pointer, pointer, "{text}: {:?}", refused(text));
        }
        // A pattern with look-ahead, and a pattern that is huge when compiled.
        for pattern in ["(?=a)b", "(a{1000}){1000}"] {
            assert!(!refused(&json!({"properties": {"a": {"pattern": pattern}}}).to_string()).is_empty());
        }
        assert!(refused(&format!(r#"{{"title":"{}"}}"#, "x".repeat(MOST_BYTES)))[0].detail.contains("bytes"));
        let deep = format!("{}{}{}", r#"{"not":"#.repeat(MOST_DEPTH), "{}", "}".repeat(MOST_DEPTH));
        assert!(refused(&deep)[0].detail.contains("deeper"));
    }

    #[test]
    fn what_would_take_forever_is_refused_before_it_begins() {
        // Each definition refers twice to the one before it: a billion paths through thirty lines.
        let doubled = |n: u32| {
            let twice =
                |n: u32| json!({"allOf": [{"$ref": format!("#/$defs/d{n}")}, {"$ref": format!("#/$defs/d{n}")}]});
            let mut defs = serde_json::Map::from_iter((1..=n).map(|n| (format!("d{n}"), twice(n - 1))));
            defs.insert("d0".into(), json!({"type": "string"}));
            json!({"$ref": format!("#/$defs/d{n}"), "$defs": defs})
        };
        assert!(Schema::compile(&doubled(3)).is_ok());
        assert!(refused(&doubled(14).to_string())[0].detail.contains("parts"));
        assert!(refused(&doubled(30).to_string())[0].detail.contains("refer"));
        // A circle of references, although the payload would bound it.
        let tree = json!({"properties": {"kids": {"items": {"$ref": "#"}}}});
        assert_eq!(refused(&tree.to_string())[0].pointer, "/properties/kids/items/$ref");
        let pair =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}});
        assert!(refused(&pair.to_string())[0].detail.contains("itself"));

        // A large payload against a large schema.
        let many: Vec<Value> = (0..2_000).map(|n| json!({"not": {"const": n}})).collect();
        let schema = Schema::compile(&json!({"items": {"allOf": many}})).unwrap();
        assert!(schema.judge(b"[-1,-2]").is_empty());
        let large = format!("[{}-1]", "-1,".repeat(100_000));
        assert!(schema.judge(large.as_bytes())[0].detail.contains("too large"));
        // A pattern that makes a backtracking engine take exponential time.
        let schema = Schema::compile(&json!({"pattern": "^(a+)+$"})).unwrap();
        assert_eq!(schema.judge(format!("\"{}b\"", "a".repeat(100_000)).as_bytes()).len(), 1);
    }
}
