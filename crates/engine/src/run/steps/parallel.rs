//! `parallel`: branches beside each other. With `wait: any | N`, it cancels the rest once enough succeeded, and fails
//! once there cannot be enough. Its result says of each branch how it ended.

use serde_json::{Map, Value, json};

use super::{Behaviour, halt_scopes};
use crate::{
    definition::{Kind, OnFailure, ParallelStep, Step, Wait as Needed},
    run::{Done, End, Place, RunError, ScopeRecord, StopWhy, Work},
};

pub(crate) struct Parallel;

fn needed(given: &ParallelStep) -> usize {
    match given.wait {
        Needed::All => given.branches.len(),
        Needed::Any => 1,
        Needed::Count(count) => count as usize,
    }
}

fn succeeded(scope: &ScopeRecord) -> bool {
    scope.done && !scope.failing && !scope.halted
}

fn lost(scope: &ScopeRecord) -> bool {
    scope.failing || scope.halted
}

impl Behaviour for Parallel {
    fn start(&self, work: &mut Work<'_>, place: &Place, step: &Step) -> Done {
        let Kind::Parallel(given) = &step.kind else { return Ok(()) };
        for branch in 0..given.branches.len() as u32 {
            work.begin_scope(place, branch)?;
        }
        match given.branches.is_empty() {
            true => work.end(place, End::succeeded(Some(json!({})))),
            false => Ok(()),
        }
    }

    fn stop(&self, work: &mut Work<'_>, place: &Place, _: &Step, _: StopWhy) -> Done {
        halt_scopes(work, place)
    }

    fn abandon(&self, work: &mut Work<'_>, place: &Place, _: &Step) -> Done {
        halt_scopes(work, place)
    }

    fn scope_ended(&self, work: &mut Work<'_>, place: &Place, step: &Step, _: u32) -> Done {
        let Kind::Parallel(given) = &step.kind else { return Ok(()) };
        let scopes = work.step(place)?.scopes.clone();
        let needed = needed(given);
        let won = scopes.iter().filter(|scope| succeeded(scope)).count();
        let still = scopes.iter().filter(|scope| !lost(scope)).count();
        let all_done = scopes.iter().all(|scope| scope.done);
        if !all_done {
            let hopeless = still < needed && work.plan.on_failure() == OnFailure::Cancel;
            return if won >= needed || hopeless { halt_scopes(work, place) } else { Ok(()) };
        }
        if let Some(why) = work.step(place)?.stop {
            return work.end(place, End::stopped(why));
        }
        if won >= needed {
            let state = |scope: &ScopeRecord| match (succeeded(scope), scope.failing) {
                (true, _) => "succeeded",
                (false, true) => "failed",
                (false, false) => "cancelled",
            };
            let named = given.branches.iter().zip(&scopes);
            let result: Map<String, Value> = named.map(|((name, _), s)| (name.clone(), json!(state(s)))).collect();
            return work.end(place, End::succeeded(Some(Value::Object(result))));
        }
        let error = scopes.into_iter().find_map(|scope| scope.error);
        let error = error.map_or_else(|| RunError::new("cancelled", "its branches were stopped"), |error| *error);
        work.fail_attempt(place, error)
    }
}
