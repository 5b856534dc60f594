//! Explains a run: what it waits for, one sentence for each, and when the workflow service looks at it next. Every run
//! that has not ended waits for something that this names.

use std::{collections::HashMap, time::Duration};

use muster_domain::{JobId, Phase, RunId, State as JobState, Time};
use muster_engine::run::{Run, RunState, Undo, Wait};
use muster_store::Fields;

use crate::{Kept, Runs, RunsError, slots::slot_of};

/// The most waits that are explained.
const MOST: usize = 100;
/// The workflow service looks at a run within this time after it is due.
const OVERDUE: Duration = Duration::from_secs(10);

/// Why a run stands where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunExplanation {
    /// What it waits for, at most [`MOST`] things.
    pub waits: Vec<Waiting>,
    /// About the run as a whole. The first is the summary.
    pub sentences: Vec<String>,
    /// When the workflow service looks at it at the latest; none once nothing is left to do.
    pub next_look: Option<Time>,
}

/// One thing that a run waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The step; empty for the run.
    pub step: String,
    /// What it is: one of `start`, `resume`, `command`, `job`, `run`, `signal`, `approval`, `time`.
    pub what: &'static str,
    /// Until when, if it is a time.
    pub until: Option<Time>,
    /// The job.
    pub job: Option<JobId>,
    /// The sub-run.
    pub run: Option<RunId>,
    /// The same for people.
    pub sentence: String,
}

/// What is known besides the run.
#[derive(Default)]
struct Seen {
    /// The states of the jobs that it waits for, and their workers; absent ones have no record.
    jobs: HashMap<JobId, (JobState, String)>,
    /// How many runs wait before it for a slot.
    ahead: Option<usize>,
}

impl Runs {
    /// Explains a run that was read as a whole.
    pub async fn explain(&self, kept: &Kept) -> Result<RunExplanation, RunsError> {
        let waits = kept.run.waits_for(MOST);
        let waits = waits.map_err(|_| RunsError::unreadable(kept.id, "not read as a whole"))?;
        let mut seen = Seen::default();
        let jobs: Vec<JobId> =
            waits.iter().filter_map(|wait| if let Wait::Job { job, .. } = wait { Some(*job) } else { None }).collect();
        for record in self.flow.store.read(&jobs, Fields::NONE).await {
            match record {
                Ok(Some(record)) => {
                    let worker = match &record.head.phase {
                        Phase::Running { lease, .. } => lease.worker.own_name().to_owned(),
                        _ => String::new(),
                    };
                    seen.jobs.insert(record.id, (record.head.state(), worker));
                }
                Err(fault) if fault.is_retryable() => return Err(fault.into()),
                // A job that cannot be read is explained without its state.
                Ok(None) | Err(_) => {}
            }
        }
        if let (RunState::Queued, Some(slot)) = (kept.run.state(), slot_of(kept)) {
            let waiting = self.flow.store.waiting_runs(&slot).await?;
            seen.ahead = waiting.iter().position(|run| *run == kept.id);
        }
        let next_look = self.flow.store.home_of(kept.id).await?;
        let now = self.flow.store.now();
        let waits: Vec<Waiting> = waits.into_iter().map(|wait| waiting(&kept.run, wait, &seen, now)).collect();
        let sentences = about(&kept.run, &waits, next_look, now);
        Ok(RunExplanation { waits, sentences, next_look })
    }
}

fn waiting(run: &Run, wait: Wait, seen: &Seen, now: Time) -> Waiting {
    let of = |step: &str, what: &'static str, sentence: String| {
        let step = step.to_owned();
        Waiting { step, what, until: None, job: None, run: None, sentence }
    };
    match wait {
        Wait::Start => of("", "start", start_sentence(run, seen)),
        Wait::Resume => of("", "resume", "The run is paused and starts nothing until somebody resumes it.".into()),
        Wait::Command { key } => {
            let step = key.split_once(' ').map_or("", |(_, rest)| rest.split(' ').next().unwrap_or_default());
            of(step, "command", format!("The workflow service has to carry out the command `{key}`."))
        }
        Wait::Job { task, job, confirmed } => {
            let (step, undo) = task.strip_prefix("undo:").map_or((task.as_str(), false), |step| (step, true));
            let who = if undo { format!("The compensation of step `{step}`") } else { format!("Step `{step}`") };
            let stands = match seen.jobs.get(&job) {
                Some((state, worker)) if !worker.is_empty() => format!(", which is {state} on worker {worker}"),
                Some((state, _)) if state.is_end() => format!(", which is {state}: the run takes this in next"),
                Some((state, _)) => format!(", which is {state}"),
                None if confirmed => ", whose record is gone".to_owned(),
                None => ", which is to be submitted".to_owned(),
            };
            let sentence = format!("{who} waits for its job {job}{stands}.");
            Waiting { job: Some(job), ..of(step, "job", sentence) }
        }
        Wait::SubRun { step, run, .. } => {
            let sentence = format!("Step `{step}` waits for its run {run}.");
            Waiting { run: Some(run), ..of(&step, "run", sentence) }
        }
        Wait::Signal { step, name } => {
            let sentence = format!("Step `{step}` waits for the signal `{name}`.");
            of(&step, "signal", sentence)
        }
        Wait::Approval { step } => of(&step, "approval", format!("Step `{step}` waits for the votes of people.")),
        Wait::Timer { step, at } => {
            let who = if step.is_empty() { "The run".to_owned() } else { format!("Step `{step}`") };
            let sentence = format!("{who} has a time at {} ({}).", at.rfc3339(), relative(at, now));
            Waiting { until: Some(at), ..of(&step, "time", sentence) }
        }
    }
}

