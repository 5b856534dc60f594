//! The score of one home compared with the times at which its job is due: which process forwards or re-scores it, and
//! by which comparison. Time passes in this model.
//!
//! A job is next due at `next`. Transitions change it. The script of a transition tells its caller to forward the
//! home if the new time is earlier than the old one (`job/apply`'s `forward`). An extension moves the time later and
//! notifies no process. Two readers take what is due, act on it by version if its time has come, and re-score. A
//! client that repeats its submit sets the home 30 s ahead and forwards it to now. Times are multiples of ten; `t +
//! 1` means at once.
//!
//! A reader that finds the time reached, but may not act yet (silence is not proven, or a store did not answer),
//! looks again after a short time.
//!
//! Checked: while no process dies, a job whose home no process is handling is looked at no later than its next time.
//! Abstracts from: the meaning of the times, and how far ahead a safety look is.

use stateright::Property;

use super::explore::{Checked, Protocol, Step};

pub(crate) const IN_TIME: &str = "while nobody dies, nobody is looked at too late";

/// When the model's clock stops.
const LAST: u8 = 30;

/// Flaws that are introduced on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A re-score does not compare the score that was read.
    BlindRescore,
    /// A forward that would not bring the home nearer leaves the score unchanged.
    ForwardOnlyIfLess,
    /// A gateway with a repeated submit sets the home and does not forward it.
    NoForwardAfterSet,
    /// A reader that may not act yet, because silence is not proven, looks again only when it may act: up to a lease
    /// later than the time that the next transition compares with. A retry, a release or an extension meanwhile finds
    /// no reason to forward.
    LongDeferral,
}

/// The model, and how many events of each kind may happen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Homes {
    pub(crate) transitions: u8,
    pub(crate) extensions: u8,
    pub(crate) repeats: u8,
    pub(crate) crashes: u8,
    pub(crate) flaw: Option<Flaw>,
}

/// A process that has read the home and the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reader {
    /// The reader has acted: only the re-score is left.
    acted: bool,
    /// Whether the record's version is still the one that was read.
    current: bool,
    /// Whether the score is still the one that was read.
    read: bool,
    /// The next due time, as read or as set by the reader's own act.
    next: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Moment {
    t: u8,
    next: u8,
    home: u8,
    readers: [Option<Reader>; 2],
    /// A reader found the time reached and might not act: until it may, a late look is harmless.
    deferred: bool,
    /// Forwards that callers still have to send.
    forwards: Vec<u8>,
    left: Left,
}

/// How many events of each kind may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    transitions: u8,
    extensions: u8,
    repeats: u8,
    crashes: u8,
}

impl Moment {
    /// Sets a score that no reader has read.
    fn score(&mut self, home: u8) {
        (self.home, self.deferred) = (home, false);
        self.readers.iter_mut().flatten().for_each(|reader| reader.read = false);
    }

    fn moved(&mut self, next: u8) {
        self.next = next;
        self.readers.iter_mut().flatten().for_each(|reader| reader.current = false);
    }

    fn canonical(mut self) -> Moment {
        self.readers.sort_unstable();
        self.forwards.sort_unstable();
        self
    }
}

impl Homes {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn others(&self, m: &Moment, out: &mut Vec<Step<Moment>>) {
        let mut push = |who, what, to: Moment| out.push(Step::new(who, what, to.canonical()));
        if m.t < LAST {
            push("time", "passes", Moment { t: m.t + 10, ..m.clone() });
        }
        if m.left.transitions > 0 {
            for next in moments(m.t) {
                let mut to = m.clone();
                to.left.transitions -= 1;
                let nearer = next < m.next;
                to.moved(next);
                if nearer {
                    to.forwards.push(next);
                }
                push("caller", if nearer { "apply, to be forwarded" } else { "apply" }, to);
            }
        }
        if m.left.extensions > 0 && m.next <= LAST {
            let mut to = m.clone();
            to.left.extensions -= 1;
            // An extension does not change the version.
            to.next = m.next.max(m.t) / 10 * 10 + 10;
            push("worker", "extend", to);
        }
        if m.left.repeats > 0 {
            let mut to = m.clone();
            to.left.repeats -= 1;
            to.score(m.t + 30);
            if !self.has(Flaw::NoForwardAfterSet) {
                to.forwards.push(m.t + 1);
            }
            push("gateway", "prepare (home set), exists", to);
        }
        for place in 0..m.forwards.len() {
            let mut to = m.clone();
            let after = to.forwards.remove(place);
            if after < m.home {
                to.score(after);
            } else if !self.has(Flaw::ForwardOnlyIfLess) {
                // Stands for one microsecond earlier: the score differs from the one that was read.
                to.score(m.home);
            }
            push("caller", "forward_homes", to);
        }
    }

