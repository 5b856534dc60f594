//! What holds for every run, over random definitions and random orders of events. That an event with only the fields
//! that it needs does what it does with all, and that the same event again changes nothing, [`World`] checks of each.

use muster_domain::job::Ending;
use muster_engine::run::{
    Action, Command, Event, JobEnd, Outcome, RunError, RunOp, RunState, StepState, SubRunEnd, Verb, Wait, What,
};
use proptest::prelude::*;
use serde_json::json;

use crate::{
    tape::{Maker, Tape},
    world::World,
};

/// A run under a random world.
struct Player<'t> {
    w: World,
    tape: Tape<'t>,
    events: Vec<Event>,
    /// Whether only compensations may be submitted.
    cancelled: bool,
    sub_runs_undone: usize,
}

impl Player<'_> {
    fn event(&mut self, what: What) -> Outcome {
        self.events.push(Event { at: self.w.now, what: what.clone() });
        let is_cancel = matches!(&what, What::Op { op: RunOp::Cancel { .. }, .. });
        let outcome = self.w.event(what);
        self.cancelled |= is_cancel && outcome == Outcome::Applied;
        if self.cancelled {
            for command in self.w.run.outbox(usize::MAX).unwrap() {
                let fine = !matches!(command.verb, Verb::Submit | Verb::StartRun) || self.before_cancel(&command);
                assert!(fine, "{command:?} after the cancel");
            }
        }
        if !self.w.state().is_end() {
            assert!(!self.w.waits().is_empty(), "the run waits for nothing: {}", self.w.trace());
        }
        outcome
    }

    /// A start of a run that nobody waits for is not taken back.
    fn before_cancel(&self, command: &Command) -> bool {
        matches!(&command.action, Action::StartRun { parent: None, .. })
    }

    /// Carries out one of the commands, maybe twice, maybe without telling.
    fn command(&mut self) {
        let commands = self.w.run.outbox(usize::MAX).unwrap();
        if commands.is_empty() {
            return;
        }
        let command = commands[self.tape.pick(commands.len())].clone();
        if self.tape.once_in(12) && matches!(command.verb, Verb::Submit | Verb::StartRun | Verb::Undo) {
            // Refused for good, if it was never carried out.
            let key = command.key.clone();
            let job = match &command.action {
                Action::Submit(submit) => self.w.jobs.contains_key(&submit.job),
                _ => self.w.seen.contains(&key),
            };
            if !job {
                self.event(What::Refused { key, error: RunError::new("refused", "no") });
                return;
            }
        }
        self.w.perform(command.clone());
        if !self.tape.once_in(4) {
            self.event(What::Done(command.key));
        }
    }

    fn job_end(&mut self, well: bool) {
        let open: Vec<_> =
            self.w.jobs.iter().filter(|(_, job)| !job.told).map(|(id, job)| (*id, job.clone())).collect();
        if open.is_empty() {
            return;
        }
        let (id, job) = open[self.tape.pick(open.len())].clone();
        let ends = [
            Ending::Succeeded,
            Ending::Succeeded,
            Ending::Succeeded,
            Ending::Failed,
            Ending::TimedOut,
            Ending::Cancelled,
            Ending::Quarantined,
        ];
        let ending = job.ended.unwrap_or(if well { Ending::Succeeded } else { ends[self.tape.pick(ends.len())] });
        let known = self.w.jobs.get_mut(&id).unwrap();
        (known.ended, known.told) = (Some(ending), true);
        let error = (ending == Ending::Failed).then(|| RunError::new("boom", "it broke"));
        let result = (ending == Ending::Succeeded).then(|| json!({"r": 1}));
        let end = JobEnd { task: job.task, job: id, ending, result, truncated: false, error, attempts: 1 };
        self.event(What::JobEnded(end));
    }

    fn sub_run_end(&mut self, well: bool) {
        let waits: Vec<_> = self.w.waits().into_iter().filter(|wait| matches!(wait, Wait::SubRun { .. })).collect();
        if waits.is_empty() {
            return;
        }
        let Wait::SubRun { step, run, .. } = waits[self.tape.pick(waits.len())].clone() else { return };
        let undone = self.w.run.step_state(&step).unwrap().is_some_and(StepState::is_end);
        let states = [RunState::Succeeded, RunState::Succeeded, RunState::Failed, RunState::Cancelled];
        let state = if well { RunState::Succeeded } else { states[self.tape.pick(states.len())] };
        if undone && state == RunState::Succeeded {
            self.sub_runs_undone += 1;
        }
        let error = (state != RunState::Succeeded).then(|| RunError::new("sub", "no"));
        let output = Some(json!(1));
        self.event(What::SubRunEnded(SubRunEnd { step, run, undone, state, output, error }));
    }

    fn approval(&mut self) {
        let waits = self.w.waits();
        let open: Vec<_> = waits.iter().filter(|wait| matches!(wait, Wait::Approval { .. })).collect();
        if let Some(Wait::Approval { step }) = open.get(self.tape.pick(open.len().max(1))) {
            let granted = !self.tape.once_in(3);
            self.event(What::Approval { step: step.clone(), granted, by: json!({"by": "ann"}) });
        }
    }

    fn tick(&mut self) {
        if let Some(look) = self.w.run.next_look() {
            self.w.now = look.max(self.w.now);
            self.event(What::Timer);
        }
    }

    fn op(&mut self, op: RunOp) {
        let id = format!("op-{}", self.events.len());
        self.event(What::Op { id, op });
    }

    fn by_hand(&mut self) {
        let waits = self.w.waits();
        let steps: Vec<String> = waits
            .iter()
            .filter_map(|wait| match wait {
                Wait::Job { task, .. } => Some(task.clone()),
                Wait::Signal { step, .. } | Wait::Timer { step, .. } => Some(step.clone()),
                _ => None,
            })
            .collect();
        if steps.is_empty() {
            return;
        }
        let step = steps[self.tape.pick(steps.len())].clone();
        let op = match self.tape.pick(2) {
            0 => RunOp::Skip { step, reason: "stuck".into() },
            _ => RunOp::Complete { step, result: json!(0), reason: "stuck".into() },
        };
        self.op(op);
    }

    fn step(&mut self) {
        match self.tape.pick(24) {
            0..=6 => self.command(),
            7..=12 => self.job_end(false),
            13 | 14 => self.tick(),
            15 => {
                let id = format!("sig-{}", self.tape.pick(20));
                let name = ["x", "y"][self.tape.pick(2)].to_owned();
                self.event(What::Signal { id, name, body: json!(1) });
            }
            16 | 17 => self.approval(),
            18 | 19 => self.sub_run_end(false),
            20 => self.op(RunOp::Pause),
            21 => self.op(RunOp::Resume),
            22 if self.tape.once_in(4) => {
                let compensate = !self.tape.once_in(3);
                self.op(RunOp::Cancel { compensate, reason: "enough".into() });
            }
            22 => self.by_hand(),
            _ => {
                // Something that happened comes again.
                let old = self.events[self.tape.pick(self.events.len())].clone();
                if !matches!(old.what, What::Timer) {
                    let before = self.w.run.all();
                    let outcome = self.w.run.clone().apply(&old).unwrap();
                    assert_ne!(outcome.outcome, Outcome::Applied, "{old:?} came again");
                    assert_eq!(self.w.run.all(), before);
                }
            }
        }
    }

    /// Gives the run whatever it waits for, until it ends.
    fn finish(&mut self) {
        for _ in 0..3_000 {
            if self.w.state() == RunState::Paused {
                self.op(RunOp::Resume);
            }
            let commands = self.w.run.outbox(usize::MAX).unwrap();
            for command in commands {
                self.w.perform(command.clone());
                self.event(What::Done(command.key));
            }
            let waits = self.w.waits();
            if waits.is_empty() && self.w.state().is_end() {
                return;
            }
            match waits.first() {
                Some(Wait::Job { .. }) if self.w.jobs.values().any(|job| !job.told) => self.job_end(true),
                Some(Wait::SubRun { .. }) => self.sub_run_end(true),
                Some(Wait::Approval { .. }) => self.approval(),
                _ if self.w.jobs.values().any(|job| !job.told) => self.job_end(true),
                _ => self.tick(),
            }
        }
        panic!("the run does not end: {:?}\n{:?}\n{}", self.w.state(), self.w.waits(), self.w.trace());
    }
}

