//! The checker, proven by forgery: a story that is right passes, and each kind of wrong is charged
//! as that kind and no other.

use muster_domain::Time;

use super::*;
use crate::commands::drill::{
    ledger::{Accepted, SeenEnd},
    told::Step,
};

const T0: u64 = 1_800_000_000_000_000;

fn at(seconds: u64) -> Time {
    Time(T0 + seconds * 1_000_000)
}

fn step(event: Option<Event>, to: State, attempt: u32) -> Step {
    Step { event, to, attempt }
}

fn succeeded() -> TellsOf {
    TellsOf {
        state: State::Succeeded,
        attempt: 2,
        max_attempts: 3,
        finished_at: Some(at(10)),
        stamp: Some(Stamp { attempt: 2, fence: 20 }),
        history: vec![
            step(None, State::Pending, 0),
            step(Some(Event::Dispatch), State::Dispatched, 0),
            step(Some(Event::Start), State::Running, 1),
            step(Some(Event::Rescue), State::Retrying, 1),
            step(Some(Event::Wake), State::Pending, 1),
            step(Some(Event::Dispatch), State::Dispatched, 1),
            step(Some(Event::Start), State::Running, 2),
            step(Some(Event::Succeed), State::Succeeded, 2),
        ],
        home: false,
    }
}

fn failed() -> TellsOf {
    TellsOf {
        state: State::Failed,
        attempt: 1,
        max_attempts: 1,
        finished_at: Some(at(5)),
        stamp: Some(Stamp { attempt: 1, fence: 30 }),
        history: vec![
            step(None, State::Pending, 0),
            step(Some(Event::Dispatch), State::Dispatched, 0),
            step(Some(Event::Start), State::Running, 1),
            step(Some(Event::Fail), State::Failed, 1),
        ],
        home: false,
    }
}

/// Two jobs about which all is well.
fn sound() -> (Ledger, Told) {
    let mut ledger = Ledger::default();
    let mut told = Told::default();
    for (id, tells) in [("good", succeeded()), ("bad", failed())] {
        ledger.accepted.insert(id.into(), Accepted { at: at(0), replicated: true });
        ledger.ends.insert(id.into(), SeenEnd { state: tells.state, finished_at: tells.finished_at });
        told.listed.insert(id.into(), 1);
        told.jobs.insert(id.into(), tells);
    }
    told.letters.insert("bad".into(), 1);
    // The rescue and the retry after it.
    told.acts.extend(["job:good:4", "job:good:5", "job:good:5:resubmit", "key:k1"].map(|act| (act.to_owned(), 1)));
    let run = |attempt, fence| Execution { attempt, fence };
    ledger.executions.insert("good".into(), vec![run(1, 10), run(2, 20)]);
    ledger.executions.insert("bad".into(), vec![run(1, 30)]);
    (ledger, told)
}

/// The charges after a forgery, as (job, crime).
fn forged(forge: impl FnOnce(&mut Ledger, &mut Told)) -> Vec<(String, Crime)> {
    let (mut ledger, mut told) = sound();
    forge(&mut ledger, &mut told);
    let findings = judge(&ledger, &told);
    assert!(findings.forgiven.is_empty(), "{:?}", findings.forgiven);
    findings.charges.into_iter().map(|charge| (charge.job, charge.crime)).collect()
}

fn good(told: &mut Told) -> &mut TellsOf {
    told.jobs.get_mut("good").unwrap()
}

#[test]
fn a_story_that_is_right_passes() {
    assert_eq!(forged(|_, _| ()), []);
    let never_run = forged(|ledger, _| {
        let _ = ledger.executions.remove("none");
    });
    assert_eq!(never_run, []);
    // Killed between its start and its first line: one run less than starts.
    let silent = forged(|ledger, _| {
        let _ = ledger.executions.get_mut("good").unwrap().remove(0);
    });
    assert_eq!(silent, []);
}

