//! The gateway's group commit, for a group of one: `flow::submit`.
//!
//! Order: `prepare` (the home), `submit` (the record), then concurrently `forward_homes` if the record existed and
//! `announce`. A gateway that took so long that its home may have been taken for an orphan forwards once more. Then
//! it answers. The client repeats with the same key after a crash, or gives up; it may also repeat after a 202 that
//! it did not get.

use muster_domain::State;

use super::{
    super::record::{Age, Record},
    Fault, Flaw, Steps, World,
};

/// The progress of a submit. `slow`: its home came due before the submit was complete, so more than 15 s have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Gateway {
    /// The client asks, or asks again.
    Begins,
    /// The home exists.
    Homed { slow: bool },
    /// Only if the order is wrong: the record exists, the home does not.
    Stored { existed: bool },
    /// Both exist. The fields say what is left to do before the answer.
    Committed { forward: bool, announce: bool, slow: bool },
    /// The request was answered, or the client gave up.
    Over,
}

impl Gateway {
    /// The gateway after its entry came due without a record.
    pub(super) fn slowed(self) -> Gateway {
        match self {
            Gateway::Homed { .. } => Gateway::Homed { slow: true },
            Gateway::Committed { forward, announce, .. } => Gateway::Committed { forward, announce, slow: true },
            other => other,
        }
    }

    pub(super) fn is_slow(self) -> bool {
        matches!(self, Gateway::Homed { slow: true } | Gateway::Committed { slow: true, .. })
    }

    /// Whether the gateway is about to publish the submit.
    pub(super) fn announces(self) -> bool {
        matches!(self, Gateway::Committed { announce: true, .. })
    }
}

const WHO: &str = "G";

impl Steps<'_> {
    pub(super) fn gateway(&mut self) {
        let w = self.world;
        match w.gateway {
            Gateway::Begins if self.life.has(Flaw::RecordBeforeHome) => {
                let (mut to, existed) = (w, w.record.is_some());
                to.record.get_or_insert(Record::created());
                to.gateway = Gateway::Stored { existed };
                self.push(WHO, "submit", to);
            }
            Gateway::Begins => {
                let mut to = w;
                to.touch_home();
                to.gateway = Gateway::Homed { slow: false };
                self.push(WHO, "prepare (home set)", to);
            }
            Gateway::Homed { slow } => {
                self.dies(w);
                let (mut to, existed) = (w, w.record.is_some());
                to.record.get_or_insert(Record::created());
                to.gateway = committed(&to, existed, slow);
                self.push(WHO, if existed { "submit (exists)" } else { "submit" }, to);
            }
            Gateway::Stored { existed } => {
                self.dies(w);
                let mut to = w;
                to.touch_home();
                to.gateway = committed(&to, existed, false);
                self.push(WHO, "prepare (home set)", to);
            }
            Gateway::Committed { forward, announce, slow } => self.finishes(w, forward, announce, slow),
            Gateway::Over if w.answered => {
                self.fault(Fault::Repeat, WHO, "hears the client again", World { gateway: Gateway::Begins, ..w });
            }
            Gateway::Over => {}
        }
    }

    fn finishes(&mut self, w: World, forward: bool, announce: bool, slow: bool) {
        self.dies(w);
        if forward {
            let mut to = w;
            to.touch_home();
            // The gateway's clock shows that it is slow, so touching the home does not change that.
            to.gateway = Gateway::Committed { forward: false, announce, slow };
            self.push(WHO, "forward_homes", to);
        }
        if announce {
            let gateway = Gateway::Committed { forward, announce: false, slow };
            // The message carries the record as it was read; the record may have changed since.
            let age = if w.record.is_some_and(|r| r.state == State::Pending) { Age::Now } else { Age::Old };
            self.push(WHO, "announce", World { submits: w.submits.with(age), gateway, ..w });
            self.push(WHO, "announce (bus away)", World { gateway, ..w });
        }
        if forward || announce {
            return;
        }
        if slow && !self.life.has(Flaw::NoRewrite) {
            let mut to = w;
            to.touch_home();
            to.gateway = Gateway::Committed { forward, announce, slow: false };
            self.push(WHO, "forward_homes (was slow)", to);
        } else {
            self.push(WHO, "answers", World { gateway: Gateway::Over, answered: true, ..w });
        }
    }

    /// The gateway dies, and its client asks again or gives up.
    fn dies(&mut self, w: World) {
        self.fault(Fault::Crash, WHO, "crashes; the client repeats", World { gateway: Gateway::Begins, ..w });
        self.fault(Fault::Crash, WHO, "crashes; the client gives up", World { gateway: Gateway::Over, ..w });
    }
}

fn committed(w: &World, existed: bool, slow: bool) -> Gateway {
    let pending = w.record.is_some_and(|record| record.state == State::Pending);
    Gateway::Committed { forward: existed, announce: pending, slow }
}
