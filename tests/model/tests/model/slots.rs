//! Concurrency slots: two jobs under the same limit of one, and both schedulers.
//!
//! Knows: `scheduler/slots.rs`, `recall.rs`, the slots' part of `settle.rs`, of the reconciler's ends and of
//! `flow::finish`, and the three scripts of `lua/slot`. Order: take the place, take the slot, dispatch by version
//! (the record then names the version), offer; when the attempt is over, give both back and see which job is next.
//! The real [`judge`] decides whether a slot is over. Versions are numbers here: they grow only with attempts and
//! faults.
//!
//! Abstracts from: the backlog (an entry exists while its job waits, and a claim may lapse at any moment, so any
//! scheduler may take any waiting job, also two at the same time; [`super::rounds`] has both); homes of active jobs
//! ([`super::life`]); priorities (the first job is first in line). Of a score the model knows only whether its look
//! has come, and only where that matters, which is before the dispatch: a member is taken once under its version, so
//! nothing depends on comparing scores. Each attempt has a worker of its own, with one slot. A worker that has lost
//! its attempt is forgotten when the next one starts, though its report may still come. The ack of a result is one
//! step with the last write before it.
//!
//! Explored every time: any one fault, and any two of those that move a slot. Any two of all hold as well, but those
//! are 2,362,154 states under a key and 1,085,288 under a place, too many for every run.

#[path = "slots/steps.rs"]
mod steps;

use std::{collections::HashMap, sync::LazyLock, time::Duration};

use muster_domain::{
    Ending, Event, Head, Outcome, Phase, StartId, State, Time, WorkerId,
    job::Lease,
    slot::{Holder, Slot, judge},
};
use stateright::Property;

use super::{
    explore::{Checked, Protocol, Step},
    record::{Age, Asker, MAX_ATTEMPTS, Record, Report, Seen},
};
use steps::Steps;

pub(crate) const WITHIN_LIMIT: &str = "never more holders than slots";
pub(crate) const STARTS: &str = "no more starts than attempts, under a limit";

/// What can go wrong, and other events that no path to the end may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A scheduler or a worker dies.
    Crash,
    /// A script is applied, but its answer is lost.
    LostReply,
    /// A result is delivered again although its first receiver is alive.
    Redelivery,
    /// Every stream loses its messages.
    Wipe,
    /// A lease expires although its worker is alive.
    Expiry,
    /// An admitted job is not dispatched for longer than a slot is left alone.
    Slow,
    /// A handler fails.
    Failure,
    /// A client cancels the job.
    Cancel,
    /// The topic is paused when a worker asks: the offer is taken back.
    Pause,
}

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A slot is given back without a new version although its job waits under that very version.
    FreesAdmitting,
    /// A scheduler that loses the dispatch gives its slot back whatever the record says.
    LoserFrees,
    /// A slot whose look has come is given back, whatever the record says.
    TimeAlone,
    /// An end gives its slot back although the worker may still run the job.
    EndFrees,
    /// The next job in line, if it has moved on, is removed even if it holds the slot by now.
    HandOverFrees,
    /// A member is the job without its version.
    BareMember,
    /// No scheduler looks at the holders of the slots.
    NeverReclaims,
    /// A lost attempt is not counted.
    LostIsFree,
}

/// The limits that both jobs are under, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Limit {
    /// `concurrency.max` of their topic: there is no line of waiting jobs.
    Topic,
    /// Their `concurrency_key`: a job that finds it taken waits in line.
    Key,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    pub(crate) limits: &'static [Limit],
    pub(crate) faults: u8,
    pub(crate) kinds: &'static [Fault],
    pub(crate) flaw: Option<Flaw>,
}

impl Slots {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

/// `job:version at admission`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Member {
    job: usize,
    version: u8,
}

/// A limit's sorted set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Set {
    holder: Option<Member>,
    /// Whether the holder's look has come.
    lapsed: bool,
    /// The waiting jobs, in the order of their arrival.
    line: Vec<Member>,
}

/// A worker's report, and the slot that it gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Said {
    report: Report,
    slot: Member,
    /// Whether the fence is the record's.
    ours: bool,
}