#[test]
fn a_job_without_a_record_or_an_end_is_lost() {
    let gone = forged(|_, told| {
        let _ = told.jobs.remove("good");
    });
    assert_eq!(gone, [("good".into(), Crime::Lost)]);
    let stuck = forged(|ledger, told| {
        ledger.ends.remove("good");
        let tells = good(told);
        tells.history.pop();
        (tells.state, tells.finished_at) = (State::Running, None);
    });
    assert_eq!(stuck, [("good".into(), Crime::Lost)]);
    let never_answered = forged(|ledger, told| {
        ledger.accepted.remove("good");
        ledger.ends.remove("good");
        let tells = good(told);
        tells.history.pop();
        (tells.state, tells.finished_at) = (State::Running, None);
    });
    assert_eq!(never_answered, [("good".into(), Crime::Lost)], "whoever exists must end");
}

#[test]
fn an_end_that_became_another_is_an_end_twice() {
    let other = forged(|ledger, _| ledger.ends.get_mut("good").unwrap().state = State::Cancelled);
    assert_eq!(other, [("good".into(), Crime::EndedTwice)]);
    let later = forged(|ledger, _| ledger.ends.get_mut("good").unwrap().finished_at = Some(at(9)));
    assert_eq!(later, [("good".into(), Crime::EndedTwice)]);
    let written_again = forged(|_, told| {
        let tells = good(told);
        tells.history.push(step(Some(Event::Succeed), State::Succeeded, 2));
    });
    assert!(written_again.contains(&("good".into(), Crime::EndedTwice)), "{written_again:?}");
}

#[test]
fn a_result_of_an_earlier_attempt_is_a_write_under_an_old_fence() {
    let old = forged(|_, told| good(told).stamp = Some(Stamp { attempt: 1, fence: 10 }));
    assert_eq!(old, [("good".into(), Crime::OldFence)]);
    let miscounted = forged(|_, told| good(told).stamp = Some(Stamp { attempt: 1, fence: 20 }));
    assert_eq!(miscounted, [("good".into(), Crime::OldFence)]);
    let from_nowhere = forged(|_, told| good(told).stamp = None);
    assert_eq!(from_nowhere, [("good".into(), Crime::OldFence)]);
}

#[test]
fn a_step_that_the_table_has_not_is_illegal() {
    let jumped = forged(|_, told| {
        told.acts.remove("job:good:5");
        let _ = good(told).history.remove(4);
    });
    assert!(!jumped.is_empty() && jumped.iter().all(|c| c.1 == Crime::IllegalTransition), "{jumped:?}");
    let miscounted = forged(|_, told| good(told).history[6].attempt = 1);
    assert!(!miscounted.is_empty() && miscounted.iter().all(|c| c.1 == Crime::IllegalTransition), "{miscounted:?}");
    let elsewhere = forged(|_, told| {
        told.jobs.get_mut("bad").unwrap().history.pop();
    });
    assert_eq!(elsewhere, [("bad".into(), Crime::IllegalTransition)], "the history does not lead to the state");
    let bare = forged(|_, told| told.jobs.get_mut("bad").unwrap().history.clear());
    assert!(bare.contains(&("bad".into(), Crime::IllegalTransition)), "{bare:?}");
}

#[test]
fn more_starts_than_allowed_are_charged_and_those_given_back_are_not() {
    let above = forged(|_, told| good(told).max_attempts = 1);
    assert_eq!(above, [("good".into(), Crime::StartsAboveMax), ("good".into(), Crime::StartsAboveMax)]);
    let given_back = forged(|_, told| {
        // Nor is it help to wake a job that only waited for its time.
        told.acts.clear();
        let tells = good(told);
        (tells.max_attempts, tells.attempt) = (1, 1);
        tells.stamp = Some(Stamp { attempt: 1, fence: 20 });
        tells.history[3] = step(Some(Event::Release), State::Scheduled, 0);
        (4..6).for_each(|n| tells.history[n].attempt = 0);
        (6..8).for_each(|n| tells.history[n].attempt = 1);
    });
    assert_eq!(given_back, []);
}

#[test]
fn a_run_that_nobody_granted_is_charged() {
    let run = |attempt, fence| Execution { attempt, fence };
    let twice = forged(|ledger, _| {
        *ledger.executions.get_mut("good").unwrap() = vec![run(2, 20), run(2, 20)];
    });
    assert_eq!(twice, [("good".into(), Crime::RunWithoutStart)]);
    let unrecorded = forged(|ledger, _| ledger.executions.get_mut("good").unwrap().push(run(2, 15)));
    assert_eq!(unrecorded, [("good".into(), Crime::RunWithoutStart)]);
    let stranger = forged(|ledger, _| {
        let _ = ledger.executions.insert("who".into(), vec![run(1, 5)]);
    });
    assert_eq!(stranger, [("who".into(), Crime::RunWithoutStart)]);
}

