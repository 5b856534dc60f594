//! Definitions that are ready to run: read once from Redis, and kept in memory, up to a number and a size. A version never
//! changes, so what is kept is always right.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jsonschema::{PatternOptions, Validator};
use muster_domain::{Tenant, Time, WorkflowName};
use muster_engine::{
    definition::{Definition, Format, Kind, Scope, read_named},
    run::Plan,
};
use muster_store::StoreError;
use serde_json::Value;

use crate::Runs;

/// The most definitions that are kept.
const MOST: usize = 1_000;
/// The most bytes that the texts of the kept definitions have together. What is made of them takes a multiple of it.
const MOST_BYTES: usize = 64 << 20;
/// The most faults of an input that are named.
const MOST_FAULTS: usize = 20;
/// The most bytes of one fault message.
const MOST_WORDS: usize = 500;

/// A fault of the input of a run, or of the body of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFault {
    /// The JSON pointer to the value within the input, or within the body.
    pub pointer: String,
    /// What is wrong. It does not repeat the value.
    pub detail: String,
}

/// One version of a workflow, ready to run.
pub struct Workflow {
    /// The number of the version.
    pub version: u32,
    /// When the version was stored, in Redis time.
    pub stored_at: Time,
    /// The definition.
    pub definition: Arc<Definition>,
    /// The definition laid out for running.
    pub plan: Arc<Plan>,
    input: Option<Validator>,
    /// The signals that its steps wait for, each with the schema of its body.
    signals: Vec<(String, Option<Validator>)>,
}

impl Workflow {
    fn new(version: u32, definition: Definition) -> Result<Workflow, String> {
        let definition = Arc::new(definition);
        let build = |schema: Option<&Value>, what: &str| {
            let patterns = PatternOptions::regex().size_limit(1 << 20);
            let options = jsonschema::options().offline().with_pattern_options(patterns);
            schema.map(|schema| options.build(schema)).transpose().map_err(|fault| format!("{what}: {fault}"))
        };
        let input = build(definition.input.as_ref(), "the schema of the input")?;
        let mut awaited = Vec::new();
        signals(&definition.steps, &mut awaited);
        let signal = |(name, schema): (&String, Option<&Value>)| {
            Ok((name.clone(), build(schema, &format!("the schema of the signal `{name}`"))?))
        };
        let signals = awaited.into_iter().map(signal).collect::<Result<_, String>>()?;
        let plan = Arc::new(Plan::new(&definition));
        Ok(Workflow { version, stored_at: Time::NONE, plan, definition, input, signals })
    }

    /// What is wrong with an input. A missing input is checked as `null`, if there is a schema.
    pub fn check_input(&self, input: Option<&Value>) -> Vec<InputFault> {
        let Some(validator) = &self.input else { return Vec::new() };
        faults(validator, input.unwrap_or(&Value::Null))
    }

    /// What is wrong with the body of a signal. It fits if one of the steps that wait for the signal takes it; a signal
    /// that no step waits for may be anything.
    pub fn check_signal(&self, name: &str, body: &Value) -> Vec<InputFault> {
        let mut wrong = Vec::new();
        for (_, validator) in self.signals.iter().filter(|(awaited, _)| awaited == name) {
            wrong = validator.as_ref().map(|validator| faults(validator, body)).unwrap_or_default();
            if wrong.is_empty() {
                break;
            }
        }
        wrong
    }
}

fn faults(validator: &Validator, given: &Value) -> Vec<InputFault> {
    if validator.is_valid(given) {
        return Vec::new();
    }
    let told = |error: jsonschema::ValidationError<'_>| {
        let mut detail = error.masked().to_string();
        let end = (0..=MOST_WORDS.min(detail.len())).rev().find(|&n| detail.is_char_boundary(n)).unwrap_or(0);
        detail.truncate(end);
        InputFault { pointer: error.instance_path().to_string(), detail }
    };
    validator.iter_errors(given).take(MOST_FAULTS).map(told).collect()
}

/// The signals that the steps of a scope wait for, with those inside of other steps.
fn signals<'a>(scope: &'a Scope, found: &mut Vec<(&'a String, Option<&'a Value>)>) {
    for step in &scope.steps {
        if let Kind::WaitSignal(wait) = &step.kind {
            found.push((&wait.name, wait.schema.as_ref()));
        }
        step.kind.scopes().into_iter().for_each(|scope| signals(scope, found));
    }
}

type Name = (Tenant, WorkflowName, u32);

/// The definitions that this process keeps. When they are too many or too large, the one that was not used for the
/// longest time leaves first.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Definitions>);

#[derive(Default)]
struct Definitions {
    by_name: HashMap<Name, Cached>,
    /// The bytes of all texts.
    bytes: usize,
    /// How often a definition was put or got: the order of uses.
    uses: u64,
}

struct Cached {
    workflow: Arc<Workflow>,
    bytes: usize,
    used: u64,
}

