//! A world for one run: its saved fields, the jobs, sub-runs and approvals that it asked for. Every event is applied
//! three times: with all fields, with only those that the run asks for, and once more; the results must agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_domain::{JobId, RunId, Tenant, Time, job::Ending};
use muster_engine::{
    definition::{Format, read},
    run::{
        About, Action, Applied, Command, Event, JobEnd, Missing, Outcome, Plan, Run, RunError, RunOp, RunState,
        StepState, StepView, SubRunEnd, Submit, Wait, What,
    },
};
use serde_json::Value;

/// The start of every test.
pub(crate) const START: u64 = 1_700_000_000_000_000;

/// A job of the world.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) task: String,
    pub(crate) submit: Option<Submit>,
    pub(crate) ended: Option<Ending>,
    /// Whether the run was told of its end.
    pub(crate) told: bool,
}

/// A run and what is around it.
pub(crate) struct World {
    pub(crate) run: Run,
    pub(crate) plan: Arc<Plan>,
    pub(crate) saved: BTreeMap<String, Vec<u8>>,
    pub(crate) now: Time,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    /// The tasks of jobs, in the order of their submits.
    pub(crate) submitted: Vec<String>,
    pub(crate) cancelled: Vec<String>,
    /// Other commands that were carried out, each once.
    pub(crate) other: Vec<Command>,
    pub(crate) seen: BTreeSet<String>,
    pub(crate) log: Vec<String>,
    /// Bytes written by saves.
    pub(crate) written: usize,
    /// Whether every event is applied with few fields, and twice.
    pub(crate) careful: bool,
    ops: u32,
}

pub(crate) fn plan(yaml: &str) -> Arc<Plan> {
    let definition = read(yaml.as_bytes(), Format::Yaml).unwrap_or_else(|faults| panic!("{faults:#?}"));
    Arc::new(Plan::new(&Arc::new(definition)))
}

pub(crate) fn about() -> About {
    about_of("run")
}

pub(crate) fn about_of(name: &str) -> About {
    let tenant = Tenant::parse("acme").unwrap();
    About {
        run: RunId::derive("test", &tenant, name),
        tenant,
        workflow: "order".into(),
        version: 1,
        labels: BTreeMap::new(),
        principal: String::new(),
        topics: Vec::new(),
        created: Time(START),
        generation: 0,
        parent: None,
        depth: 0,
        rerun_of: None,
        slot: None,
    }
}

impl World {
    /// A run that was stored and not started.
    pub(crate) fn queued(yaml: &str, input: Value) -> World {
        World::of(Run::new(plan(yaml), about(), Some(input)))
    }

    pub(crate) fn of(run: Run) -> World {
        let mut world = World {
            plan: run.plan().clone(),
            run,
            saved: BTreeMap::new(),
            now: Time(START),
            jobs: BTreeMap::new(),
            submitted: Vec::new(),
            cancelled: Vec::new(),
            other: Vec::new(),
            seen: BTreeSet::new(),
            log: Vec::new(),
            written: 0,
            careful: true,
            ops: 0,
        };
        world.save();
        world
    }

    /// A run that was started.
    pub(crate) fn start(yaml: &str, input: Value) -> World {
        let mut world = World::queued(yaml, input);
        world.event(What::Start);
        world
    }

    pub(crate) fn save(&mut self) {
        for (name, bytes) in self.run.changes() {
            match bytes {
                Some(bytes) => {
                    self.written += name.len() + bytes.len();
                    self.saved.insert(name, bytes);
                }
                None => drop(self.saved.remove(&name)),
            }
        }
        self.run.saved();
    }

