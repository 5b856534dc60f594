//! Payload schemas: what a topic says its payloads look like, and whether one does.
//!
//! Knows: which JSON Schemas are taken, and what judging by one costs at most. Promises: nothing is
//! ever fetched: a reference leads into the same schema or is refused; a schema that refers to itself
//! is refused too, because nobody can bound its cost; patterns run in linear time; a schema is compiled
//! once per version of its topic's settings; what takes longer than a moment is judged beside the
//! requests, a few at a time, and answered within [`PATIENCE`]. Words about a payload do not repeat it.
//! Leaves to others: who may say what (`routes`), storing it (`flow`).

mod cost;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use jsonschema::{PatternOptions, ValidationError, Validator};
use muster_domain::{ProblemCode, Tenant, Topic};
use muster_store::TopicRecord;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::{
    json::{Fault, Faults},
    problem::Problem,
};

/// Most bytes of a schema.
const MOST_BYTES: usize = 64 * 1024;
/// A schema nests no deeper.
const MOST_DEPTH: usize = 32;
/// Most bytes that a pattern takes when it is compiled.
const MOST_PATTERN: usize = 256 * 1024;
/// Most parts of a schema times parts of a payload.
const MOST_WORK: u64 = 50_000_000;
/// So much is judged on the spot: well below a millisecond.
const AT_ONCE: u64 = 20_000;
/// How many payloads that take longer are judged at one time.
const BESIDE: usize = 2;
/// How long a request waits to be judged.
const PATIENCE: Duration = Duration::from_secs(2);
/// Compiled schemas that are kept at most.
const MOST_KEPT: usize = 1_000;
/// Most bytes of what is said about one place.
const MOST_WORDS: usize = 500;
/// Most places that are named.
const MOST_FAULTS: usize = 100;

/// What is wrong, and where: a JSON pointer and words.
type Wrong = (String, String);

/// Reads a schema as people write it; what is wrong with it is noted.
pub(crate) fn read_schema(text: &str, at: &str, faults: &mut Faults) -> Option<Value> {
    let mut refuse = |wrong: Wrong| faults.note(ProblemCode::InvalidRequest, format!("{at}{}", wrong.0), wrong.1);
    if text.len() > MOST_BYTES {
        refuse((String::new(), format!("has {} bytes; at most {MOST_BYTES} are taken", text.len())));
        return None;
    }
    if crate::canonical::depth(text) > MOST_DEPTH {
        refuse((String::new(), format!("nests deeper than {MOST_DEPTH} levels")));
        return None;
    }
    let schema: Value = serde_json::from_str(text).ok().filter(Value::is_object).or_else(|| {
        refuse((String::new(), "must be a JSON Schema: an object".to_owned()));
        None
    })?;
    match Schema::compile(&schema) {
        Ok(_) => Some(schema),
        Err(wrong) => {
            wrong.into_iter().for_each(refuse);
            None
        }
    }
}

/// A schema that payloads can be judged by.
struct Schema {
    validator: Validator,
    /// What it costs to judge one part of a payload, at most.
    cost: u64,
}

impl Schema {
    fn compile(schema: &Value) -> Result<Schema, Vec<Wrong>> {
        let cost = cost::of(schema)?;
        let patterns = PatternOptions::regex().size_limit(MOST_PATTERN);
        let options = jsonschema::options().offline().with_pattern_options(patterns).should_validate_formats(true);
        let validator = options.build(schema).map_err(|error| vec![wrong(&error, &error.to_string())])?;
        Ok(Schema { validator, cost })
    }

    /// What judging this may take, without looking at it.
    fn guess(&self, payload: &Bytes) -> u64 {
        self.cost.saturating_mul(payload.len() as u64 / 2 + 1)
    }

    /// Everything that is wrong with a payload. One that was not given is `null`.
    fn judge(&self, payload: &[u8]) -> Vec<Wrong> {
        let given = if payload.is_empty() { b"null" } else { payload };
        let Ok(value) = serde_json::from_slice::<Value>(given) else {
            return vec![(String::new(), "nests too deeply to be judged by the topic's schema".to_owned())];
        };
        let size = cost::parts(&value) + payload.len() as u64 / 32;
        if self.cost.saturating_mul(size) > MOST_WORK {
            return vec![(String::new(), "is too large to be judged by so large a schema as the topic's".to_owned())];
        }
        if self.validator.is_valid(&value) {
            return Vec::new();
        }
        let told = |error: ValidationError<'_>| wrong(&error, &error.masked().to_string());
        self.validator.iter_errors(&value).take(MOST_FAULTS).map(told).collect()
    }
}

fn wrong(error: &ValidationError<'_>, words: &str) -> Wrong {
    let mut end = words.len().min(MOST_WORDS);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    (error.instance_path().to_string(), words[..end].to_owned())
}

/// The schema of one version of a topic's settings, or why there is none.
type Compiled = Arc<Result<Schema, Vec<Wrong>>>;

