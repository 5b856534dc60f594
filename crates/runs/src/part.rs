//! Reads of a run only what a view of it needs, so that one page of a for-each with thousands of items costs one page.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use muster_domain::{RunId, WorkflowName};
use muster_engine::run::{About, Glance, Missing, Run};
use muster_store::StoredRun;
use serde_json::Value;

use crate::{InputFault, Runs, RunsError, Workflow, kept::about};

/// How often a view begins again because the run was saved between two reads. Then the run is read as a whole.
const TRIES: u32 = 3;

impl Runs {
    /// Looks at a run as it was at one moment: reads the fields that `view` asks for, until it has all. None if there is
    /// no such run.
    pub async fn view<T>(
        &self,
        id: RunId,
        view: impl Fn(&Run) -> Result<T, Missing>,
    ) -> Result<Option<(Run, T)>, RunsError> {
        for _ in 0..TRIES {
            let names = Glance::FIELDS.map(str::as_bytes);
            let Some(stored) = self.flow.store.read_run_fields(id, &names).await? else { return Ok(None) };
            let version = stored.version;
            let mut run = self.open_some(id, &stored, &Glance::FIELDS).await?;
            loop {
                let missing = match view(&run) {
                    Ok(seen) => return Ok(Some((run, seen))),
                    Err(Missing { fields }) => fields,
                };
                let names: Vec<&[u8]> = missing.iter().map(String::as_bytes).collect();
                let Some(more) = self.flow.store.read_run_fields(id, &names).await? else { return Ok(None) };
                if more.version != version || missing.is_empty() {
                    break;
                }
                for name in &missing {
                    let bytes = more.fields.get(name.as_bytes()).map(AsRef::as_ref);
                    run.add(name, bytes).map_err(|fault| RunsError::field(id, &fault))?;
                }
            }
        }
        let Some((kept, _)) = self.read(id).await? else { return Ok(None) };
        let lacks = |missing: Missing| RunsError::unreadable(id, format!("it lacks {}", missing.fields.join(", ")));
        let seen = view(&kept.run).map_err(lacks)?;
        Ok(Some((kept.run, seen)))
    }

    /// What is wrong with a signal that a run is to get.
    pub async fn check_signal(&self, run: &Run, name: &str, body: &Value) -> Result<Vec<InputFault>, RunsError> {
        Ok(self.workflow_of(run.about()).await?.check_signal(name, body))
    }

    /// Makes a run of the fields with these names, as far as they exist.
    pub(crate) async fn open_some(&self, id: RunId, stored: &StoredRun, names: &[&str]) -> Result<Run, RunsError> {
        let workflow = self.workflow_of(&about(id, &stored.fields)?).await?;
        let fields = texts(&stored.fields, names);
        Run::load_some(workflow.plan.clone(), fields).map_err(|fault| RunsError::field(id, &fault))
    }

    /// The version of the workflow that a run pins.
    async fn workflow_of(&self, about: &About) -> Result<Arc<Workflow>, RunsError> {
        let About { tenant, run, workflow, version, .. } = about;
        let unreadable = |fault: String| RunsError::unreadable(*run, fault);
        let name = WorkflowName::parse(workflow).map_err(|fault| unreadable(fault.to_string()))?;
        let found = self.workflow(tenant, &name, Some(*version)).await?;
        found.ok_or_else(|| unreadable(format!("version {version} of workflow {name} is not stored")))
    }
}

fn texts<'a>(
    fields: &'a HashMap<Bytes, Bytes>,
    names: &'a [&'a str],
) -> impl Iterator<Item = (&'a str, Option<&'a [u8]>)> {
    names.iter().map(|name| (*name, fields.get(name.as_bytes()).map(AsRef::as_ref)))
}