    pub(crate) fn loaded(&self) -> Run {
        Run::load(self.plan.clone(), self.saved.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))).unwrap()
    }

    /// The saved run with only head and what `what` turned out to need.
    pub(crate) fn with_little<T>(&self, mut what: impl FnMut(&mut Run) -> Result<T, Missing>) -> (Run, T) {
        let field = |name: &str| self.saved.get(name).map(Vec::as_slice);
        let mut run = Run::load_some(self.plan.clone(), ["head", "about"].map(|name| (name, field(name)))).unwrap();
        for _ in 0..10_000 {
            match what(&mut run) {
                Ok(done) => return (run, done),
                Err(missing) => {
                    assert!(!missing.fields.is_empty());
                    for name in missing.fields {
                        run.add(&name, field(&name)).unwrap();
                    }
                }
            }
        }
        panic!("an event needs fields again and again");
    }

    /// Applies an event and saves the run.
    pub(crate) fn event(&mut self, what: What) -> Outcome {
        let event = Event { at: self.now, what };
        let few = self.careful.then(|| self.with_little(|run| run.apply(&event)));
        let applied = self.run.apply(&event).unwrap();
        if let Some((few, few_applied)) = few {
            assert_eq!(applied, few_applied, "few fields and all fields disagree about {event:?}");
            let mut with_few = self.saved.clone();
            for (name, bytes) in few.changes() {
                match bytes {
                    Some(bytes) => drop(with_few.insert(name, bytes)),
                    None => drop(with_few.remove(&name)),
                }
            }
            let all: BTreeMap<String, Vec<u8>> = self.run.all().into_iter().collect();
            same_fields(&with_few, &all);
            let mut again = self.run.clone();
            let twice = again.apply(&event).unwrap();
            assert_ne!(twice.outcome, Outcome::Applied, "applied twice: {event:?}");
            assert_eq!(again.all(), self.run.all(), "the second time changed something: {event:?}");
        }
        self.note(&applied);
        self.save();
        if self.careful {
            let loaded: BTreeMap<String, Vec<u8>> = self.loaded().all().into_iter().collect();
            same_fields(&loaded, &self.saved);
            self.check_outbox(&applied.commands);
        }
        applied.outcome
    }

    fn note(&mut self, applied: &Applied) {
        for entry in &applied.timeline {
            let mut line = if entry.step.is_empty() { "run".to_owned() } else { entry.step.clone() };
            line = format!("{line} {}", entry.what);
            if !entry.why.is_empty() {
                line = format!("{line} ({})", entry.why);
            }
            self.log.push(line);
        }
    }

    /// New commands are built the same from what was saved, unless they were not needed any more in the end.
    fn check_outbox(&self, new: &[Command]) {
        let outbox = self.loaded().outbox(usize::MAX).unwrap();
        let keys: BTreeSet<&str> = outbox.iter().map(|command| command.key.as_str()).collect();
        assert_eq!(keys.len(), outbox.len(), "a command is there twice");
        for command in &outbox {
            assert!(!matches!(command.action, Action::Broken(_)), "{command:?}");
            if let Some(new) = new.iter().find(|new| new.key == command.key) {
                assert_eq!(new, command);
            }
        }
    }

    /// Carries out what the run asks for, and tells it. Job commands change the world; others are noted.
    pub(crate) fn carry_out(&mut self) {
        loop {
            let commands = self.run.outbox(usize::MAX).unwrap();
            if commands.is_empty() {
                return;
            }
            for command in commands {
                let key = command.key.clone();
                self.perform(command);
                self.event(What::Done(key));
            }
        }
    }

    pub(crate) fn perform(&mut self, command: Command) {
        match &command.action {
            Action::Submit(submit) => {
                if !self.jobs.contains_key(&submit.job) {
                    self.submitted.push(submit.task.clone());
                }
                let new =
                    Job { task: submit.task.clone(), submit: Some(submit.as_ref().clone()), ended: None, told: false };
                self.jobs.entry(submit.job).or_insert(new);
            }
            Action::CancelJob { job, task, only_if_absent, .. } => {
                let absent = !self.jobs.contains_key(job);
                let known =
                    self.jobs.entry(*job).or_insert(Job { task: task.clone(), submit: None, ended: None, told: false });
                if known.ended.is_none() && (absent || !only_if_absent) {
                    self.cancelled.push(task.clone());
                    known.ended = Some(Ending::Cancelled);
                }
            }
            _ if self.seen.insert(command.key.clone()) => self.other.push(command),
            _ => {}
        }
    }

    pub(crate) fn job(&self, task: &str) -> (JobId, &Job) {
        let (id, job) = self.jobs.iter().rev().find(|(_, job)| job.task == task && !job.told).unwrap_or_else(|| {
            panic!("no job for {task}; there are {:?}", self.jobs.values().map(|job| &job.task).collect::<Vec<_>>())
        });
        (*id, job)
    }

    pub(crate) fn submit_of(&self, task: &str) -> Submit {
        self.job(task).1.submit.clone().unwrap()
    }

    /// Carries out commands, ends a job, and carries out what follows.
    pub(crate) fn end(&mut self, task: &str, ending: Ending, result: Option<Value>) -> Outcome {
        self.carry_out();
        let (id, job) = self.job(task);
        let ending = job.ended.unwrap_or(ending);
        let outcome = self.job_ended(id, ending, result);
        self.carry_out();
        outcome
    }

    pub(crate) fn job_ended(&mut self, id: JobId, ending: Ending, result: Option<Value>) -> Outcome {
        let job = self.jobs.get_mut(&id).unwrap();
        (job.ended, job.told) = (Some(ending), true);
        let task = job.task.clone();
        let error = (ending == Ending::Failed).then(|| RunError::new("boom", "it broke"));
        let end = JobEnd { task, job: id, ending, result, truncated: false, error, attempts: 1 };
        self.event(What::JobEnded(end))
    }

    pub(crate) fn succeed(&mut self, task: &str, result: Value) {
        self.end(task, Ending::Succeeded, Some(result));
    }

    pub(crate) fn fail(&mut self, task: &str) {
        self.end(task, Ending::Failed, None);
    }

    /// Tells the run of every job that ended without its knowledge: those that were cancelled.
    pub(crate) fn tell_cancelled(&mut self) {
        self.carry_out();
        let ended: Vec<JobId> =
            self.jobs.iter().filter(|(_, job)| job.ended.is_some() && !job.told).map(|(id, _)| *id).collect();
        for id in ended {
            self.job_ended(id, Ending::Cancelled, None);
        }
        self.carry_out();
    }

    /// Lets time pass, with a timer whenever the run asks for one.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = Time(self.now.0 + ms * 1000);
        for _ in 0..100_000 {
            match self.run.next_look().filter(|look| *look <= end) {
                Some(look) => {
                    self.now = look.max(self.now);
                    self.event(What::Timer);
                }
                None => {
                    self.now = end;
                    self.carry_out();
                    return;
                }
            }
        }
        panic!("the run asks for a timer again and again: {:?}", self.run.next_look());
    }

    pub(crate) fn op(&mut self, op: RunOp) -> Outcome {
        self.ops += 1;
        let outcome = self.event(What::Op { id: format!("op-{}", self.ops), op });
        self.carry_out();
        outcome
    }

    pub(crate) fn cancel(&mut self) -> Outcome {
        self.op(RunOp::Cancel { compensate: true, reason: "enough".into() })
    }

    pub(crate) fn signal(&mut self, id: &str, name: &str, body: Value) -> Outcome {
        self.event(What::Signal { id: id.into(), name: name.into(), body })
    }

    pub(crate) fn state(&self) -> RunState {
        self.run.state()
    }

    pub(crate) fn step(&self, place: &str) -> StepState {
        self.run.step_state(place).unwrap().unwrap_or_else(|| panic!("no place {place}"))
    }

    /// All steps as people see them, which are the same with few fields.
    pub(crate) fn views(&self) -> Vec<StepView> {
        let views = self.run.view_steps().unwrap();
        assert_eq!(self.with_little(|run| run.view_steps()).1, views);
        views
    }

    pub(crate) fn view(&self, place: &str) -> StepView {
        let views = self.views();
        views.into_iter().find(|view| view.place == place).unwrap_or_else(|| panic!("no view of {place}"))
    }

    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.run.waits_for(usize::MAX).unwrap()
    }

    pub(crate) fn output(&self) -> Option<Value> {
        self.saved.get("output").map(|bytes| serde_json::from_slice(bytes).unwrap())
    }

    pub(crate) fn error_code(&self) -> String {
        self.run.error().map(|error| error.code.clone()).unwrap_or_default()
    }

    /// Ends the sub-run that a step waits for.
    pub(crate) fn end_sub_run(&mut self, step: &str, state: RunState, output: Option<Value>) -> Outcome {
        self.carry_out();
        let run = self
            .waits()
            .into_iter()
            .find_map(|wait| match wait {
                Wait::SubRun { step: other, run, .. } if other == step => Some(run),
                _ => None,
            })
            .unwrap_or_else(|| panic!("{step} waits for no run"));
        let error = (state != RunState::Succeeded).then(|| RunError::new("sub_boom", "it broke"));
        let outcome =
            self.event(What::SubRunEnded(SubRunEnd { step: step.into(), run, undone: false, state, output, error }));
        self.carry_out();
        outcome
    }

    /// What happened, in order, for a golden trace.
    pub(crate) fn trace(&self) -> String {
        self.log.join("\n")
    }
}

/// Same names, and the same JSON under each.
pub(crate) fn same_fields(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, bytes) in a {
        let (a, b) = (String::from_utf8_lossy(bytes), String::from_utf8_lossy(&b[name]));
        assert_eq!(a, b, "field {name}");
    }
}