/// The worker of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Run {
    None,
    Works(Member),
    /// The worker has reported its result, and waits for `settled`.
    Holds(Said),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Job {
    record: Record,
    version: u8,
    /// The field `c`: the version under which the job was last dispatched.
    named: Option<u8>,
    /// The last lease is not over, or was not over when the attempt was cut off.
    leased: bool,
    /// There is an offer of this version on the stream.
    offered: bool,
    /// The effects of its end are still to be done.
    home: bool,
    run: Run,
}

/// What a scheduler, or a gateway that cancels, is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hand {
    Idle,
    /// The scheduler has claimed an entry and read that its job waits; it has this many of the limits.
    Take {
        member: Member,
        had: usize,
    },
    /// The scheduler got no slot of the key, because of this holder if that is known: it gives the place back.
    Unplace {
        member: Member,
        holder: Option<Held>,
    },
    Dispatch(Member),
    /// The job is dispatched, and this version is to be offered.
    Offer(Member),
    /// The scheduler found all slots taken by this holder.
    Reclaim(Held),
    AdmitAnew(Held),
    /// No worker runs under this slot any more.
    FreeOne(Held),
    /// The attempt under this slot is over: the scheduler gives back the rest of its limits, then acks the report.
    Free {
        slot: Member,
        done: usize,
        said: Option<Said>,
    },
    /// The script has returned that this job is next in line.
    Next(Member),
    Settle(Said),
    /// The gateway has read the record with this slot named.
    Cancel {
        job: usize,
        named: Option<u8>,
    },
}

/// A holder as a script reports it: of which limit, and whether its look had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Held {
    of: usize,
    member: Member,
    lapsed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    jobs: [Job; 2],
    sets: [Set; 2],
    hands: [Hand; 2],
    said: Vec<Said>,
    starts: [u8; 2],
    faults: u8,
}

impl World {
    fn age(&self, member: Member) -> Age {
        match self.jobs[member.job].version - member.version {
            0 => Age::Now,
            1 => Age::Before,
            _ => Age::Old,
        }
    }

    /// `job/apply`.
    fn apply(&mut self, job: usize, event: Event, seen: Seen) -> Outcome {
        let of = &mut self.jobs[job];
        let ran = of.record.running();
        let outcome = of.record.apply(event, seen);
        if outcome != Outcome::Applied {
            return outcome;
        }
        (of.version, of.offered) = (of.version + 1, false);
        match event {
            Event::Dispatch => of.named = Some(of.version - 1),
            Event::Start => {
                of.leased = true;
                self.starts[job] += 1;
                self.said.iter_mut().filter(|said| said.slot.job == job).for_each(|said| said.ours = false);
                for hand in &mut self.hands {
                    if let Hand::Settle(said) | Hand::Free { said: Some(said), .. } = hand
                        && said.slot.job == job
                    {
                        said.ours = false;
                    }
                }
            }
            // The attempt was cut off, and its worker may still run the job.
            Event::Cancel => {}
            _ if ran => of.leased = false,
            _ => {}
        }
        outcome
    }

    fn judged(&self, member: Member) -> Verdict {
        let job = &self.jobs[member.job];
        let facts = Facts {
            current: job.version == member.version,
            named: job.named == Some(member.version),
            state: job.record.state,
            ended_by: job.record.ended_by,
            leased: job.leased,
        };
        VERDICTS[&facts]
    }

    /// Whether a worker runs the job or may start it, as far as fences and leases show.
    fn occupies(&self, job: usize) -> bool {
        let Job { record, leased, run, .. } = &self.jobs[job];
        let at_it = *leased && matches!(run, Run::Works(_));
        at_it || matches!(record.state, State::Dispatched | State::Running)
    }

    fn canonical(mut self) -> World {
        self.hands.sort_unstable();
        self.said.sort_unstable();
        self.said.dedup();
        for job in &mut self.jobs {
            job.record.start_id = Asker::Nobody;
        }
        for set in &mut self.sets {
            set.line.sort_unstable();
            set.lapsed &= set.holder.is_some();
        }
        self
    }
}

/// The input of [`judge`], reduced to what it distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Facts {
    current: bool,
    named: bool,
    state: State,
    ended_by: Option<Event>,
    leased: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Over,
    Admitting,
    Held,
}