/// The schemas that this gateway has compiled.
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
    /// Judges a payload that stands at this place of a request, by what its topic was told.
    pub(super) async fn judge(
        &self,
        (tenant, topic): (&Tenant, &Topic),
        told: &TopicRecord,
        payload: &Bytes,
        at: &str,
    ) -> Result<(), Problem> {
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
            // It was judged when it was written; another version of this program took it.
            let why = format!("the schema of topic {topic} cannot be used by this gateway");
            return Err(Problem::new(ProblemCode::Internal, why));
        };
        let faults = if schema.guess(payload) <= AT_ONCE {
            schema.judge(payload)
        } else {
            let (compiled, payload) = (compiled.clone(), payload.clone());
            self.beside(move || compiled.as_ref().as_ref().map_or_else(Clone::clone, |s| s.judge(&payload))).await?
        };
        if faults.is_empty() {
            return Ok(());
        }
        let fault = |(place, detail): Wrong| Fault {
            code: ProblemCode::InvalidRequest,
            pointer: format!("{at}{place}"),
            detail: format!("{detail} (the schema of topic {topic})"),
        };
        Err(Problem::fields(faults.into_iter().map(fault).collect()))
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

    /// Does it beside the requests, a few at a time.
    async fn beside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let late = || Problem::new(ProblemCode::Overloaded, "the payload was not judged in time; nothing was stored");
        let turns = self.beside.clone();
        let done = async move {
            let turn = turns.acquire_owned().await.ok()?;
            tokio::task::spawn_blocking(move || {
                // Held until it is done, even if nobody waits for it any more.
                let _turn = turn;
                work()
            })
            .await
            .ok()
        };
        tokio::time::timeout(PATIENCE, done).await.ok().flatten().ok_or_else(late)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(schema: &Value, payload: &str) -> Vec<String> {
        let schema = Schema::compile(schema).expect("a schema");
        schema.judge(payload.as_bytes()).into_iter().map(|(place, _)| place).collect()
    }

    fn refused(text: &str) -> Vec<Wrong> {
        let mut faults = Faults::default();
        assert!(read_schema(text, "/schema", &mut faults).is_none(), "{text}");
        faults.into_result().unwrap_err().errors.into_iter().map(|f| (f.pointer, f.detail)).collect()
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
        assert!(!words[0].1.contains("nobody") && !words[0].1.is_empty(), "{words:?}");
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
            ("7", "/schema"),
            ("true", "/schema"),
            (r#"{"type":"objekt"}"#, "/schema/type"),
            (r#"{"properties":{"a":{"minimum":"1"}}}"#, "/schema/properties/a/minimum"),
            (r#"{"properties":{"a":{"$ref":"https://example.com/x.json"}}}"#, "/schema/properties/a/$ref"),
            (r#"{"properties":{"a":{"$ref":"file:///etc/passwd"}}}"#, "/schema/properties/a/$ref"),
            (r##"{"$ref":"#/$defs/none"}"##, "/schema/$ref"),
            (r##"{"$ref":"#"}"##, "/schema/$ref"),
            (r##"{"items":{"$dynamicRef":"#x"}}"##, "/schema/items/$dynamicRef"),
            (r#"{"items":{"$id":"https://x.y/z"}}"#, "/schema/items/$id"),
            (r#"{"$schema":"https://example.com/mine"}"#, "/schema"),
        ] {
            assert_eq!(refused(text)[0].0, pointer, "{text}: {:?}", refused(text));
        }
        // One that looks ahead, and one that is huge when it is compiled.
        for pattern in ["(?=a)b", "(a{1000}){1000}"] {
            assert!(
                refused(&json!({"properties": {"a": {"pattern": pattern}}}).to_string())[0].0.starts_with("/schema")
            );
        }
        assert!(refused(&format!(r#"{{"title":"{}"}}"#, "x".repeat(MOST_BYTES)))[0].1.contains("bytes"));
        let deep = format!("{}{}{}", r#"{"not":"#.repeat(MOST_DEPTH), "{}", "}".repeat(MOST_DEPTH));
        assert!(refused(&deep)[0].1.contains("deeper"));
    }

    #[test]
    fn what_would_take_forever_is_refused_before_it_begins() {
        // Each refers to the one before twice: a billion ways through thirty lines.
        let doubled = |n: u32| {
            let twice =
                |n: u32| json!({"allOf": [{"$ref": format!("#/$defs/d{n}")}, {"$ref": format!("#/$defs/d{n}")}]});
            let mut defs = serde_json::Map::from_iter((1..=n).map(|n| (format!("d{n}"), twice(n - 1))));
            defs.insert("d0".into(), json!({"type": "string"}));
            json!({"$ref": format!("#/$defs/d{n}"), "$defs": defs})
        };
        assert!(Schema::compile(&doubled(3)).is_ok());
        assert!(refused(&doubled(14).to_string())[0].1.contains("parts"));
        assert!(refused(&doubled(30).to_string())[0].1.contains("refer"));
        // In a circle, though it would end with the payload.
        let tree = json!({"properties": {"kids": {"items": {"$ref": "#"}}}});
        assert_eq!(refused(&tree.to_string())[0].0, "/schema/properties/kids/items/$ref");
        let pair =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}});
        assert!(refused(&pair.to_string())[0].1.contains("itself"));

        // A large payload by a large schema.
        let many: Vec<Value> = (0..2_000).map(|n| json!({"not": {"const": n}})).collect();
        let schema = Schema::compile(&json!({"items": {"allOf": many}})).unwrap();
        assert!(schema.judge(b"[-1,-2]").is_empty());
        let large = format!("[{}-1]", "-1,".repeat(100_000));
        assert!(schema.judge(large.as_bytes())[0].1.contains("too large"));
        // A pattern that would go back and forth for ages elsewhere.
        let schema = Schema::compile(&json!({"pattern": "^(a+)+$"})).unwrap();
        assert_eq!(schema.judge(format!("\"{}b\"", "a".repeat(100_000)).as_bytes()).len(), 1);
    }
}