impl Cache {
    fn get(&self, name: &Name) -> Option<Arc<Workflow>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let used = kept.uses;
        let cached = kept.by_name.get_mut(name)?;
        cached.used = used;
        Some(cached.workflow.clone())
    }

    /// Keeps a definition whose text has this many bytes.
    fn put(&self, name: Name, workflow: &Arc<Workflow>, bytes: usize) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&name);
        while kept.by_name.len() >= MOST || kept.bytes + bytes > MOST_BYTES {
            let oldest = kept.by_name.iter().min_by_key(|(_, cached)| cached.used).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { break };
            kept.remove(&oldest);
        }
        kept.uses += 1;
        let cached = Cached { workflow: workflow.clone(), bytes, used: kept.uses };
        kept.by_name.insert(name, cached);
        kept.bytes += bytes;
    }
}

impl Definitions {
    fn remove(&mut self, name: &Name) {
        if let Some(gone) = self.by_name.remove(name) {
            self.bytes -= gone.bytes;
        }
    }
}

impl Runs {
    /// A version of a workflow, also of a deleted one; without a number the latest, unless the workflow was deleted.
    pub async fn workflow(
        &self,
        tenant: &Tenant,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<Option<Arc<Workflow>>, StoreError> {
        let version = match version {
            Some(version) => version,
            None => {
                let shown = self.flow.store.shown_versions(tenant, std::slice::from_ref(name)).await?;
                match shown.into_iter().next().flatten() {
                    Some(latest) => latest,
                    None => return Ok(None),
                }
            }
        };
        let key = (tenant.clone(), name.clone(), version);
        if let Some(workflow) = self.workflows.get(&key) {
            return Ok(Some(workflow));
        }
        let Some(stored) = self.flow.store.read_definition(tenant, name, Some(version)).await? else {
            return Ok(None);
        };
        let bytes = stored.text.len();
        let decode = |why: String| StoreError::Decode(format!("workflow {name} version {version}: {why}"));
        let workflow = tokio::task::spawn_blocking(move || {
            let first = |faults: Vec<muster_engine::definition::DefinitionFault>| {
                faults.first().map_or_else(|| "no reason".to_owned(), |fault| fault.message.clone())
            };
            let definition = read_named(&stored.text, Format::Json, None).map_err(first)?;
            let workflow = Workflow::new(version, definition)?;
            Ok(Workflow { stored_at: stored.stored_at, ..workflow })
        });
        let workflow = workflow.await.map_err(|fault| decode(fault.to_string()))?.map_err(decode)?;
        let workflow = Arc::new(workflow);
        self.workflows.put(key, &workflow, bytes);
        Ok(Some(workflow))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn name(n: u32) -> Name {
        (Tenant::default(), WorkflowName::parse("order").unwrap(), n)
    }

    fn workflow() -> Arc<Workflow> {
        let definition = read_named(b"steps: [{id: a, set: 1}]", Format::Yaml, None).unwrap();
        Arc::new(Workflow::new(1, definition).unwrap())
    }

    #[test]
    fn definitions_of_many_bytes_push_out_the_least_recently_used() {
        let (cache, workflow) = (Cache::default(), workflow());
        let quarter = MOST_BYTES / 4;
        for n in 0..4 {
            cache.put(name(n), &workflow, quarter);
        }
        assert!(cache.get(&name(0)).is_some(), "all four fit");
        cache.put(name(4), &workflow, quarter + 1);
        let kept = |n: &u32| cache.get(&name(*n)).is_some();
        assert_eq!((0..5).filter(kept).collect::<Vec<_>>(), [0, 3, 4], "0 was used after 1 and 2");
        cache.put(name(4), &workflow, quarter);
        cache.put(name(5), &workflow, quarter);
        assert_eq!((0..6).filter(kept).collect::<Vec<_>>(), [0, 3, 4, 5], "one that is put again counts once");
        assert_eq!(cache.0.lock().unwrap().bytes, MOST_BYTES);
    }

    #[test]
    fn too_many_definitions_push_out_one_at_a_time() {
        let (cache, workflow) = (Cache::default(), workflow());
        let most = MOST as u32;
        for n in 0..most {
            cache.put(name(n), &workflow, 1);
        }
        assert!(cache.get(&name(0)).is_some());
        cache.put(name(most), &workflow, 1);
        assert!(cache.get(&name(1)).is_none());
        assert!([0, 2, most].iter().all(|n| cache.get(&name(*n)).is_some()));
        assert_eq!(cache.0.lock().unwrap().by_name.len(), MOST);
    }

    #[test]
    fn a_signal_fits_if_one_of_its_steps_takes_it() {
        let yaml = "steps:\n\
            - {id: a, wait_signal: {name: paid, schema: {type: integer}}}\n\
            - {id: b, parallel: {branches: {x: [{id: c, wait_signal: {name: paid, schema: {type: string}}}]}}}\n\
            - {id: d, wait_signal: {name: any}}\n";
        let workflow = Workflow::new(1, read_named(yaml.as_bytes(), Format::Yaml, None).unwrap()).unwrap();
        let fits = |name: &str, body| workflow.check_signal(name, &body).is_empty();
        assert!(
            fits("paid", json!(1)) && fits("paid", json!("1")) && fits("any", json!(null)) && fits("other", json!(1))
        );
        assert!(!fits("paid", json!(1.5)) && !fits("paid", json!(null)));
    }
}
