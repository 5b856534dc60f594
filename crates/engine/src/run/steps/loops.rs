//! `loop`: repeats its steps with a state that is carried on. Only the last three iterations are kept, and all of them
//! if they may have to be undone.

use std::sync::Arc;

use muster_domain::Time;
use serde_json::Value;

use super::{Behaviour, halt_scopes};
use crate::{
    definition::{Kind, LoopStep, Step},
    run::{Done, End, Field, Inside, Phase, Place, RunError, Sight, StopWhy, Work},
};

pub(crate) struct Loop;

/// How many iterations are kept.
pub(crate) const KEPT: u32 = 3;

fn given(step: &Step) -> Option<&LoopStep> {
    match &step.kind {
        Kind::Loop(given) => Some(given),
        _ => None,
    }
}

/// Stores the state, or says why it cannot be kept.
fn keep(work: &mut Work<'_>, place: &Place, state: Value) -> Done<Result<Arc<Value>, RunError>> {
    let field = Field::LoopState(place.clone());
    if let Some(old) = work.json(&field)? {
        work.shrink(&old);
    }
    if let Err(error) = work.grow(&field, &state) {
        return Ok(Err(error));
    }
    work.put_json(field.clone(), state);
    Ok(Ok(work.json(&field)?.unwrap_or_default()))
}

/// Begins the next iteration, or puts it off if this event has done enough.
fn next(work: &mut Work<'_>, place: &Place) -> Done {
    if !work.spend() {
        let now = work.now;
        let record = work.step_mut(place)?;
        (record.phase, record.wake) = (Phase::Next, now);
        return work.touch(place, now);
    }
    let inside = work.inner(place, 0)?;
    if !work.plan.node(place.node).undoes
        && let Some((number, before)) = inside.at.split_last()
        && *number + 1 >= KEPT
    {
        let at = [before, &[*number + 1 - KEPT]].concat();
        work.forget(&Inside { scope: inside.scope, at })?;
    }
    let record = work.step_mut(place)?;
    (record.phase, record.wake) = (Phase::Work, Time::NONE);
    record.number += 1;
    record.scopes.clear();
    work.begin_scope(place, 0)
}

impl Behaviour for Loop {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Some(given) = given(step) else { return Ok(()) };
        let kept = match work.maybe(given.init.as_ref(), &Sight::of(place))? {
            Ok(init) => keep(work, place, init.unwrap_or_default())?,
            Err(error) => Err(error),
        };
        match kept {
            Ok(_) => work.begin_scope(place, 0),
            Err(error) => work.end(place, End::unborn(error)),
        }
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, _: &Step, why: StopWhy) -> Done {
        match work.step(place)?.phase {
            Phase::Next => work.end(place, End::stopped(why)),
            _ => halt_scopes(work, place),
        }
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        halt_scopes(work, place)
    }

    fn due(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        next(work, place)
    }

    fn scope_ended(&self, work: &mut Work<'_>, place: &Place, step: &Step, branch: u32) -> Done {
        let Some(given) = given(step) else { return Ok(()) };
        let inside = work.inner(place, branch)?;
        let scope = work.scope(&inside)?;
        if work.step(place)?.stop.is_some() || scope.failing || scope.halted {
            return work.end_with_scope(place, branch, None);
        }
        let sight = Sight::of(place).within(&inside.at);
        let state = match &given.next {
            Some(next) => match work.template(next, &sight)? {
                Ok(state) => keep(work, place, state)?,
                Err(error) => Err(error),
            },
            None => Ok(work.json(&Field::LoopState(place.clone()))?.unwrap_or_default()),
        };
        let over = match state {
            Ok(state) => work.condition(&given.until, &sight.state(state.clone()))?.map(|over| (over, state)),
            Err(error) => Err(error),
        };
        match over {
            Err(error) => work.end(place, End::failed(error)),
            Ok((true, state)) => work.end(place, End::succeeded(Some(state.as_ref().clone()))),
            Ok((false, _)) if work.step(place)?.number + 1 >= given.max => {
                let message = format!("`until` was not true after {} iterations", given.max);
                work.fail_attempt(place, RunError::new("loop_exhausted", message))
            }
            Ok((false, _)) => next(work, place),
        }
    }
}
