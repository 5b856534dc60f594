//! `switch`: the first branch whose condition holds. Its result is the branch that it took.

use serde_json::json;

use super::{Behaviour, halt_scopes};
use crate::{
    definition::{Kind, Step},
    run::{Done, End, Place, Sight, StopWhy, Work},
};

pub(crate) struct Switch;

impl Behaviour for Switch {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Kind::Switch(branches) = &step.kind else { return Ok(()) };
        for (number, branch) in branches.iter().enumerate() {
            let holds = match &branch.when {
                Some(when) => work.condition(when, &Sight::of(place))?,
                None => Ok(true),
            };
            match holds {
                Ok(false) => {}
                Ok(true) => {
                    work.step_mut(place)?.number = number as u32;
                    return work.begin_scope(place, number as u32);
                }
                Err(error) => return work.end(place, End::unborn(error)),
            }
        }
        work.end(place, End::succeeded(Some(json!({"branch": null}))))
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, _: &Step, _: StopWhy) -> Done {
        halt_scopes(work, place)
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        halt_scopes(work, place)
    }

    fn scope_ended(&self, work: &mut Work<'_>, place: &Place, _: &Step, branch: u32) -> Done {
        work.end_with_scope(place, branch, Some(json!({"branch": branch})))
    }
}
