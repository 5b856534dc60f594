//! Two gateways with the same submit, and the readers that take its home for an orphan.
//!
//! Time passes here, five seconds a step. A home is set six steps ahead. A gateway that needed four or more steps
//! writes it again before it answers. An entry without a record may be removed once it is due. Any process may be
//! arbitrarily slow, and a write may still arrive after its sender died. The rest of the job's life is one step: it
//! ends. Checked: an answered submit has a record and, while the job is active, a home; and everything left behind is
//! cleaned up.

use stateright::Property;

use super::explore::{Checked, Protocol, Step};

pub(crate) const ANSWERED_STORED: &str = "what was answered is stored";
pub(crate) const ANSWERED_HOMED: &str = "what was answered and lives has a home";

/// How far ahead a submit sets its home.
const AHEAD: u8 = 6;
/// From this many steps on a gateway is slow.
const SLOW: u8 = 4;

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// An existing home is left unchanged if it is earlier.
    SetOnlyIfLess,
    /// A slow gateway does not write its home again.
    NoRewrite,
    /// An orphan is removed whatever its score.
    UncomparedRemoval,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Submits {
    pub(crate) crashes: u8,
    /// The clock of the home's node jumps ahead: then only the wait after an outage protects orphans.
    pub(crate) jumps: u8,
    /// Whether orphans are left alone after a jump, until the earlier gateways are done.
    pub(crate) waits_after_a_jump: bool,
    pub(crate) flaw: Option<Flaw>,
}

impl Submits {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Job {
    None,
    Alive,
    Ended,
}

/// The progress of a gateway, how long it has been working, and whether the record existed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Gateway {
    at: At,
    since: u8,
    existed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum At {
    Idle,
    /// The write of the home was sent.
    Sent,
    Homed,
    Stored,
    /// The home was written again if that was needed.
    Sure,
    Forwarded,
    Over,
}

/// What a reader is about to do with the entry that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reader {
    Idle,
    DropOrphan { read: bool },
    Rescore { read: bool },
    DropHome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shard {
    /// Steps until the home is due.
    home: Option<u8>,
    job: Job,
    answered: bool,
    effects: bool,
    gateways: [Gateway; 2],
    readers: [Reader; 2],
    /// Writes that are still on their way after their sender died: homes and records.
    late_homes: u8,
    late_records: u8,
    /// Steps until orphans may be removed again after a jump.
    wait: u8,
    crashes: u8,
    jumps: u8,
}

impl Shard {
    fn score(&mut self, home: Option<u8>) {
        self.home = home;
        for reader in &mut self.readers {
            if let Reader::DropOrphan { read } | Reader::Rescore { read } = reader {
                *read = false;
            }
        }
    }

    fn canonical(mut self) -> Shard {
        self.gateways.sort_unstable();
        self.readers.sort_unstable();
        self
    }
}

impl Submits {
    fn gateway(&self, s: &Shard, place: usize, out: &mut Vec<Step<Shard>>) {
        const WHO: [&str; 2] = ["G1", "G2"];
        let who = WHO[place];
        let gateway = s.gateways[place];
        let put = |at| {
            let mut to = *s;
            to.gateways[place].at = at;
            to
        };
        let mut push = |what, to: Shard| out.push(Step::new(who, what, to.canonical()));
        match gateway.at {
            At::Idle => {
                let mut to = *s;
                to.gateways[place] = Gateway { at: At::Sent, since: 0, existed: false };
                push("prepare: sends the home", to);
            }
            At::Sent => {
                let mut to = put(At::Homed);
                let earlier = s.home.is_some_and(|home| home <= AHEAD);
                if !(self.has(Flaw::SetOnlyIfLess) && earlier) {
                    to.score(Some(AHEAD));
                }
                push("prepare: home set", to);
            }
            At::Homed => {
                let mut to = put(At::Stored);
                to.gateways[place].existed = s.job != Job::None;
                to.job = to.job.max(Job::Alive);
                push("submit", to);
            }
            At::Stored => {
                let mut to = put(At::Sure);
                if gateway.since >= SLOW && !self.has(Flaw::NoRewrite) {
                    to.score(Some(s.home.map_or(0, |home| home.min(AHEAD))));
                    to.gateways[place].since = 0;
                    push("forward_homes (was slow)", to);
                } else {
                    push("is fast enough", to);
                }
            }
            At::Sure => {
                let mut to = put(At::Forwarded);
                if gateway.existed {
                    to.score(Some(0));
                }
                push("forward_homes if it existed", to);
            }
            At::Forwarded => {
                let mut to = *s;
                to.gateways[place] = Gateway { at: At::Over, since: 0, existed: false };
                to.answered = true;
                push("answers", to);
            }
            At::Over => {}
        }
        if s.crashes > 0 && !matches!(gateway.at, At::Idle | At::Over) {
            let mut to = *s;
            to.crashes -= 1;
            to.gateways[place] = Gateway { at: At::Idle, since: 0, existed: false };
            let mut fault = |what, to: Shard| out.push(Step::fault(who, what, to.canonical()));
            fault("crashes; the client repeats", to);
            let mut gone = to;
            gone.gateways[place].at = At::Over;
            fault("crashes; the client gives up", gone);
            match gateway.at {
                At::Sent => fault("crashes, its home still under way", Shard { late_homes: s.late_homes + 1, ..to }),
                At::Homed => {
                    fault("crashes, its record still under way", Shard { late_records: s.late_records + 1, ..to })
                }
                _ => {}
            }
        }
    }

