//! Tests of the checker: a correct history passes, and each kind of forged fault is charged as that kind only.

use muster_domain::Time;

use super::*;
use crate::commands::drill::{
    ledger::{Accepted, SeenEnd},
    places::Places,
    reported::Step,
};

const T0: u64 = 1_800_000_000_000_000;

const ENTRY: Entry = Entry { times: 1, at: Time(T0) };

fn at(seconds: u64) -> Time {
    Time(T0 + seconds * 1_000_000)
}

fn step(event: Option<Event>, to: State, attempt: u32) -> Step {
    Step { event, to, attempt, at: at(0) }
}

fn succeeded() -> ReportedJob {
    ReportedJob {
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

fn failed() -> ReportedJob {
    ReportedJob {
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

/// Two jobs without a fault.
fn sound() -> (Ledger, Reported) {
    let mut ledger = Ledger::default();
    let mut reported = Reported::default();
    for (id, job) in [("good", succeeded()), ("bad", failed())] {
        ledger.accepted.insert(id.into(), Accepted { between: (at(0), at(0)), replicated: true });
        ledger.ends.insert(id.into(), SeenEnd { state: job.state, finished_at: job.finished_at });
        reported.listed.insert(id.into(), 1);
        reported.jobs.insert(id.into(), job);
    }
    reported.letters.insert("bad".into(), 1);
    // The rescue and the retry after it.
    reported
        .acts
        .extend(["job:good:4", "job:good:5", "job:good:5:resubmit", "key:k1"].map(|act| (act.to_owned(), ENTRY)));
    let run = |attempt, fence| Execution { attempt, fence };
    ledger.executions.insert("good".into(), vec![run(1, 10), run(2, 20)]);
    ledger.executions.insert("bad".into(), vec![run(1, 30)]);
    (ledger, reported)
}

/// The charges after a forgery, as (job, crime).
fn forged(forge: impl FnOnce(&mut Ledger, &mut Reported)) -> Vec<(String, Crime)> {
    let (mut ledger, mut reported) = sound();
    forge(&mut ledger, &mut reported);
    let findings = judge(&ledger, &reported);
    assert!(findings.forgiven.is_empty(), "{:?}", findings.forgiven);
    findings.charges.into_iter().map(|charge| (charge.job, charge.crime)).collect()
}

fn good(reported: &mut Reported) -> &mut ReportedJob {
    reported.jobs.get_mut("good").unwrap()
}

#[test]
fn a_story_that_is_right_passes() {
    assert_eq!(forged(|_, _| ()), []);
    let never_run = forged(|ledger, _| {
        let _ = ledger.executions.remove("none");
    });
    assert_eq!(never_run, []);
    // The worker was killed between the start and its first line: one run fewer than starts.
    let silent = forged(|ledger, _| {
        let _ = ledger.executions.get_mut("good").unwrap().remove(0);
    });
    assert_eq!(silent, []);
}

#[test]
fn a_job_without_a_record_or_an_end_is_lost() {
    let gone = forged(|_, reported| {
        let _ = reported.jobs.remove("good");
    });
    assert_eq!(gone, [("good".into(), Crime::Lost)]);
    let stuck = forged(|ledger, reported| {
        ledger.ends.remove("good");
        let job = good(reported);
        job.history.pop();
        (job.state, job.finished_at) = (State::Running, None);
    });
    assert_eq!(stuck, [("good".into(), Crime::Lost)]);
    let never_answered = forged(|ledger, reported| {
        ledger.accepted.remove("good");
        ledger.ends.remove("good");
        let job = good(reported);
        job.history.pop();
        (job.state, job.finished_at) = (State::Running, None);
    });
    assert_eq!(never_answered, [("good".into(), Crime::Lost)], "whoever exists must end");
}

#[test]
fn an_end_that_became_another_is_an_end_twice() {
    let other = forged(|ledger, _| ledger.ends.get_mut("good").unwrap().state = State::Cancelled);
    assert_eq!(other, [("good".into(), Crime::EndedTwice)]);
    let later = forged(|ledger, _| ledger.ends.get_mut("good").unwrap().finished_at = Some(at(9)));
    assert_eq!(later, [("good".into(), Crime::EndedTwice)]);
    let written_again = forged(|_, reported| {
        let job = good(reported);
        job.history.push(step(Some(Event::Succeed), State::Succeeded, 2));
    });
    assert!(written_again.contains(&("good".into(), Crime::EndedTwice)), "{written_again:?}");
}

#[test]
fn a_result_of_an_earlier_attempt_is_a_write_under_an_old_fence() {
    let old = forged(|_, reported| good(reported).stamp = Some(Stamp { attempt: 1, fence: 10 }));
    assert_eq!(old, [("good".into(), Crime::OldFence)]);
    let miscounted = forged(|_, reported| good(reported).stamp = Some(Stamp { attempt: 1, fence: 20 }));
    assert_eq!(miscounted, [("good".into(), Crime::OldFence)]);
    let from_nowhere = forged(|_, reported| good(reported).stamp = None);
    assert_eq!(from_nowhere, [("good".into(), Crime::OldFence)]);
}

#[test]
fn a_step_that_the_table_has_not_is_illegal() {
    let jumped = forged(|_, reported| {
        reported.acts.remove("job:good:5");
        let _ = good(reported).history.remove(4);
    });
    assert!(!jumped.is_empty() && jumped.iter().all(|c| c.1 == Crime::IllegalTransition), "{jumped:?}");
    let miscounted = forged(|_, reported| good(reported).history[6].attempt = 1);
    assert!(!miscounted.is_empty() && miscounted.iter().all(|c| c.1 == Crime::IllegalTransition), "{miscounted:?}");
    let elsewhere = forged(|_, reported| {
        reported.jobs.get_mut("bad").unwrap().history.pop();
    });
    assert_eq!(elsewhere, [("bad".into(), Crime::IllegalTransition)], "the history does not lead to the state");
    let bare = forged(|_, reported| reported.jobs.get_mut("bad").unwrap().history.clear());
    assert!(bare.contains(&("bad".into(), Crime::IllegalTransition)), "{bare:?}");
}

#[test]
fn more_starts_than_allowed_are_charged_and_those_given_back_are_not() {
    let above = forged(|_, reported| good(reported).max_attempts = 1);
    assert_eq!(above, [("good".into(), Crime::StartsAboveMax), ("good".into(), Crime::StartsAboveMax)]);
    let given_back = forged(|_, reported| {
        // A wake of a job that only waited for its time is no repair either.
        reported.acts.clear();
        let job = good(reported);
        (job.max_attempts, job.attempt) = (1, 1);
        job.stamp = Some(Stamp { attempt: 1, fence: 20 });
        job.history[3] = step(Some(Event::Release), State::Scheduled, 0);
        (4..6).for_each(|n| job.history[n].attempt = 0);
        (6..8).for_each(|n| job.history[n].attempt = 1);
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
    let missing = forged(|_, reported| {
        let _ = reported.letters.remove("bad");
    });
    assert_eq!(missing, [("bad".into(), Crime::EffectMissing)]);
    let doubled = forged(|_, reported| {
        let _ = reported.letters.insert("bad".into(), 2);
    });
    assert_eq!(doubled, [("bad".into(), Crime::EffectDoubled)]);
    let undeserved = forged(|_, reported| {
        let _ = reported.letters.insert("good".into(), 1);
    });
    assert_eq!(undeserved, [("good".into(), Crime::EffectDoubled)]);
    let unlisted = forged(|_, reported| {
        let _ = reported.listed.remove("good");
    });
    assert_eq!(unlisted, [("good".into(), Crime::EffectMissing)]);
    let listed_twice = forged(|_, reported| {
        let _ = reported.listed.insert("good".into(), 2);
    });
    assert_eq!(listed_twice, [("good".into(), Crime::EffectDoubled)]);
}

#[test]
fn the_log_has_the_acts_of_loops_and_nothing_else() {
    let untold = forged(|_, reported| assert_eq!(reported.acts.remove("job:good:4"), Some(ENTRY)));
    assert_eq!(untold, [("good".into(), Crime::ActUntold)]);
    let invented = forged(|_, reported| assert_eq!(reported.acts.insert("job:bad:4".into(), ENTRY), None));
    assert_eq!(invented, [("bad".into(), Crime::ActNotDone)]);
    let twice = forged(|_, reported| reported.acts.get_mut("job:good:5").unwrap().times = 2);
    assert_eq!(twice, [("good".into(), Crime::ActNotDone)]);
}

#[test]
fn a_home_that_stays_is_a_gap() {
    assert_eq!(forged(|_, reported| good(reported).home = true), [("good".into(), Crime::HomeLeft)]);
}

#[test]
fn one_key_makes_one_job() {
    let split = forged(|ledger, _| ledger.split.push(("good".into(), "bad".into())));
    assert_eq!(split, [("good".into(), Crime::KeySplit)]);
}

#[test]
fn an_audit_log_that_breaks_is_charged() {
    let broken = forged(|_, reported| reported.audit_break = Some("at number 7".into()));
    assert_eq!(broken, [("the audit log".into(), Crime::AuditBreaks)]);
}

#[test]
fn a_gap_that_the_gauge_reports_is_charged() {
    let left = forged(|_, reported| reported.gap = Some("muster_consistency_gap is 1".into()));
    assert_eq!(left, [("the scrub".into(), Crime::HomeLeft)]);
}

/// Which lost writes are forgiven after the death of a primary.
mod forgotten {
    use super::*;

    /// A primary is killed after ten seconds.
    const DEATH: u64 = 10_000;
    /// The earliest write before the death that may be lost, and one shortly before it that may not.
    const LATE: u64 = DEATH - 1_000;
    const EARLY: u64 = LATE - 1;

    fn ms(ms: u64) -> Time {
        Time(T0 + ms * 1_000)
    }

    fn places() -> Places {
        Places::named("record:", "log")
    }

    /// Kills the primary of this slot; returns the charges and the forgiven charges.
    fn killed(slot: u16, forge: &dyn Fn(&mut Ledger, &mut Reported)) -> (Vec<Crime>, Vec<Crime>) {
        let (mut ledger, mut reported) = sound();
        reported.places = Some(places());
        ledger.deaths.push(Death { slots: vec![slot..=slot], between: (ms(DEATH), ms(DEATH + 20)) });
        forge(&mut ledger, &mut reported);
        let findings = judge(&ledger, &reported);
        let crimes = |charges: &[Charge]| charges.iter().map(|charge| charge.crime).collect();
        (crimes(&findings.charges), crimes(&findings.forgiven))
    }

    /// A lost write to a record is forgiven only if it was made in the last second before the death of the record's own
    /// primary.
    fn only_in_the_last_second(crime: Crime, forge: &dyn Fn(Time, &mut Ledger, &mut Reported)) {
        let own = places().of("good");
        let written = |moment: u64, slot| killed(slot, &|ledger, reported| forge(ms(moment), ledger, reported));
        for moment in [LATE, DEATH, DEATH + 20] {
            assert_eq!(written(moment, own), (vec![], vec![crime]), "{moment}");
        }
        assert_eq!(written(EARLY, own), (vec![crime], vec![]), "there was time to pass it on");
        assert_eq!(written(DEATH + 21, own), (vec![crime], vec![]), "that primary was dead");
        assert_eq!(written(DEATH, own ^ 1), (vec![crime], vec![]), "another shard's primary died");
        let nobody_died = killed(own, &|ledger, reported| {
            ledger.deaths.clear();
            forge(ms(DEATH), ledger, reported);
        });
        assert_eq!(nobody_died, (vec![crime], vec![]));
    }

    fn lost(written: Time, ledger: &mut Ledger, reported: &mut Reported) {
        ledger.accepted.insert("good".into(), Accepted { between: (written, written), replicated: false });
        reported.jobs.remove("good");
        reported.acts.clear();
    }

    #[test]
    fn a_job_that_no_replica_had() {
        only_in_the_last_second(Crime::Lost, &lost);
        let replicated = killed(places().of("good"), &|ledger, reported| {
            lost(ms(DEATH), ledger, reported);
            ledger.accepted.get_mut("good").unwrap().replicated = true;
        });
        assert_eq!(replicated, (vec![Crime::Lost], vec![]), "a replica had it");
        let slow = killed(places().of("good"), &|ledger, reported| {
            lost(ms(DEATH), ledger, reported);
            ledger.accepted.get_mut("good").unwrap().between = (ms(EARLY - 500), ms(DEATH + 900));
        });
        assert_eq!(slow, (vec![], vec![Crime::Lost]), "it was written somewhere in between");
        let alive = killed(places().of("good"), &|ledger, reported| {
            ledger.ends.remove("good");
            let job = good(reported);
            job.history.pop();
            (job.state, job.finished_at) = (State::Running, None);
        });
        assert_eq!(alive, (vec![Crime::Lost], vec![]), "who has a record must end");
    }

    #[test]
    fn a_job_whose_submit_got_no_answer() {
        only_in_the_last_second(Crime::RunWithoutStart, &|started, ledger, reported| {
            ledger.accepted.remove("good");
            ledger.executions.insert("good".into(), vec![Execution { attempt: 1, fence: started.0 }]);
            reported.jobs.remove("good");
            reported.acts.clear();
        });
    }

    #[test]
    fn an_end() {
        only_in_the_last_second(Crime::EndedTwice, &|ended, ledger, _| {
            ledger.ends.insert("good".into(), SeenEnd { state: State::Cancelled, finished_at: Some(ended) });
        });
        let twice_in_one_record = killed(places().of("good"), &|_, reported| {
            good(reported).history.insert(7, step(Some(Event::Succeed), State::Succeeded, 2));
        });
        assert!(twice_in_one_record.0.contains(&Crime::EndedTwice), "a record is forgotten whole or not at all");
    }

    fn started(moment: Time, ledger: &mut Ledger) {
        ledger.executions.get_mut("good").unwrap().insert(0, Execution { attempt: 1, fence: moment.0 });
    }

    /// The outcome comes from a start after the lost writes.
    fn went_on(ledger: &mut Ledger, reported: &mut Reported) {
        let last = ms(DEATH * 2).0;
        ledger.executions.get_mut("good").unwrap()[1].fence = last;
        good(reported).stamp = Some(Stamp { attempt: 2, fence: last });
    }

    #[test]
    fn a_start() {
        only_in_the_last_second(Crime::RunWithoutStart, &|moment, ledger, reported| {
            went_on(ledger, reported);
            started(moment, ledger);
        });
        let one_of_two = killed(places().of("good"), &|ledger, reported| {
            went_on(ledger, reported);
            started(ms(DEATH), ledger);
            started(ms(EARLY), ledger);
            good(reported).max_attempts = 4;
        });
        assert_eq!(one_of_two, (vec![Crime::RunWithoutStart], vec![]), "two starts are missing");
        let twice = killed(places().of("good"), &|ledger, reported| {
            went_on(ledger, reported);
            ledger.executions.get_mut("good").unwrap()[0] = ledger.executions["good"][1];
        });
        assert_eq!(twice, (vec![Crime::RunWithoutStart], vec![]), "a start after the death has a fence of its own");
    }

    #[test]
    fn a_start_above_those_that_may_be() {
        let above = |moment: u64| {
            killed(places().of("good"), &|ledger, reported| {
                went_on(ledger, reported);
                started(ms(moment), ledger);
                good(reported).max_attempts = 2;
            })
        };
        let both = vec![Crime::RunWithoutStart, Crime::StartsAboveMax];
        assert_eq!(above(DEATH), (vec![], both.clone()));
        assert_eq!(above(EARLY), (both, vec![]));
        let recorded = killed(places().of("good"), &|ledger, reported| {
            ledger.executions.insert("good".into(), vec![Execution { attempt: 2, fence: 20 }]);
            good(reported).max_attempts = 1;
        });
        assert_eq!(recorded, (vec![Crime::StartsAboveMax], vec![]), "what it recorded it had not forgotten");
    }

    #[test]
    fn a_start_after_the_one_that_counted() {
        only_in_the_last_second(Crime::OldFence, &|moment, ledger, reported| {
            ledger.executions.get_mut("good").unwrap()[1].fence = moment.0;
            good(reported).stamp = Some(Stamp { attempt: 2, fence: ms(1).0 });
        });
        let from_nowhere = killed(places().of("good"), &|_, reported| {
            good(reported).stamp = Some(Stamp { attempt: 2, fence: ms(DEATH).0 });
        });
        assert_eq!(from_nowhere, (vec![Crime::OldFence], vec![]), "nobody ran under that fence");
    }

    #[test]
    fn an_act_of_a_loop() {
        only_in_the_last_second(Crime::ActNotDone, &|moment, _, reported| {
            reported.acts.insert("job:good:9".into(), Entry { times: 1, at: moment });
        });
        let twice = killed(places().log.unwrap(), &|_, reported| {
            reported.acts.insert("job:good:5".into(), Entry { times: 2, at: ms(DEATH) });
        });
        assert_eq!(twice, (vec![Crime::ActNotDone], vec![]), "what the log forgot it has not twice");
    }

    #[test]
    fn the_telling_of_an_act() {
        let log = places().log.unwrap();
        let untold = |moment: u64, slot| {
            killed(slot, &|_, reported| {
                reported.acts.remove("job:good:4");
                good(reported).history[3].at = ms(moment);
            })
        };
        for moment in [LATE - 5_000, DEATH, DEATH + 20] {
            assert_eq!(untold(moment, log), (vec![], vec![Crime::ActUntold]), "{moment}");
        }
        assert_eq!(untold(LATE - 5_001, log), (vec![Crime::ActUntold], vec![]), "the entry was due long before");
        assert_eq!(untold(DEATH + 21, log), (vec![Crime::ActUntold], vec![]), "that primary was dead");
        assert_eq!(untold(DEATH, places().of("good")), (vec![Crime::ActUntold], vec![]), "the log is elsewhere");
    }

    #[test]
    fn nothing_that_can_be_repaired() {
        let own = places().of("good");
        let home = killed(own, &|_, reported| good(reported).home = true);
        assert_eq!(home, (vec![Crime::HomeLeft], vec![]));
        let unlisted = killed(own, &|_, reported| {
            let _ = reported.listed.remove("good");
        });
        assert_eq!(unlisted, (vec![Crime::EffectMissing], vec![]));
    }

    #[test]
    fn no_more_jobs_than_a_second_brings() {
        let death = Death { slots: Vec::new(), between: (ms(0), ms(0)) };
        assert_eq!((forgivable(&[], 30), forgivable(&[death.clone(), death], 30)), (0, 60));
        let charge = |job: &str| Charge { job: job.into(), crime: Crime::EndedTwice, why: String::new() };
        let findings = Findings { charges: Vec::new(), forgiven: vec![charge("a"), charge("a"), charge("b")] };
        assert_eq!((findings.forgiven_jobs(), findings.hold(2), findings.hold(1)), (2, true, false));
        assert!(!Findings { charges: vec![charge("a")], forgiven: Vec::new() }.hold(9));
    }
}