    fn reader(&self, m: &Moment, place: usize, out: &mut Vec<Step<Moment>>) {
        const WHO: [&str; 2] = ["R1", "R2"];
        let who = WHO[place];
        let mut push = |what, to: Moment| out.push(Step::new(who, what, to.canonical()));
        let put = |reader| {
            let mut to = m.clone();
            to.readers[place] = reader;
            to
        };
        let Some(reader) = m.readers[place] else {
            if m.home <= m.t {
                push("look", put(Some(Reader { acted: false, current: true, read: true, next: m.next })));
            }
            return;
        };
        let rescored = |home| {
            let mut to = put(None);
            if reader.read || self.has(Flaw::BlindRescore) {
                to.score(home);
            }
            to
        };
        if !reader.acted && reader.next <= m.t {
            if reader.current {
                for next in moments(m.t).filter(|next| *next > m.t + 1) {
                    let mut to = put(Some(Reader { acted: true, next, ..reader }));
                    to.moved(next);
                    push("apply", to);
                }
            }
            let later = if self.has(Flaw::LongDeferral) { m.t + 20 } else { m.t + 1 };
            let mut to = rescored(later);
            to.deferred |= reader.read;
            push("rescore_homes (may not act yet, or was too late)", to);
            return;
        }
        push("rescore_homes", rescored(reader.next));
        if reader.next > m.t + 10 {
            push("rescore_homes (safety look)", rescored(reader.next - 10));
        }
    }
}

/// The possible due times: at once, and every later time.
fn moments(t: u8) -> impl Iterator<Item = u8> {
    std::iter::once(t + 1).chain((1..=4).map(|n| 10 * n).filter(move |next| *next > t))
}

impl Protocol for Homes {
    type State = Moment;

    fn begins(&self) -> Vec<Moment> {
        let Homes { transitions, extensions, repeats, crashes, .. } = *self;
        let left = Left { transitions, extensions, repeats, crashes };
        let pairs = [0, 10, 20].into_iter().flat_map(|home| [0, 10, 20, 30].map(|next| (home, next)));
        pairs
            .filter(|(home, next)| home <= next)
            .map(|(home, next)| Moment {
                t: 0,
                next,
                home,
                readers: [None; 2],
                deferred: false,
                forwards: Vec::new(),
                left,
            })
            .collect()
    }

    fn steps(&self, m: &Moment) -> Vec<Step<Moment>> {
        let mut out = Vec::new();
        self.others(m, &mut out);
        for place in 0..2 {
            self.reader(m, place, &mut out);
        }
        if m.left.crashes > 0 {
            let left = Left { crashes: m.left.crashes - 1, ..m.left };
            for place in 0..m.forwards.len() {
                let mut to = Moment { left, ..m.clone() };
                to.forwards.remove(place);
                out.push(Step::fault("caller", "crashes before forward_homes", to.canonical()));
            }
            for place in 0..2 {
                let mut to = Moment { left, ..m.clone() };
                to.readers[place] = None;
                out.push(Step::fault("reader", "crashes", to.canonical()));
            }
        }
        out
    }

    /// The home is due in the future, and nothing is left to do.
    fn is_goal(&self, m: &Moment) -> bool {
        m.t == LAST && m.readers == [None; 2] && m.forwards.is_empty() && m.home > m.t
    }

    fn laws(&self) -> Vec<Property<Checked<Homes>>> {
        vec![
            Property::<Checked<Homes>>::always(IN_TIME, |model, m| {
                let busy = m.readers != [None; 2] || !m.forwards.is_empty();
                let waits = m.deferred && m.next <= m.t;
                busy || waits || m.left.crashes < model.protocol.crashes || m.home <= m.next.max(m.t + 1)
            }),
            Property::<Checked<Homes>>::sometimes("a reader is overtaken by a forward", |_, m| {
                m.readers.iter().flatten().any(|reader| !reader.read)
            }),
        ]
    }
}
