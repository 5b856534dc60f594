//! Every (state, event) pair on real records: the script does what the table says and nothing else.

use std::time::Duration;

use futures_util::future::join_all;
use muster_domain::{
    Event, Head, JobError, JobId, Outcome, Phase, Seen, StartId, State, Time, WorkerId,
    job::{Due, TABLE, When, transition},
};
use muster_store::{Extension, Fields, Step};

use crate::bench::{Bench, Course, HOUR, Job, moved_on};

/// What the script must say to an event from a caller who has seen the job as it is.
fn expected(head: &Head, event: Event) -> Outcome {
    match (event.seen(), head.state()) {
        // Nobody can hold a fence of a job that never started.
        (Seen::Fence, _) if head.fence == 0 => Outcome::Stale,
        // The attempt is over: what ended it may be said again, anything else may not.
        (Seen::Fence, state) if state != State::Running && head.attempt_ended_by == Some(event) => Outcome::Already,
        (Seen::Any, State::Cancelled) => Outcome::Already,
        (_, state) if transition(state, event).is_some() => Outcome::Applied,
        _ => Outcome::Illegal,
    }
}

/// Every pair twice: for a job that never started, and for one that lost an attempt before.
fn pairs() -> impl Iterator<Item = (bool, State, Event)> {
    let states = [false, true].into_iter().flat_map(|again| State::ALL.iter().map(move |state| (again, *state)));
    let pairs = states.flat_map(|(again, state)| Event::ALL.iter().map(move |event| (again, state, *event)));
    // A job that started once has its run_at behind it: for it this moment never comes.
    pairs.filter(|pair| *pair != (true, State::Pending, Event::Schedule))
}

pub(crate) async fn every_pair_of_state_and_event_does_what_the_table_says(bench: &Bench) {
    let outcomes = join_all(pairs().map(|(again, state, event)| pair(bench, again, state, event))).await;
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!(outcomes.len(), 2 * State::ALL.len() * Event::ALL.len() - 1);
    assert_eq!(count(Outcome::Applied), 2 * TABLE.len() - 1, "every row of the table");
    assert!(count(Outcome::Illegal) > 400 && count(Outcome::Early) == 0);
}

async fn pair(bench: &Bench, again: bool, state: State, event: Event) -> Outcome {
    let job = bench.ripe(state, event, again).await;
    let before = bench.raw(job.id).await;
    let step = job.step(event);
    let moved = bench.when_due(step.clone()).await;
    let wanted = expected(&job.head, event);
    if wanted != Outcome::Applied {
        assert_eq!(moved.outcome, wanted, "{state} + {event}, again: {again}");
        assert_eq!((moved.head.as_ref(), moved.forward), (Some(&job.head), None), "{state} + {event}");
        assert_eq!(bench.raw(job.id).await, before, "{state} + {event} must change nothing");
        return wanted;
    }
    let now = moved_on(&job, event, &moved);
    let after = bench.raw(job.id).await;
    let record = bench.record(job.id).await;
    assert_eq!(record.head, now.head, "{state} + {event}: what is told is what is stored");
    let line = record.history.last().unwrap();
    assert_eq!((line.event, line.to, line.at), (Some(event), now.head.state(), now.head.since));
    assert_eq!(line.attempt, now.head.attempt);
    assert_eq!(record.history.len(), usize::try_from(now.head.version).unwrap());

    // The same once more, as after a lost reply.
    let repeated = bench.apply(step).await;
    assert_eq!(repeated.outcome, Outcome::Already, "{state} + {event}, repeated");
    assert_eq!(repeated.head, Some(now.head), "{state} + {event}, repeated");
    assert_eq!(bench.raw(job.id).await, after, "{state} + {event}, repeated, must change nothing");
    Outcome::Applied
}