fn start_sentence(run: &Run, seen: &Seen) -> String {
    let Some(concurrency) = &run.plan().definition().concurrency else {
        return "The run waits to be started by the workflow service.".to_owned();
    };
    let before = match seen.ahead {
        Some(0) => "; it is the next",
        Some(1) => "; one other waits before it",
        Some(n) => &format!("; {n} others wait before it"),
        None => "",
    };
    format!(
        "The run waits for a slot: at most {} runs with its concurrency key go on at once{before}.",
        concurrency.max
    )
}

/// The sentences about the run as a whole.
fn about(run: &Run, waits: &[Waiting], next_look: Option<Time>, now: Time) -> Vec<String> {
    let (state, (started, ended)) = (run.state(), run.times());
    let mut sentences = Vec::new();
    match ended.some().filter(|_| state.is_end()) {
        Some(ended) => sentences.push(format!("The run ended {} as {state}.", relative(ended, now))),
        None => {
            let since = started.some().map(|at| format!(" and was started {}", relative(at, now))).unwrap_or_default();
            let for_what = match waits.len() {
                0 => "nothing that is known".to_owned(),
                1 => "one thing".to_owned(),
                n if n == MOST => format!("{n} things or more"),
                n => format!("{n} things"),
            };
            sentences.push(format!("The run is {state}{since}; it waits for {for_what}."));
        }
    }
    if let Some(error) = run.error() {
        let step = if error.step.is_empty() { String::new() } else { format!(" in step `{}`", error.step) };
        sentences.push(format!("Its error is `{}`{step}: {}", error.code, error.message));
    }
    match run.compensation() {
        (Undo::Running, _) => sentences.push("Its compensations run.".to_owned()),
        (Undo::Failed, failed) => sentences.push(format!(
            "{failed} of its compensations failed; `POST /api/v1/runs/{}/compensate` tries them again.",
            run.about().run
        )),
        _ => {}
    }
    if let Some(at) = next_look {
        let late = at.reached(now) && now.since(at) > OVERDUE;
        sentences.push(match late {
            true => format!(
                "The workflow service was to look at it {}, and has not: `/loops` says whether its shards have an owner.",
                relative(at, now)
            ),
            false => format!("The workflow service looks at it at {} at the latest.", at.rfc3339()),
        });
    }
    sentences
}

/// A time relative to now, in whole seconds.
fn relative(at: Time, now: Time) -> String {
    let (span, ahead) = if at.reached(now) { (now.since(at), false) } else { (at.remaining(now), true) };
    let seconds = span.as_secs();
    let text = match seconds {
        0 => return "now".to_owned(),
        1..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    };
    if ahead { format!("in {text}") } else { format!("{text} ago") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_domain::Tenant;
    use muster_engine::{
        definition::{Format, read_named},
        run::{About, Event, Plan, RunOp, What},
    };

    use super::*;

    const NOW: Time = Time(1_800_000_000_000_000);

    fn a_run(yaml: &'static str) -> Run {
        let definition = read_named(yaml.as_bytes(), Format::Yaml, None).unwrap();
        let about = About {
            tenant: Tenant::default(),
            run: RunId::mint(1),
            workflow: "order".into(),
            version: 1,
            labels: muster_domain::Labels::new(),
            principal: String::new(),
            topics: Vec::new(),
            created: NOW,
            generation: 0,
            parent: None,
            depth: 0,
            rerun_of: None,
            slot: None,
        };
        Run::new(Arc::new(Plan::new(&Arc::new(definition))), about, None)
    }

    fn explained(run: &Run, seen: &Seen) -> Vec<String> {
        run.waits_for(MOST).unwrap().into_iter().map(|wait| waiting(run, wait, seen, NOW).sentence).collect()
    }

    #[test]
    fn each_wait_has_a_sentence_that_names_it() {
        let mut run = a_run(
            "concurrency: {max: 2}\nsteps:\n- {id: a, job: {topic: t}}\n- {id: b, wait_signal: {name: paid}}\n- {id: c, delay: {ms: 90000}}\n",
        );
        let queued = Seen { ahead: Some(3), ..Seen::default() };
        let text = explained(&run, &queued).join(" ");
        assert!(text.contains("at most 2 runs") && text.contains("3 others wait before it"), "{text}");
        run.apply(&Event { at: NOW, what: What::Start }).unwrap();
        let text = explained(&run, &Seen::default()).join(" ");
        for part in ["Step `a` waits for its job", "to be submitted", "the signal `paid`", "(in 90 s)", "`submit a`"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let job = run.waits_for(MOST).unwrap().into_iter().find_map(|wait| match wait {
            Wait::Job { job, .. } => Some(job),
            _ => None,
        });
        let jobs = HashMap::from([(job.unwrap(), (JobState::Running, "w7".to_owned()))]);
        let text = explained(&run, &Seen { jobs, ahead: None }).join(" ");
        assert!(text.contains("which is running on worker w7"), "{text}");
        let op = RunOp::Pause;
        run.apply(&Event { at: NOW, what: What::Op { id: "1".into(), op } }).unwrap();
        assert!(explained(&run, &Seen::default()).join(" ").contains("somebody resumes it"));
    }

    #[test]
    fn an_owner_that_does_not_look_is_named() {
        let run = a_run("steps: [{id: a, job: {topic: t}}]");
        let later = NOW + Duration::from_secs(60);
        let said = |now| about(&run, &[], Some(NOW), now).join(" ");
        assert!(said(later).contains("1 min ago, and has not") || said(later).contains("60 s ago, and has not"));
        assert!(said(NOW).contains("looks at it at"), "{}", said(NOW));
    }
}
