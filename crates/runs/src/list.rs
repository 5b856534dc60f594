//! Lists of runs: which runs pass a filter, newest first.

use muster_domain::{Labels, RunId, Tenant, Time, WorkflowName};
use muster_engine::run::{Glance, Run, RunState};
use muster_store::{ListError, RunSpan, StoredRun};

use crate::{Runs, RunsError};

/// How many bytes of values a page holds. The run that passes it is the last of its page.
const MOST_VALUES: usize = 4 * 1024 * 1024;
/// How many runs are read at once with their values.
const AT_ONCE: usize = 16;

/// What a run must be to be listed. What is empty or none admits all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFilter {
    /// Of this workflow.
    pub workflow: Option<WorkflowName>,
    /// Of this version.
    pub version: Option<u32>,
    /// In one of these states.
    pub states: Vec<RunState>,
    /// With all of these labels.
    pub labels: Labels,
    /// With this error.
    pub error_code: Option<String>,
    /// Started by a step of this run.
    pub parent: Option<RunId>,
    /// Stored at or after this time.
    pub created_after: Option<Time>,
    /// Stored before this time.
    pub created_before: Option<Time>,
    /// Ended at or after this time.
    pub finished_after: Option<Time>,
    /// Ended before this time.
    pub finished_before: Option<Time>,
}

impl RunFilter {
    /// Whether a run passes.
    pub fn admits(&self, run: &Glance) -> bool {
        let Glance { about, state, ended, error } = run;
        let within = |at: Option<Time>, after: Option<Time>, before: Option<Time>| {
            let (late, soon) = (after.is_none_or(|after| at >= Some(after)), before.is_none_or(|end| at < Some(end)));
            (after.is_none() && before.is_none()) || (at.is_some() && late && soon)
        };
        self.workflow.as_ref().is_none_or(|name| name.to_string() == about.workflow)
            && self.version.is_none_or(|version| version == about.version)
            && (self.states.is_empty() || self.states.contains(state))
            && self.labels.iter().all(|(key, value)| about.labels.get(key) == Some(value))
            && self.error_code.as_ref().is_none_or(|code| error.as_ref().is_some_and(|error| error.code == *code))
            && self.parent.is_none_or(|run| about.parent.as_ref().is_some_and(|parent| parent.run == run))
            && within(Some(about.created), self.created_after, self.created_before)
            && within(ended.some(), self.finished_after, self.finished_before)
    }
}

/// Values of runs that a list shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunValues {
    /// Their input.
    pub input: bool,
    /// Their output.
    pub output: bool,
}

