//! `steps`: a graph of steps of its own.

use super::{Behaviour, halt_scopes};
use crate::{
    definition::Step,
    run::{Done, Place, StopWhy, Work},
};

pub(crate) struct Steps;

impl Behaviour for Steps {
    fn start(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        work.begin_scope(place, 0)
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, _: &Step, _: StopWhy) -> Done {
        halt_scopes(work, place)
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        halt_scopes(work, place)
    }

    fn scope_ended(&self, work: &mut Work<'_>, place: &Place, _: &Step, branch: u32) -> Done {
        work.end_with_scope(place, branch, None)
    }
}