pub(crate) async fn a_wrong_version_or_fence_is_stale_and_changes_nothing(bench: &Bench) {
    let checks = pairs().filter(|(.., event)| event.seen() != Seen::Any).map(async |(again, state, event)| {
        let job = bench.ripe(state, event, again).await;
        let before = bench.raw(job.id).await;
        let version = u64::from(job.head.version);
        let wrong = match event.seen() {
            Seen::Fence => vec![job.head.fence + 1, job.head.fence.saturating_sub(1), 0, version],
            // One version back with the same event is a repeat, not a mistake.
            _ if job.head.last_event == Some(event) => vec![version + 1, version + 1000, 0],
            _ => vec![version + 1, version + 1000, 0, version - 1, job.head.fence.max(9)],
        };
        for seen in wrong {
            let moved = bench.apply(Step { seen, ..job.step(event) }).await;
            assert_eq!(moved.outcome, Outcome::Stale, "{state} + {event}, seen {seen}: {:?}", job.head);
            assert_eq!(moved.head.as_ref(), Some(&job.head));
        }
        assert_eq!(bench.raw(job.id).await, before, "{state} + {event}");
    });
    join_all(checks).await;
}

async fn must_be_early(bench: &Bench, job: &Job, event: Event) {
    let before = bench.raw(job.id).await;
    let moved = bench.apply(job.step(event)).await;
    assert_eq!(moved.outcome, Outcome::Early, "{} + {event}: {:?}", job.head.state(), job.head);
    assert_eq!((moved.head.as_ref(), moved.forward), (Some(&job.head), None));
    assert_eq!(bench.raw(job.id).await, before, "{} + {event}", job.head.state());
}

pub(crate) async fn an_event_before_its_moment_is_early_and_changes_nothing(bench: &Bench) {
    let waiting: Vec<_> = TABLE.iter().filter(|(_, event, _)| event.due() != Due::Always).collect();
    assert!(waiting.len() > 15);
    let checks = waiting.iter().flat_map(|row| [false, true].map(|bounded| (row, bounded)));
    let checks = checks.map(async |((state, event, _), bounded)| {
        let mut course = Course::calm(false);
        if bounded {
            course.spec.timeout_ms = 3_600_000;
            course.spec.deadline = Some(When::In(HOUR));
            course.spec.start_by = Some(When::In(HOUR));
        }
        let job = bench.drive(*state, &course).await.unwrap();
        must_be_early(bench, &job, *event).await;
    });
    join_all(checks).await;

    // A job whose run_at lies ahead is scheduled, not offered; one whose run_at has come is not scheduled.
    let mut later = Course::calm(false);
    later.spec.run_at = Some(When::In(HOUR));
    let job = bench.drive(State::Pending, &later).await.unwrap();
    for event in [Event::Dispatch, Event::Hold] {
        must_be_early(bench, &job, event).await;
    }
    let mut now = Course::calm(false);
    now.spec.run_at = Some(When::In(Duration::from_micros(1)));
    let ready = bench.drive(State::Pending, &now).await.unwrap();
    must_be_early(bench, &ready, Event::Schedule).await;
    for again in [false, true] {
        let job = bench.drive(State::Pending, &Course::calm(again)).await.unwrap();
        must_be_early(bench, &job, Event::Schedule).await;
    }
    bench.go(&ready, ready.step(Event::Dispatch)).await;

    // Nothing is started after its time.
    for bound in ["deadline", "start_by"] {
        let mut over = Course::calm(false);
        let moment = Some(When::In(Duration::from_micros(1)));
        if bound == "deadline" {
            over.spec.deadline = moment
        } else {
            over.spec.start_by = moment
        }
        let job = bench.drive(State::Dispatched, &over).await.unwrap();
        must_be_early(bench, &job, Event::Start).await;
    }
}

pub(crate) async fn a_job_that_is_not_there_is_missing_and_stays_so(bench: &Bench) {
    let id = JobId::mint(0);
    for &event in Event::ALL {
        let moved = bench.apply(Step { worker: Some(WorkerId::parse("w").unwrap()), ..Step::new(id, event, 1) }).await;
        assert_eq!((moved.outcome, moved.head, moved.forward), (Outcome::Missing, None, None), "{event}");
    }
    let extension = Extension { job: id, fence: 1, lease: HOUR, progress: None };
    let extended = bench.store.extend(vec![extension]).await.remove(0).unwrap();
    assert!(!extended.held && extended.head.is_none());
    assert!(bench.raw(id).await.is_empty());
    assert_eq!(bench.store.read_one(id, Fields::ALL).await, Ok(None));
}