/// A page of a list of runs.
#[derive(Debug, Default)]
pub struct RunList {
    /// The runs, newest first: their heads, and the values that were asked for.
    pub items: Vec<Run>,
    /// Runs on this part of the list that cannot be read.
    pub unreadable: Vec<RunId>,
    /// The cursor of the next page; none at the end.
    pub next_cursor: Option<String>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ListRefused {
    /// The cursor is not from a list of runs.
    #[error("this cursor is not from a list of this kind")]
    BadCursor,
    /// The runs could not be read.
    #[error(transparent)]
    Fault(#[from] RunsError),
}

impl From<ListError> for ListRefused {
    fn from(fault: ListError) -> ListRefused {
        match fault {
            ListError::BadCursor => ListRefused::BadCursor,
            ListError::Store(fault) => ListRefused::Fault(fault.into()),
        }
    }
}

fn glance(run: &StoredRun) -> Option<Glance> {
    let [about, head] = Glance::FIELDS.map(|name| run.fields.get(name.as_bytes()).map(AsRef::as_ref));
    Glance::read(about, head).ok()
}

impl Runs {
    /// One page of a tenant's runs that pass the filter and that the caller may see, newest first. A page reads a bounded
    /// number of runs, so it may be short or empty: only a missing cursor ends the list.
    pub async fn list(
        &self,
        tenant: &Tenant,
        from: Option<&str>,
        limit: usize,
        filter: &RunFilter,
        values: RunValues,
        sees: impl Fn(&Run) -> bool,
    ) -> Result<RunList, ListRefused> {
        let names = Glance::FIELDS.map(str::as_bytes);
        let span = RunSpan { created_after: filter.created_after, created_before: filter.created_before };
        let mut odd = Vec::new();
        let admits = |id: RunId, run: &StoredRun| {
            let Some(glance) = glance(run) else {
                odd.push(id);
                return false;
            };
            filter.admits(&glance)
        };
        let mut page = self.flow.store.list_runs(tenant, from, limit, span, &names, admits).await?;
        let mut list = RunList::default();
        let mut places = Vec::new();
        for (place, (id, stored)) in page.items.iter().enumerate() {
            match self.open_some(*id, stored, &Glance::FIELDS).await {
                Ok(run) if sees(&run) => {
                    places.push(place);
                    list.items.push(run);
                }
                Ok(_) => {}
                Err(RunsError::Unreadable { .. }) => odd.push(*id),
                Err(fault) => return Err(fault.into()),
            }
        }
        let shown = self.add_values(&mut list.items, values).await?;
        if shown < list.items.len() {
            list.items.truncate(shown);
            page.cut(places[shown - 1] + 1);
        }
        list.unreadable = page.unreadable.into_iter().chain(odd).collect();
        list.next_cursor = page.next_cursor;
        Ok(list)
    }

    /// Reads the values of runs until they are too large together. Returns how many runs have theirs.
    async fn add_values(&self, runs: &mut [Run], values: RunValues) -> Result<usize, RunsError> {
        let mut names = Vec::new();
        names.extend(values.input.then_some("input"));
        names.extend(values.output.then_some("output"));
        if names.is_empty() {
            return Ok(runs.len());
        }
        let raw: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let (mut shown, mut bytes) = (0, 0);
        for chunk in runs.chunks_mut(AT_ONCE) {
            let ids: Vec<RunId> = chunk.iter().map(|run| run.about().run).collect();
            for (run, stored) in chunk.iter_mut().zip(self.flow.store.read_runs(&ids, &raw).await) {
                // A run that is gone since the page was read has no values.
                let fields = stored?.map(|stored| stored.fields).unwrap_or_default();
                for name in &names {
                    let value = fields.get(name.as_bytes());
                    bytes += value.map_or(0, |value| value.len());
                    let id = run.about().run;
                    run.add(name, value.map(AsRef::as_ref)).map_err(|fault| RunsError::field(id, &fault))?;
                }
                shown += 1;
                if bytes >= MOST_VALUES {
                    return Ok(shown);
                }
            }
        }
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::run::{About, Parent, RunError};

    use super::*;

    fn a_run() -> Glance {
        let about = About {
            tenant: Tenant::default(),
            run: RunId::mint(1),
            workflow: "order".into(),
            version: 2,
            labels: Labels::from([("k".to_owned(), "v".to_owned())]),
            principal: "me".into(),
            topics: Vec::new(),
            created: Time(10),
            generation: 0,
            parent: Some(Parent { run: RunId::mint(2), step: "s".into(), attempt: 1 }),
            depth: 1,
            rerun_of: None,
            slot: None,
        };
        let error = Some(RunError::new("boom", ""));
        Glance { about, state: RunState::Failed, ended: Time(20), error }
    }

    #[test]
    fn each_part_of_a_filter_decides() {
        let (run, name) = (a_run(), |name: &str| Some(WorkflowName::parse(name).unwrap()));
        let all = RunFilter {
            workflow: name("order"),
            version: Some(2),
            states: vec![RunState::Failed, RunState::Queued],
            labels: run.about.labels.clone(),
            error_code: Some("boom".into()),
            parent: run.about.parent.as_ref().map(|parent| parent.run),
            created_after: Some(Time(10)),
            created_before: Some(Time(11)),
            finished_after: Some(Time(20)),
            finished_before: Some(Time(21)),
        };
        assert!(all.admits(&run) && RunFilter::default().admits(&run));
        let others = [
            RunFilter { workflow: name("orders"), ..all.clone() },
            RunFilter { version: Some(3), ..all.clone() },
            RunFilter { states: vec![RunState::Queued], ..all.clone() },
            RunFilter { labels: Labels::from([("k".to_owned(), "w".to_owned())]), ..all.clone() },
            RunFilter { error_code: Some("bo".into()), ..all.clone() },
            RunFilter { parent: Some(RunId::mint(3)), ..all.clone() },
            RunFilter { created_after: Some(Time(11)), ..all.clone() },
            RunFilter { created_before: Some(Time(10)), ..all.clone() },
            RunFilter { finished_after: Some(Time(21)), ..all.clone() },
            RunFilter { finished_before: Some(Time(20)), ..all.clone() },
        ];
        for other in others {
            assert!(!other.admits(&run), "{other:?}");
        }
        let open = Glance { ended: Time::NONE, ..a_run() };
        assert!(!all.admits(&open), "a run that has not ended has no end to compare");
        let top = Glance { about: About { parent: None, ..run.about.clone() }, ..run };
        assert!(!all.admits(&top));
    }
}
