//! Definitions that are ready to run: read once from Redis, and kept in memory. A version never changes, so what is kept
//! is always right.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jsonschema::{PatternOptions, Validator};
use muster_domain::{Tenant, WorkflowName};
use muster_engine::{
    definition::{Definition, Format, read_named},
    run::Plan,
};
use muster_store::StoreError;
use serde_json::Value;

use crate::Runs;

/// The most definitions that are kept.
const MOST: usize = 1_000;
/// The most faults of an input that are named.
const MOST_FAULTS: usize = 20;
/// The most bytes of one fault message.
const MOST_WORDS: usize = 500;

/// A fault of the input of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFault {
    /// The JSON pointer to the value within the input.
    pub pointer: String,
    /// What is wrong. It does not repeat the value.
    pub detail: String,
}

/// One version of a workflow, ready to run.
pub struct Workflow {
    /// The number of the version.
    pub version: u32,
    /// The definition.
    pub definition: Arc<Definition>,
    /// The definition laid out for running.
    pub plan: Arc<Plan>,
    input: Option<Validator>,
}

impl Workflow {
    fn new(version: u32, definition: Definition) -> Result<Workflow, String> {
        let definition = Arc::new(definition);
        let options = || {
            let patterns = PatternOptions::regex().size_limit(1 << 20);
            jsonschema::options().offline().with_pattern_options(patterns)
        };
        let input = definition.input.as_ref().map(|schema| options().build(schema)).transpose();
        let input = input.map_err(|fault| format!("the schema of the input: {fault}"))?;
        Ok(Workflow { version, plan: Arc::new(Plan::new(&definition)), definition, input })
    }

    /// What is wrong with an input. A missing input is checked as `null`, if there is a schema.
    pub fn check_input(&self, input: Option<&Value>) -> Vec<InputFault> {
        let Some(validator) = &self.input else { return Vec::new() };
        let given = input.unwrap_or(&Value::Null);
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
}

type Name = (Tenant, WorkflowName, u32);

/// The definitions that this process keeps.
#[derive(Default)]
pub(crate) struct Cache(Mutex<HashMap<Name, Arc<Workflow>>>);

impl Cache {
    fn get(&self, name: &Name) -> Option<Arc<Workflow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn put(&self, name: Name, workflow: &Arc<Workflow>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST {
            kept.clear();
        }
        kept.insert(name, workflow.clone());
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
        let decode = |why: String| StoreError::Decode(format!("workflow {name} version {version}: {why}"));
        let workflow = tokio::task::spawn_blocking(move || {
            let first = |faults: Vec<muster_engine::definition::DefinitionFault>| {
                faults.first().map_or_else(|| "no reason".to_owned(), |fault| fault.message.clone())
            };
            let definition = read_named(&stored.text, Format::Json, None).map_err(first)?;
            Workflow::new(version, definition)
        });
        let workflow = workflow.await.map_err(|fault| decode(fault.to_string()))?.map_err(decode)?;
        let workflow = Arc::new(workflow);
        self.workflows.put(key, &workflow);
        Ok(Some(workflow))
    }
}