#[test]
fn effects_are_there_once() {
    let missing = forged(|_, told| {
        let _ = told.letters.remove("bad");
    });
    assert_eq!(missing, [("bad".into(), Crime::EffectMissing)]);
    let doubled = forged(|_, told| {
        let _ = told.letters.insert("bad".into(), 2);
    });
    assert_eq!(doubled, [("bad".into(), Crime::EffectDoubled)]);
    let undeserved = forged(|_, told| {
        let _ = told.letters.insert("good".into(), 1);
    });
    assert_eq!(undeserved, [("good".into(), Crime::EffectDoubled)]);
    let unlisted = forged(|_, told| {
        let _ = told.listed.remove("good");
    });
    assert_eq!(unlisted, [("good".into(), Crime::EffectMissing)]);
    let listed_twice = forged(|_, told| {
        let _ = told.listed.insert("good".into(), 2);
    });
    assert_eq!(listed_twice, [("good".into(), Crime::EffectDoubled)]);
}

#[test]
fn the_log_tells_what_loops_did_and_nothing_else() {
    let untold = forged(|_, told| assert_eq!(told.acts.remove("job:good:4"), Some(1)));
    assert_eq!(untold, [("good".into(), Crime::ActUntold)]);
    let invented = forged(|_, told| assert_eq!(told.acts.insert("job:bad:4".into(), 1), None));
    assert_eq!(invented, [("bad".into(), Crime::ActNotDone)]);
    let twice = forged(|_, told| assert_eq!(told.acts.insert("job:good:5".into(), 2), Some(1)));
    assert_eq!(twice, [("good".into(), Crime::ActNotDone)]);
}

#[test]
fn a_home_that_stays_is_a_gap() {
    assert_eq!(forged(|_, told| good(told).home = true), [("good".into(), Crime::HomeLeft)]);
}

#[test]
fn one_key_makes_one_job() {
    let split = forged(|ledger, _| ledger.split.push(("good".into(), "bad".into())));
    assert_eq!(split, [("good".into(), Crime::KeySplit)]);
}

#[test]
fn a_killed_primary_excuses_what_it_forgot_and_nothing_else() {
    let judged = |death: u64, forge: &dyn Fn(&mut Ledger, &mut Told)| {
        let (mut ledger, mut told) = sound();
        ledger.forgetful.push(at(death));
        forge(&mut ledger, &mut told);
        let findings = judge(&ledger, &told);
        (findings.charges.len(), findings.forgiven.len())
    };
    let end_again = |ledger: &mut Ledger, _: &mut Told| ledger.ends.get_mut("good").unwrap().finished_at = Some(at(9));
    assert_eq!(judged(10, &end_again), (0, 1));
    assert_eq!(judged(13, &end_again), (1, 0), "it had ended long before");
    let gone = |_: &mut Ledger, told: &mut Told| drop(told.jobs.remove("good"));
    assert_eq!(judged(1, &gone), (1, 0), "a replica had it");
    let gone_from_memory = |ledger: &mut Ledger, told: &mut Told| {
        ledger.accepted.get_mut("good").unwrap().replicated = false;
        told.jobs.remove("good");
    };
    assert_eq!(judged(1, &gone_from_memory), (0, 1));
    assert_eq!(judged(5, &gone_from_memory), (1, 0), "there was time to pass it on");
    let home = |_: &mut Ledger, told: &mut Told| told.jobs.get_mut("good").unwrap().home = true;
    assert_eq!(judged(10, &home), (1, 0), "a home can be repaired");
}

#[test]
fn an_audit_log_that_breaks_is_charged() {
    let broken = forged(|_, told| told.audit_break = Some("at number 7".into()));
    assert_eq!(broken, [("the audit log".into(), Crime::AuditBreaks)]);
}

#[test]
fn a_gap_that_the_gauge_tells_of_is_charged() {
    let left = forged(|_, told| told.gap = Some("muster_consistency_gap is 1".into()));
    assert_eq!(left, [("the scrub".into(), Crime::HomeLeft)]);
}