pub(crate) async fn a_scheduled_job_wakes_at_its_time_and_not_before(bench: &Bench) {
    let mut wait = Duration::from_millis(150);
    let job = loop {
        let mut course = Course::calm(false);
        course.spec.run_at = Some(When::In(wait));
        let pending = bench.submit(course.spec).await;
        let moved = bench.apply(pending.step(Event::Schedule)).await;
        match moved.outcome {
            Outcome::Early => wait *= 4,
            _ => break moved_on(&pending, Event::Schedule, &moved),
        }
    };
    let run_at = job.head.created_at + wait;
    assert_eq!(job.head.phase, muster_domain::Phase::Scheduled { run_at });
    let woken = loop {
        let moved = bench.apply(job.step(Event::Wake)).await;
        match moved.outcome {
            Outcome::Early => assert!(moved.now < run_at, "early at {:?}, due at {run_at:?}", moved.now),
            _ => break moved,
        }
    };
    assert!(woken.now >= run_at, "woken at {:?}, due at {run_at:?}", woken.now);
    let awake = moved_on(&job, Event::Wake, &woken);
    bench.go(&awake, awake.step(Event::Dispatch)).await;
}

pub(crate) async fn start_by_ends_only_what_never_started(bench: &Bench) {
    for state in [State::Pending, State::Scheduled, State::Queued, State::Dispatched, State::AwaitingApproval] {
        let mut course = Course::calm(false);
        course.spec.start_by = Some(When::In(Duration::from_micros(1)));
        course.spec.run_at = (state == State::Scheduled).then_some(When::In(HOUR));
        let job = bench.drive(state, &course).await.unwrap();
        bench.go(&job, job.step(Event::Expire)).await;
    }
    let mut soon = Duration::from_millis(100);
    let started = loop {
        let mut course = Course::calm(true);
        course.spec.start_by = Some(When::In(soon));
        match bench.drive(State::Dispatched, &course).await {
            Some(job) => break job,
            None => soon *= 4,
        }
    };
    let passed = started.head.start_by.unwrap();
    muster_testkit::until(Duration::from_secs(20), "start_by", async || {
        let moved = bench.apply(started.step(Event::Expire)).await;
        assert_eq!(moved.outcome, Outcome::Early, "it was started in time once");
        (moved.now > passed).then_some(())
    })
    .await;
    bench.go(&started, started.step(Event::Start)).await;
}

pub(crate) async fn an_offer_is_started_only_under_its_own_version(bench: &Bench) {
    let offered = bench.calm(State::Dispatched).await;
    let old_offer = offered.step(Event::Start);
    let again = bench.go(&offered, offered.step(Event::Reoffer)).await;
    assert!(again.head.since >= offered.head.since && again.head.version > offered.head.version);
    assert_eq!(bench.apply(old_offer).await.outcome, Outcome::Stale, "offered anew");

    let recalled = bench.go(&again, again.step(Event::Recall)).await;
    assert_eq!(bench.apply(again.step(Event::Start)).await.outcome, Outcome::Stale, "taken back");
    let offered = bench.go(&recalled, recalled.step(Event::Dispatch)).await;
    bench.go(&offered, offered.step(Event::Cancel)).await;
    let before = bench.raw(offered.id).await;
    assert_eq!(bench.apply(offered.step(Event::Start)).await.outcome, Outcome::Stale, "cancelled");
    assert_eq!(bench.raw(offered.id).await, before);
}

pub(crate) async fn a_late_worker_changes_nothing(bench: &Bench) {
    let mut course = Course::calm(false);
    course.lease = Duration::ZERO;
    let first = bench.drive(State::Running, &course).await.unwrap();
    let mut job = first.clone();
    for event in [Event::Rescue, Event::Wake, Event::Dispatch, Event::Start] {
        job = bench.go(&job, job.step(event)).await;
    }
    assert!(job.head.fence > first.head.fence);
    assert_eq!((job.head.attempt, job.head.lost), (2, 1));
    let before = bench.raw(job.id).await;
    for event in [Event::Succeed, Event::Retry, Event::Fail, Event::Release, Event::Quarantine] {
        let moved = bench.apply(first.step(event)).await;
        assert_eq!((moved.outcome, moved.head.as_ref()), (Outcome::Stale, Some(&job.head)), "{event}");
    }
    let late = Extension { job: job.id, fence: first.head.fence, lease: 2 * HOUR, progress: None };
    assert!(!bench.store.extend(vec![late]).await.remove(0).unwrap().held);
    assert_eq!(bench.raw(job.id).await, before);
    let ended = bench.go(&job, job.step(Event::Succeed)).await;
    let before = bench.raw(job.id).await;
    for late in [&first, &job] {
        for event in [Event::Fail, Event::Retry, Event::Release] {
            let outcome = bench.apply(late.step(event)).await.outcome;
            assert!(matches!(outcome, Outcome::Stale | Outcome::Illegal), "{event}: {outcome}");
        }
        let extension = Extension { job: job.id, fence: late.head.fence, lease: HOUR, progress: None };
        assert!(!bench.store.extend(vec![extension]).await.remove(0).unwrap().held);
    }
    assert_eq!(bench.apply(ended.step(Event::Cancel)).await.outcome, Outcome::Illegal, "it ended otherwise");
    assert_eq!(bench.raw(job.id).await, before);
}

