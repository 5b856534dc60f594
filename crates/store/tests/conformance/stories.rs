//! What a record tells of a job's life: a bounded story, cut texts, moments, results.

use std::time::Duration;

use muster_domain::{
    Ending, Event, JobError, Phase, Progress, State,
    job::{EndedBy, MAX_ERROR_MESSAGE},
};
use muster_store::{Extension, Step};

use crate::bench::{Bench, HOUR, Job, spec, tenant};

pub(crate) async fn a_story_keeps_its_first_and_last_63_lines(bench: &Bench) {
    const MOVES: u32 = 200;
    let mut job = bench.submit(spec(&tenant())).await;
    let created = job.head.since;
    let mut told = Vec::new();
    for n in 0..MOVES {
        let event = if n == 0 { Event::Dispatch } else { Event::Reoffer };
        // Lines of every length, the longest included.
        let note = format!("{n}:{}", "x".repeat((n as usize * 7) % 237));
        job = bench.go(&job, Step { note: note.clone(), ..job.step(event) }).await;
        told.push((event, job.head.since, note));
        let length = usize::try_from(job.head.version).unwrap().min(64);
        let history = bench.record(job.id).await.history;
        assert_eq!(history.len(), length);
        assert_eq!((history[0].event, history[0].to, history[0].at), (None, State::Pending, created));
        let last = &told[told.len() - (length - 1)..];
        for (line, (event, at, note)) in history[1..].iter().zip(last) {
            assert_eq!((line.event, line.at, &line.note), (Some(*event), *at, note));
            assert_eq!(line.to, State::Dispatched);
        }
    }
    assert_eq!(job.head.version, MOVES + 1);
}

pub(crate) async fn texts_are_cut_on_a_character_boundary(bench: &Bench) {
    // 10 kB of characters of two, three and four bytes, at every shift.
    for shift in 0..9 {
        let long = format!("{}{}", "x".repeat(shift), "ü€😀".repeat(1200));
        let job = bench.calm(State::Running).await;
        let step = job.step(Event::Fail).with_error(JobError::new("handler_error", &long, false));
        bench.go(&job, step).await;
        let record = bench.record(job.id).await;
        let error = record.error.unwrap();
        assert!((MAX_ERROR_MESSAGE - 3..=MAX_ERROR_MESSAGE).contains(&error.message.len()), "{}", error.message.len());
        assert!(long.starts_with(&error.message));
        let note = &record.history.last().unwrap().note;
        assert!((237..=240).contains(&note.len()), "{}", note.len());
        assert!(format!("handler_error: {long}").starts_with(note.as_str()));
    }
}

pub(crate) async fn moments_of_a_life_are_those_of_its_transitions(bench: &Bench) {
    let job = bench.submit(spec(&tenant())).await;
    assert_eq!((job.head.created_at, job.head.started_at, job.head.finished_at()), (job.head.since, None, None));
    let offered = bench.go(&job, job.step(Event::Dispatch)).await;
    assert_eq!(offered.head.started_at, None);
    let first = bench.go(&offered, offered.step(Event::Start)).await;
    assert_eq!(first.head.started_at, Some(first.head.since));
    assert_eq!(first.head.lease().unwrap().until, first.head.since + HOUR);
    let mut job = bench.go(&first, first.step(Event::Retry)).await;
    assert_eq!(job.head.started_at, first.head.started_at);
    for event in [Event::Wake, Event::Dispatch, Event::Start] {
        job = bench.go(&job, job.step(event)).await;
    }
    assert!(job.head.started_at > first.head.started_at);
    let ended = bench.go(&job, job.step(Event::Succeed)).await;
    assert_eq!(ended.head.finished_at(), Some(ended.head.since));
    assert_eq!((ended.head.created_at, ended.head.started_at), (first.head.created_at, job.head.started_at));
    let lines = bench.record(job.id).await.history;
    let attempts: Vec<u16> = lines.iter().map(|line| line.attempt).collect();
    assert_eq!(attempts, [0, 0, 1, 1, 1, 1, 2, 2]);
    assert!(lines.windows(2).all(|pair| pair[0].at < pair[1].at));
}

pub(crate) async fn what_an_attempt_left_is_read_back(bench: &Bench) {
    let job = bench.calm(State::Running).await;
    let error = JobError { details: Some("{\"a\":1}".into()), ..JobError::new("boom", "it broke", true) };
    let failed = bench.go(&job, job.step(Event::Retry).with_error(error.clone())).await;
    let record = bench.record(job.id).await;
    assert_eq!((record.error.as_ref(), record.result), (Some(&error), None));
    assert_eq!(record.history.last().unwrap().note, "boom: it broke");
    assert_eq!(record.head.ended_by(), Some(EndedBy::Worker(Event::Retry)));
    let mut job = failed;
    for event in [Event::Wake, Event::Dispatch, Event::Start] {
        job = bench.go(&job, job.step(event)).await;
    }
    let step = crate::repeats::rich(job.step(Event::Succeed));
    bench.go(&job, step.clone()).await;
    let record = bench.record(job.id).await;
    assert_eq!((record.result, record.error), (step.result, Some(error)));
    assert_eq!(record.history.last().unwrap().note, "done");
}

pub(crate) async fn progress_of_an_earlier_attempt_is_gone(bench: &Bench) {
    for event in [Event::Retry, Event::Release] {
        let job = bench.calm(State::Running).await;
        let progress = Progress { percent: Some(12.5), message: Some("ü".into()), data: Some("{}".into()) };
        let told = Extension { job: job.id, fence: job.head.fence, lease: HOUR, progress: Some(progress.clone()) };
        assert!(bench.store.extend(vec![told]).await.remove(0).unwrap().held);
        assert_eq!(bench.record(job.id).await.progress, Some(progress));
        let mut job: Job = job;
        for event in [event, Event::Wake, Event::Dispatch, Event::Start] {
            // The lease was extended meanwhile, and the bench compares what the script knows.
            job.head = bench.record(job.id).await.head;
            job = bench.go(&job, job.step(event)).await;
        }
        assert_eq!(bench.record(job.id).await.progress, None, "after {event}");
    }
}

pub(crate) async fn a_lease_that_was_cut_short_is_remembered(bench: &Bench) {
    // Its worker may still be at it: whoever holds a slot for it knows until when.
    let job = bench.calm(State::Running).await;
    let until = job.head.lease().unwrap().until;
    let cancelled = bench.go(&job, job.step(Event::Cancel)).await;
    assert_eq!(cancelled.head.phase, Phase::Ended { end: Ending::Cancelled, lease_end: Some(until) });
    assert_eq!(cancelled.head.ended_by(), Some(EndedBy::Cancel));
    let job = bench.ripe(State::Running, Event::TimeOut, false).await;
    let until = job.head.lease().unwrap().until;
    let moved = bench.when_due(job.step(Event::TimeOut)).await;
    assert_eq!(moved.head.unwrap().phase, Phase::Ended { end: Ending::TimedOut, lease_end: Some(until) });
    // One that its worker ended holds nothing.
    let job = bench.calm(State::Running).await;
    let ended = bench.go(&job, Step { wait: Duration::ZERO, ..job.step(Event::Succeed) }).await;
    assert_eq!(ended.head.phase, Phase::Ended { end: Ending::Succeeded, lease_end: None });
    assert_eq!(ended.head.last_worker, job.head.last_worker);
}