/// The answers of the real rule to every question that this model can ask.
static VERDICTS: LazyLock<HashMap<Facts, Verdict>> = LazyLock::new(|| {
    let mut verdicts = HashMap::new();
    let ends = Event::ALL.iter().copied().map(Some).chain([None]);
    for (&state, ended_by) in State::ALL.iter().flat_map(|state| ends.clone().map(move |end| (state, end))) {
        for bits in 0..8 {
            let [current, named, leased] = [1, 2, 4].map(|bit| bits & bit != 0);
            let facts = Facts { current, named, state, ended_by, leased };
            verdicts.insert(facts, ask_judge(facts));
        }
    }
    verdicts
});

fn ask_judge(facts: Facts) -> Verdict {
    const NOW: Time = Time(1_800_000_000_000_000);
    let Facts { current, named, state, ended_by, leased } = facts;
    let hour = Duration::from_secs(3600);
    let until = if leased { NOW + hour } else { NOW };
    let phase = match state {
        State::Pending => Phase::Pending { run_at: Time::NONE },
        State::Scheduled => Phase::Scheduled { run_at: NOW },
        State::Retrying => Phase::Retrying { run_at: NOW },
        State::AwaitingApproval => Phase::AwaitingApproval { expires: NOW },
        State::Queued => Phase::Queued,
        State::Dispatched => Phase::Dispatched,
        State::Running => {
            let lease = Lease { worker: WorkerId::trusted("w"), start_id: StartId([0; 8]), until };
            Phase::Running { lease, attempt_end: None }
        }
        over => Phase::Ended { end: Ending::try_from(over).expect("an end"), lease_end: leased.then_some(until) },
    };
    let head = Head {
        version: 9,
        attempt: 1,
        max_attempts: MAX_ATTEMPTS.into(),
        lost: 0,
        released: 0,
        timeout: None,
        fence: 9,
        since: NOW.before(hour),
        deadline: None,
        start_by: None,
        started_at: Some(NOW.before(hour)),
        created_at: NOW.before(hour),
        last_event: None,
        attempt_ended_by: ended_by,
        last_worker: None,
        phase,
    };
    let version = if current { 9 } else { 6 };
    let slot = Some(if named { version } else { 3 });
    match judge(version, Some(Holder { head: &head, slot, lease_until: leased.then_some(until) }), NOW) {
        Slot::Over => Verdict::Over,
        Slot::Admitting => Verdict::Admitting,
        Slot::Held(_) => Verdict::Held,
    }
}

impl Protocol for Slots {
    type State = World;

    fn begins(&self) -> Vec<World> {
        let mut record = Record::created();
        record.apply(Event::Hold, Seen::Version(Age::Now));
        let (run, home) = (Run::None, true);
        let job = Job { record, version: 2, named: None, leased: false, offered: false, home, run };
        vec![World {
            jobs: [job; 2],
            sets: [Set::default(), Set::default()],
            hands: [Hand::Idle; 2],
            said: Vec::new(),
            starts: [0; 2],
            faults: self.faults,
        }]
    }

    fn steps(&self, world: &World) -> Vec<Step<World>> {
        let mut steps = Steps { slots: self, world, out: Vec::new() };
        steps.hands();
        steps.workers();
        steps.world();
        steps.out
    }

    /// A slot that no job needs any more may remain: a job that needs it finds that it is over.
    fn is_goal(&self, w: &World) -> bool {
        let over = |job: &Job| job.record.ended() && !job.home && job.run == Run::None;
        w.jobs.iter().all(over) && w.hands == [Hand::Idle; 2]
    }

    fn laws(&self) -> Vec<Property<Checked<Slots>>> {
        vec![
            Property::<Checked<Slots>>::always(WITHIN_LIMIT, |_, w| !(w.occupies(0) && w.occupies(1))),
            Property::<Checked<Slots>>::always(STARTS, |_, w| w.starts.iter().all(|starts| *starts <= MAX_ATTEMPTS)),
            Property::<Checked<Slots>>::sometimes("one runs while the other has found the slot taken", |_, w| {
                w.jobs[0].record.running() && matches!(w.hands[1], Hand::Reclaim(held) if held.member.job == 0)
            }),
        ]
    }
}