/// What a head says with its moments counted from the last one, so that two jobs can be compared.
pub(crate) fn relative(mut head: Head) -> Head {
    let zero = head.since.0;
    let from = |time: Time| Time((time.0 + 1_000_000_000_000).saturating_sub(zero));
    head.created_at = Time::NONE;
    head.fence = from(Time(head.fence)).0;
    head.started_at = head.started_at.map(from);
    if let Phase::Running { lease, attempt_end } = &mut head.phase {
        lease.until = from(lease.until);
        lease.start_id = StartId([0; 8]);
        *attempt_end = attempt_end.map(from);
    }
    head.since = from(head.since);
    head
}

pub(crate) async fn the_short_ways_lead_where_the_long_one_does(bench: &Bench) {
    // A note of its own sends a start the long way.
    for (lease, timeout_ms, state) in [
        (30, 0, State::Pending),
        (30, 0, State::Dispatched),
        (45, 30_000, State::Dispatched),
        (3600, 40_000, State::Pending),
        (29, 0, State::Dispatched),
        (60, 20_000, State::Pending),
    ] {
        let mut course = Course::calm(false);
        course.spec.timeout_ms = timeout_ms;
        let mut heads = Vec::new();
        for note in ["", "w-1"] {
            let job = bench.drive(state, &course).await.expect("no deadline was set");
            let step = Step { note: note.into(), lease: Duration::from_secs(lease), ..job.step(Event::Start) };
            let job = bench.go(&job, step).await;
            let record = bench.record(job.id).await;
            assert_eq!(record.head, job.head, "what is told is what is stored");
            assert_eq!(record.history.last().unwrap().note, "w-1");
            heads.push(relative(job.head));
        }
        assert_eq!(heads[0], heads[1], "{state}, a lease of {lease} s, a limit of {timeout_ms} ms");
    }
    // So does a long story an end.
    let events = [Event::Succeed, Event::Fail, Event::Quarantine];
    for (event, rounds) in events.into_iter().flat_map(|event| [0, 1, 4].map(|rounds| (event, rounds))) {
        let mut course = Course::calm(false);
        course.spec.timeout_ms = 3_600_000;
        course.wait = Duration::ZERO;
        let mut job = bench.drive(State::Running, &course).await.expect("no deadline was set");
        for _ in 0..rounds {
            for step in [Event::Release, Event::Wake, Event::Dispatch, Event::Start] {
                let moved = bench.when_due(job.step(step)).await;
                job = moved_on(&job, step, &moved);
            }
        }
        let before = job.head.clone();
        let error = JobError::new("handler_error", "no", false);
        let step = Step { error: Some(error), note: "why".into(), ..job.step(event) };
        let after = bench.go(&job, step).await.head;
        let record = bench.record(job.id).await;
        assert_eq!((&record.head, record.history.len()), (&after, usize::try_from(after.version).unwrap()));
        assert_eq!(record.history.last().unwrap().note, "why");
        assert_eq!(record.error.map(|error| error.code).as_deref(), Some("handler_error"));
        let Phase::Ended { lease_end, .. } = after.phase else { panic!("{event} after {rounds}: {after:?}") };
        assert_eq!((lease_end, after.attempt_ended_by), (None, Some(event)));
        let kept = |head: &Head| {
            let counts = (head.attempt, head.max_attempts, head.lost, head.released, head.timeout, head.fence);
            (counts, head.started_at, head.created_at, head.last_worker.clone())
        };
        assert_eq!(kept(&after), kept(&before), "{event} after {rounds} rounds");
    }
}
