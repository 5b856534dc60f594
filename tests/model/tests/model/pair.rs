//! Two jobs that share their messages: the group of a submit, of offers, of results.
//!
//! Knows: `scheduler/intake.rs` (a first delivery is handled as a whole, a later one item by item, and only failed
//! items are published again), shared offers, the lost-offer rule by the oldest message on the subject, and the proof
//! of silence by the results' ack floor (`scheduler/lease_guard.rs`). The second job's record may be out of reach for
//! a while. Abstracts from homes, effects, retries, and from a second scheduler that does more than look;
//! [`super::batches`] covers all of these, with every fault. An attempt that is ended for silence ends the job here.
//! Ages of offers are counted in steps of thirty seconds, up to two. The model assumes, and does not show, that the
//! wait after an outage is longer than the time to handle a delivery again. Without this assumption, the flaw
//! [`Flaw::ProbeMisses`] shows what is lost, because the ack floor passes items that are published again.

#[path = "pair/steps.rs"]
mod steps;

use muster_domain::{Event, Outcome, State};
use stateright::Property;

use super::{
    explore::{Checked, Protocol, Step},
    record::{Age, Asker, Record, Seen},
};
use steps::Steps;

pub(crate) const HEARD: &str = "a result that the stream took is not overruled by silence";
pub(crate) const NEIGHBOUR: &str = "a record out of reach never holds up its neighbour";

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A scheduler or a worker dies.
    Crash,
    /// The second job's record is out of reach.
    Away,
    /// Every stream loses its messages.
    Wipe,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The probe does not notice that a record was out of reach. So the ack floor is trusted at once, although failed
    /// items were published again behind it.
    ProbeMisses,
    /// A delivery is acked although an item of it failed.
    AcksDespiteFailure,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// How many faults of these kinds may happen. Three of any kind hold as well, but that is four million states,
    /// too many for every run.
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

/// A set of the two jobs.
type Jobs = [bool; 2];
const BOTH: Jobs = [true, true];

/// A group on a stream. `again`: it was delivered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Group {
    jobs: Jobs,
    again: bool,
}

/// The offers in one message: the version of each compared with its record, and the age of the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Offers {
    of: [Option<Age>; 2],
    age: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Run {
    /// No worker has the job, or the worker that had it is dead.
    None,
    Runs,
    /// Reported, and not yet known to be settled.
    Holds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Submit,
    Result,
}

/// A running batch: the jobs that are still to be offered, and those that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Batch {
    kind: Kind,
    group: Group,
    stage: Stage,
    offer: Jobs,
    failed: Jobs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Apply,
    Offer,
    Close,
    /// The failed items were published again; the old delivery is to be acked.
    Ack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    records: [Record; 2],
    /// How long each job has been dispatched.
    ages: [u8; 2],
    runs: [Run; 2],
    submits: Vec<Group>,
    offers: Vec<Offers>,
    /// In the order of the stream: the ack floor is before the first.
    results: Vec<Group>,
    batch: Option<Batch>,
    /// A second scheduler is about to offer this job again.
    reoffers: Option<usize>,
    /// How many of the first results must be acked before silence is proven for these jobs.
    target: Option<(u8, Jobs)>,
    silent: Jobs,
    /// The second job's record is out of reach.
    away: bool,
    /// It was out of reach, and less than the time of a lease has passed since: no attempt is ended for silence.
    waits: bool,
    word: Jobs,
    overruled: bool,
    faults: u8,
}

const OLDEST: u8 = 2;

impl World {
    fn apply(&mut self, job: usize, event: Event, seen: Seen) -> Outcome {
        let outcome = self.records[job].apply(event, seen);
        if outcome == Outcome::Applied {
            for offers in &mut self.offers {
                offers.of[job] = offers.of[job].map(Age::older);
            }
            self.ages[job] = 0;
        }
        outcome
    }

    /// The age of a submit, which carries the first version of its job.
    fn submit_age(&self, job: usize) -> Age {
        let record = &self.records[job];
        match (record.state, record.last) {
            (State::Pending, _) => Age::Now,
            (State::Dispatched, Some(Event::Dispatch)) => Age::Before,
            _ => Age::Old,
        }
    }

    fn in_reach(&self, job: usize) -> bool {
        !(self.away && job == 1)
    }

    /// Discards everything that is known about silence.
    fn disturb(&mut self) {
        (self.target, self.silent, self.waits) = (None, [false; 2], true);
    }

    fn ack_result(&mut self, group: Group) {
        let Some(place) = self.results.iter().position(|g| *g == group) else { return };
        self.results.remove(place);
        if let Some((before, jobs)) = self.target
            && place < usize::from(before)
        {
            self.target = Some((before - 1, jobs));
        }
    }

    fn queue(&mut self, kind: Kind) -> &mut Vec<Group> {
        match kind {
            Kind::Submit => &mut self.submits,
            Kind::Result => &mut self.results,
        }
    }

    /// Whether the rule of the oldest offer says that this job's offer is lost.
    fn offer_is_lost(&self, job: usize) -> bool {
        match self.offers.first() {
            None => self.ages[job] >= 1,
            Some(oldest) => self.ages[job] > oldest.age + 1,
        }
    }

    fn canonical(mut self) -> World {
        self.submits.sort_unstable();
        self.submits.dedup();
        for record in &mut self.records {
            record.start_id = Asker::Nobody;
        }
        for job in 0..2 {
            if self.records[job].state != State::Dispatched {
                self.ages[job] = 0;
            }
            if self.records[job].state != State::Running {
                (self.word[job], self.silent[job]) = (false, false);
            }
        }
        if let Some((before, jobs)) = self.target
            && before == 0
        {
            self.target = None;
            for (job, over) in jobs.into_iter().enumerate() {
                self.silent[job] |= over && self.records[job].running();
            }
        }
        self
    }
}

impl Protocol for Pair {
    type State = World;

    fn begins(&self) -> Vec<World> {
        vec![World {
            records: [Record::created(); 2],
            ages: [0; 2],
            runs: [Run::None; 2],
            submits: vec![Group { jobs: BOTH, again: false }],
            offers: Vec::new(),
            results: Vec::new(),
            batch: None,
            reoffers: None,
            target: None,
            silent: [false; 2],
            away: false,
            waits: false,
            word: [false; 2],
            overruled: false,
            faults: self.faults,
        }]
    }

    fn steps(&self, w: &World) -> Vec<Step<World>> {
        let mut steps = Steps { pair: self, out: Vec::new() };
        steps.intake(w);
        steps.reconciler(w);
        steps.workers(w);
        steps.world(w);
        steps.out
    }

    fn is_goal(&self, w: &World) -> bool {
        w.records.iter().all(Record::ended) && w.batch.is_none() && w.runs == [Run::None; 2]
    }

    fn laws(&self) -> Vec<Property<Checked<Pair>>> {
        let neighbour = Property::<Checked<Pair>>::sometimes(NEIGHBOUR, |_, w| {
            w.away && w.records[0].ended() && w.records[1].running()
        });
        let mut laws = vec![
            Property::<Checked<Pair>>::always(HEARD, |_, w| !w.overruled),
            Property::<Checked<Pair>>::sometimes("both succeed", |_, w| {
                w.records.iter().all(|record| record.state == State::Succeeded)
            }),
        ];
        if self.kinds.contains(&Fault::Away) {
            laws.push(neighbour);
        }
        laws
    }
}