/// Plays a run to its end and checks what must hold then.
fn play(making: &[u8], playing: &[u8]) {
    let definition = Maker::definition(&mut Tape::new(making));
    let yaml = definition.to_string();
    let input = json!({"flag": making.len().is_multiple_of(2), "list": [1, 2, 3, 4, 5]});
    let w = World::queued(&yaml, input);
    let mut player = Player { w, tape: Tape::new(playing), events: Vec::new(), cancelled: false, sub_runs_undone: 0 };
    player.event(What::Start);
    while !player.tape.is_over() && !player.w.state().is_end() {
        player.step();
    }
    player.finish();
    let Player { mut w, events, .. } = player;
    // Any prefix again gives the same run.
    let all = w.run.all();
    for event in &events {
        let applied = w.run.apply(event).unwrap();
        assert_ne!(applied.outcome, Outcome::Applied, "{event:?} came again");
    }
    assert_eq!(w.run.all(), all);
    // Every step has ended.
    for step in definition["steps"].as_array().unwrap() {
        let id = step["id"].as_str().unwrap();
        assert!(w.step(id).is_end(), "{id} is {} in a run that is {}", w.step(id), w.state());
    }
    // The same run from the same events, without having been saved in between.
    let mut fresh = muster_engine::run::Run::new(w.plan.clone(), w.run.about().clone(), Some(w_input(&w)));
    for event in &events {
        fresh.apply(event).unwrap();
    }
    assert_eq!(fresh.all(), all);
    // A rerun from its first step can be made, and ends.
    let first = definition["steps"][0]["id"].as_str().unwrap().to_owned();
    let about = muster_engine::run::About { rerun_of: Some(w.run.about().run), ..crate::world::about_of("again") };
    let rerun = w.run.rerun(&w.plan, about, Some(w_input(&w)), &muster_engine::run::Again::From(first)).unwrap();
    let mut again = Player {
        w: World::of(rerun.run),
        tape: Tape::new(&[]),
        events: Vec::new(),
        cancelled: false,
        sub_runs_undone: 0,
    };
    again.event(What::Start);
    again.finish();
}

fn w_input(w: &World) -> serde_json::Value {
    serde_json::from_slice(&w.saved["input"]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, max_shrink_iters: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_run_ends_and_keeps_its_promises(
        making in proptest::collection::vec(any::<u8>(), 0..120),
        playing in proptest::collection::vec(any::<u8>(), 0..240),
    ) {
        play(&making, &playing);
    }
}