    fn reader(&self, s: &Shard, place: usize, out: &mut Vec<Step<Shard>>) {
        const WHO: [&str; 2] = ["R1", "R2"];
        let put = |reader| {
            let mut to = *s;
            to.readers[place] = reader;
            to
        };
        let mut push = |what, to: Shard| out.push(Step::new(WHO[place], what, to.canonical()));
        match s.readers[place] {
            Reader::Idle if s.home == Some(0) => match s.job {
                Job::None if s.wait > 0 => {}
                Job::None => push("look: no record", put(Reader::DropOrphan { read: true })),
                Job::Alive => push("look: alive", put(Reader::Rescore { read: true })),
                Job::Ended => {
                    let mut to = put(Reader::DropHome);
                    to.effects = true;
                    push("look: ended, finish: effects", to);
                }
            },
            Reader::Idle => {}
            Reader::DropOrphan { read } => {
                let mut to = put(Reader::Idle);
                if read || self.has(Flaw::UncomparedRemoval) {
                    to.score(None);
                }
                push("drop_orphan_home", to);
            }
            Reader::Rescore { read } => {
                let mut to = put(Reader::Idle);
                if read {
                    to.score(Some(AHEAD));
                }
                push("rescore_homes", to);
            }
            Reader::DropHome => {
                let mut to = put(Reader::Idle);
                to.score(None);
                push("finish: drop_homes", to);
            }
        }
    }

    fn others(&self, s: &Shard, out: &mut Vec<Step<Shard>>) {
        let mut push = |who, what, to: Shard| out.push(Step::new(who, what, to.canonical()));
        let mut to = *s;
        to.home = s.home.map(|home| home.saturating_sub(1));
        to.wait = s.wait.saturating_sub(1);
        for gateway in &mut to.gateways {
            if !matches!(gateway.at, At::Idle | At::Over) {
                gateway.since = (gateway.since + 1).min(SLOW);
            }
        }
        push("time", "passes", to);
        if s.late_homes > 0 {
            let mut to = *s;
            to.late_homes -= 1;
            to.score(Some(AHEAD));
            push("a dead gateway's", "home set", to);
        }
        if s.late_records > 0 {
            let mut to = *s;
            to.late_records -= 1;
            to.job = to.job.max(Job::Alive);
            push("a dead gateway's", "submit", to);
        }
        if s.job == Job::Alive {
            let mut to = Shard { job: Job::Ended, effects: true, ..*s };
            to.score(None);
            push("scheduler", "ends the job, finish", to);
            let to = Shard { job: Job::Ended, ..*s };
            out.push(Step::fault("scheduler", "ends the job, crashes before finish", to.canonical()));
            if s.home.is_none() {
                let mut to = *s;
                to.score(Some(0));
                out.push(Step::new("scrub", "puts the home back", to.canonical()));
            }
        }
        if s.job == Job::Ended && !s.effects && s.home.is_none() {
            let mut to = *s;
            to.score(Some(0));
            out.push(Step::new("scrub", "puts the home back", to.canonical()));
        }
        if s.jumps > 0 && s.home.is_some_and(|home| home > 0) {
            // The wait is as long as that of the slowest gateway that does not know that it is slow.
            let wait = if self.waits_after_a_jump { SLOW } else { 0 };
            let to = Shard { home: Some(0), jumps: s.jumps - 1, wait, ..*s };
            out.push(Step::fault("Redis", "jumps ahead", to.canonical()));
        }
    }
}

impl Protocol for Submits {
    type State = Shard;

    fn begins(&self) -> Vec<Shard> {
        vec![Shard {
            home: None,
            job: Job::None,
            answered: false,
            effects: false,
            gateways: [Gateway { at: At::Idle, since: 0, existed: false }; 2],
            readers: [Reader::Idle; 2],
            late_homes: 0,
            late_records: 0,
            wait: 0,
            crashes: self.crashes,
            jumps: self.jumps,
        }]
    }

    fn steps(&self, s: &Shard) -> Vec<Step<Shard>> {
        let mut out = Vec::new();
        for place in 0..2 {
            self.gateway(s, place, &mut out);
            self.reader(s, place, &mut out);
        }
        self.others(s, &mut out);
        out
    }

    fn is_goal(&self, s: &Shard) -> bool {
        let still = s.readers == [Reader::Idle; 2]
            && s.gateways.iter().all(|gateway| gateway.at == At::Over)
            && s.late_homes == 0
            && s.late_records == 0;
        still && s.home.is_none() && (s.job == Job::None || s.job == Job::Ended && s.effects)
    }

    fn laws(&self) -> Vec<Property<Checked<Submits>>> {
        vec![
            Property::<Checked<Submits>>::always(ANSWERED_STORED, |_, s| !s.answered || s.job != Job::None),
            Property::<Checked<Submits>>::always(ANSWERED_HOMED, |_, s| {
                !s.answered || s.job != Job::Alive || s.home.is_some()
            }),
            Property::<Checked<Submits>>::sometimes("an orphan is about to be removed", |_, s| {
                s.readers.iter().any(|reader| matches!(reader, Reader::DropOrphan { .. }))
            }),
        ]
    }
}
