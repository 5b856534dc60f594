//! What a run waits for. Every run that has not ended waits for something, and this names it.

use muster_domain::{JobId, RunId, Time};

use super::{
    command::{job_id, task},
    document::{Lack, Missing, Run},
    field::Field,
    place::Place,
    records::{Phase, Undo},
    state::RunState,
    steps,
    work::{Done, Work},
};

/// Something that a run waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A slot of its workflow, or its start.
    Start,
    /// Somebody who resumes it.
    Resume,
    /// A command to be carried out.
    Command {
        /// Its key.
        key: String,
    },
    /// The end of a job.
    Job {
        /// What the job is for.
        task: String,
        /// The job.
        job: JobId,
        /// Whether its submit was confirmed: then its absence is an error.
        confirmed: bool,
    },
    /// The end of a sub-run, or of its compensations.
    SubRun {
        /// The step.
        step: String,
        /// The sub-run.
        run: RunId,
        /// Whether its start was confirmed.
        confirmed: bool,
    },
    /// A signal.
    Signal {
        /// The step.
        step: String,
        /// The name.
        name: String,
    },
    /// The votes of people.
    Approval {
        /// The step.
        step: String,
    },
    /// A time.
    Timer {
        /// The step; empty for the run.
        step: String,
        /// When.
        at: Time,
    },
}

impl Run {
    /// What it waits for, `most` at most. Empty only if it has ended and nothing of it is left to do.
    pub fn waits_for(&self, most: usize) -> Result<Vec<Wait>, Missing> {
        let work = Work::new(self, self.head.now);
        self.waits(&work, most).map_err(|lack| self.missing(&lack))
    }

    fn waits(&self, work: &Work<'_>, most: usize) -> Done<Vec<Wait>> {
        let mut waits = Vec::new();
        let mut lack: Option<Lack> = None;
        match self.head.state {
            RunState::Queued => waits.push(Wait::Start),
            RunState::Paused => waits.push(Wait::Resume),
            _ => {}
        }
        if !self.head.state.is_end() {
            work.running(&work.root(), &mut |place| {
                if waits.len() < most && lack.is_none() {
                    match self.waits_of(work, place) {
                        Ok(found) => waits.extend(found),
                        Err(missing) => lack = Some(missing),
                    }
                }
            })?;
        }
        if self.head.undo.state == Undo::Running {
            waits.extend(self.undo_waits(work, most)?);
        }
        if let Some(missing) = lack {
            return Err(missing);
        }
        if let Some(limit) = self.head.limit.some().filter(|_| !self.head.state.is_end()) {
            waits.push(Wait::Timer { step: String::new(), at: limit });
        }
        let held = work.outbox(&Field::Outbox)?.map_or(&[][..], Vec::as_slice);
        waits.extend(held.iter().map(|key| Wait::Command { key: key.clone() }));
        waits.truncate(most);
        Ok(waits)
    }

    fn waits_of(&self, work: &Work<'_>, place: &Place) -> Done<Vec<Wait>> {
        let record = work.step(place)?;
        let step = work.plan.step(place.node);
        let mut waits = Vec::new();
        if record.phase == Phase::Work && !work.plan.is_each(place) {
            waits.extend(steps::of(&step.kind).waits(work, place, step)?);
        }
        if let Some(at) = record.wake.some() {
            waits.push(Wait::Timer { step: work.plan.text(place), at });
        }
        Ok(waits)
    }

    fn undo_waits(&self, work: &Work<'_>, most: usize) -> Done<Vec<Wait>> {
        let mut waits = Vec::new();
        let Some(list) = work.places(&Field::UndoList)? else { return Ok(waits) };
        let Some(place) = list.get(self.head.undo.at as usize).and_then(|text| work.plan.place(text)) else {
            return Ok(waits);
        };
        let mut left = vec![place];
        while let Some(place) = left.pop() {
            if waits.len() >= most {
                break;
            }
            if work.plan.is_each(&place) {
                let each = work.each(&place)?;
                for item in each.issued.saturating_sub(each.undo_issued)..each.issued {
                    left.extend(work.owed_by_item(&place.with(item))?);
                }
                continue;
            }
            let record = work.step(&place)?;
            if record.undo != Undo::Running {
                continue;
            }
            let step = work.plan.step(place.node);
            waits.push(match step.compensate.as_ref().and_then(|undo| undo.job.as_ref()) {
                Some(_) => Wait::Job {
                    task: task(work.plan, &place, true),
                    job: job_id(work.about, work.plan, &place, self.head.undo.round),
                    confirmed: false,
                },
                None => Wait::SubRun {
                    step: work.plan.text(&place),
                    run: work.sub_run(&place, record.attempt.max(1))?,
                    confirmed: true,
                },
            });
        }
        Ok(waits)
    }
}
