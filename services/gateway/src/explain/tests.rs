//! Tests that every state is explained correctly.

use std::time::Duration;

use muster_domain::{
    Ending, Head, JobSpec, Progress, StartId, Tenant, Topic, WorkerId,
    job::{Lease, OnLostLease, Transition},
    topic::{Concurrency, Paused, TopicRate},
};
use muster_store::WorkerSeen;
use serde_json::Value;

use super::*;

const NOW: Time = Time(1_800_000_000_000_000);
const S: Duration = Duration::from_secs(1);

fn record(phase: Phase) -> Record {
    let head = Head {
        version: 4,
        attempt: 0,
        max_attempts: 5,
        lost: 0,
        released: 0,
        timeout: None,
        fence: 0,
        since: NOW.before(5 * S),
        deadline: None,
        start_by: None,
        started_at: None,
        created_at: NOW.before(60 * S),
        last_event: None,
        attempt_ended_by: None,
        last_worker: None,
        phase,
    };
    Record {
        id: JobId::mint(1),
        head,
        spec: JobSpec::new(Tenant::default(), Topic::parse("mail.send").unwrap()),
        payload: None,
        body_hash: None,
        result: None,
        error: None,
        progress: None,
        history: Vec::new(),
        retried_as: None,
        deleted: false,
        place: None,
        slot: None,
        placed: false,
        lease_until: None,
    }
}

/// The record after an attempt that this event ended.
fn tried(mut record: Record, ended_by: Event, error: Option<(&str, &str)>) -> Record {
    record.head.attempt = 2;
    record.head.started_at = Some(NOW.before(10 * S));
    record.head.last_worker = Some(WorkerId::trusted("h~default~w7"));
    record.head.attempt_ended_by = Some(ended_by);
    record.head.last_event = Some(ended_by);
    record.error = error.map(|(code, message)| JobError::new(code, message, true));
    record
}

fn ended(end: Ending, by: Event, error: Option<(&str, &str)>) -> Record {
    tried(record(Phase::Ended { end, lease_end: None }), by, error)
}

fn running(lease_left: i64, attempt_end: Option<Time>) -> Record {
    let until = Time(NOW.0.wrapping_add_signed(lease_left * 1_000_000));
    let lease = Lease { worker: WorkerId::trusted("h~default~w7"), start_id: StartId([1; 8]), until };
    let mut record = record(Phase::Running { lease, attempt_end });
    record.head.attempt = 1;
    record.head.started_at = Some(NOW.before(5 * S));
    record
}

fn noted(mut record: Record, event: Event, note: &str) -> Record {
    let to = record.head.state();
    record.history.push(Transition { event: Some(event), to, at: NOW, attempt: 0, note: note.into() });
    record
}

fn explained(record: &Record) -> Explanation {
    placed(record, Some(NOW + 30 * S), None)
}

fn placed(record: &Record, home: Option<Time>, place: Option<QueuePlace>) -> Explanation {
    explain(&Seen { home, place, ..seen(record) })
}

/// Only the record, and a reconciler that has a leader.
fn seen(record: &Record) -> Seen<'_> {
    Seen {
        record,
        home: None,
        place: None,
        offers: None,
        workers: None,
        deciding: None,
        leader: Some("s1"),
        told: None,
        slots: None,
        places: None,
        now: NOW,
    }
}

fn shown(explanation: &Explanation) -> Value {
    serde_json::from_slice(&explanation.document()).unwrap()
}

#[track_caller]
fn says(explanation: &Explanation, text: &str) {
    let all = explanation.sentences.join("\n");
    assert!(all.contains(text), "{text:?} is not in\n{all}");
}

#[test]
fn a_job_that_somebody_is_asked_about_names_who_asks() {
    let record = record(Phase::Pending { run_at: Time::NONE });
    let seen = Seen { deciding: Some("s2"), ..seen(&record) };
    let explanation = explain(&seen);
    says(&explanation, "scheduler s2 is asking, and asks again until it gets one");
    assert_eq!(shown(&explanation)["asked_by"], "s2");
}

#[test]
fn a_pending_job_in_the_backlog_is_explained_by_its_place() {
    let place = QueuePlace { ahead: 3, waiting: 9, claimed_until: None };
    let explanation = placed(&record(Phase::Pending { run_at: Time::NONE }), Some(NOW + 30 * S), Some(place));
    assert_eq!(explanation.waits_for, WaitsFor::Turn);
    says(&explanation, "in the backlog of topic mail.send with priority normal: 3 jobs go");
    assert_eq!(shown(&explanation)["backlog"]["ahead"], 3);
}

#[test]
fn a_pending_job_of_a_busy_topic_may_be_offered_already() {
    let record = record(Phase::Pending { run_at: Time::NONE });
    let about = |offers| explain(&Seen { offers, ..seen(&record) });
    let explanation = about(Some(3));
    assert_eq!(
        explanation.summary(),
        "It has probably been offered and waits for a worker to start it, for 5 s now: topic mail.send is so busy \
         that its jobs are offered without a write to their record, and 3 messages with offers wait on the bus."
    );
    assert_eq!((explanation.waits_for, &shown(&explanation)["offers"]["messages"]), (WaitsFor::Worker, &3.into()));
    says(&about(Some(1)), "and 1 message with offers waits on the bus.");
    // There are no messages with offers, or their number is unknown.
    for offers in [Some(0), None] {
        let explanation = about(offers);
        assert_eq!(explanation.waits_for, WaitsFor::Decision);
        says(&explanation, "It waits for a scheduler to decide about it");
        assert!(shown(&explanation).get("offers").is_none());
    }
    let mut old = record.clone();
    old.head.since = NOW.before(300 * S);
    let old = explain(&Seen { offers: Some(3), ..seen(&old) });
    says(&old, "its workers are gone or busy, or its offer was lost.");
    let by = Paused { since: NOW.0, by: "ops1".into(), reason: String::new() };
    let told = TopicRecord { paused: Some(by), ..TopicRecord::default() };
    says(&explain(&Seen { offers: Some(3), told: Some(&told), ..seen(&record) }), "the start is refused");
}

#[test]
fn only_what_a_scheduler_may_offer_as_it_is_is_said_to_stand_there() {
    let fresh = |phase| {
        let mut record = record(phase);
        record.head.version = 1;
        record
    };
    let pending = || fresh(Phase::Pending { run_at: Time::NONE });
    assert!(may_be_offered_as_it_is(&pending(), None, NOW));
    assert!(may_be_offered_as_it_is(&fresh(Phase::Pending { run_at: NOW }), None, NOW), "its time has come");
    let altered = |alter: fn(&mut Record)| {
        let mut record = pending();
        alter(&mut record);
        record
    };
    for (why, record) in [
        ("has moved", altered(|record| record.head.version = 2)),
        ("has a deadline", altered(|record| record.head.deadline = Some(NOW + S))),
        ("must start by then", altered(|record| record.head.start_by = Some(NOW + S))),
        ("has a concurrency key", altered(|record| record.spec.concurrency_key = "k".into())),
        ("has its time ahead", fresh(Phase::Pending { run_at: NOW + S })),
        ("is dispatched", fresh(Phase::Dispatched)),
    ] {
        assert!(!may_be_offered_as_it_is(&record, None, NOW), "one that {why}");
    }
    let mut told = TopicRecord::default();
    told.settings.rate = Some(TopicRate { per_s: 0.5, burst: 2 });
    assert!(!may_be_offered_as_it_is(&pending(), Some(&told), NOW), "one of a topic with a rate");
    // The same rule as the scheduler's: a job without a concurrency key needs no slot, whatever its topic sets for
    // jobs with a key.
    let concurrent = |max, per_key| {
        let mut told = TopicRecord::default();
        told.settings.concurrency = Some(Concurrency { max, per_key });
        told
    };
    assert!(!may_be_offered_as_it_is(&pending(), Some(&concurrent(Some(3), None)), NOW), "one of a topic with places");
    assert!(may_be_offered_as_it_is(&pending(), Some(&concurrent(None, Some(2))), NOW), "one of a topic with slots");
}

#[test]
fn a_job_that_waits_for_a_slot_names_who_has_it() {
    let (record, other) = (record(Phase::Queued), JobId::mint(2));
    let slots = SlotsSeen { key: "customer:17".into(), held_by: vec![other], held: 1, waiting: 2 };
    let seen = Seen { slots: Some(&slots), ..seen(&record) };
    let explanation = explain(&seen);
    says(&explanation, &format!("concurrency key customer:17 may run: {other} has the slot, and 2 jobs are waiting."));
    assert_eq!(shown(&explanation)["concurrency"]["held_by"][0], other.to_string());
    assert_eq!(explanation.waits_for, WaitsFor::Limit);
    // A scheduler claims the job, finds the slot taken and returns the job to its place. The job is not about to be
    // offered.
    let claimed = QueuePlace { ahead: 0, waiting: 2, claimed_until: Some(NOW + 3 * S) };
    let explanation = explain(&Seen { place: Some(claimed), ..seen });
    says(&explanation, "It waits its turn in the backlog");
    assert!(explanation.sentences.iter().all(|said| !said.contains("to offer it now")), "{:?}", explanation.sentences);
}

#[test]
fn a_job_that_waits_for_its_topic_s_limit_names_who_has_the_places() {
    let (record, other) = (record(Phase::Queued), JobId::mint(2));
    let explained = |places: &PlacesSeen| explain(&Seen { places: Some(places), ..seen(&record) });
    let full = PlacesSeen { max: 3, held_by: vec![other], held: 3 };
    let explanation = explained(&full);
    says(&explanation, "no more than 3 jobs of topic mail.send may run at once");
    says(&explanation, &format!("taken by {other} and 2 more."));
    assert_eq!(explanation.waits_for, WaitsFor::Limit);
    let wanted = serde_json::json!({"max": 3, "held": 3, "held_by": [other.to_string()]});
    assert_eq!(shown(&explanation)["topic_limit"], wanted);
    let some = explained(&PlacesSeen { held: 2, ..full });
    assert_eq!(some.waits_for, WaitsFor::Turn, "a place is free: it waits for the release alone");
}

#[test]
fn every_state_has_a_summary_of_its_own() {
    let (later, place) = (NOW + 60 * S, QueuePlace { ahead: 3, waiting: 9, claimed_until: None });
    let cases = [
        (record(Phase::Pending { run_at: Time::NONE }), WaitsFor::Decision, "waits for a scheduler to decide"),
        (record(Phase::Pending { run_at: later }), WaitsFor::Time, "may not start before 2027-01-15T08:01:00.000Z"),
        (record(Phase::Scheduled { run_at: later }), WaitsFor::Time, "waits for its time and may start at 2027-01-15"),
        (
            tried(record(Phase::Retrying { run_at: later }), Event::Retry, Some(("boom", "x"))),
            WaitsFor::Time,
            "Attempt 2 did not succeed; attempt 3 may start at 2027-01-15T08:01:00.000Z (in 60 s)",
        ),
        (record(Phase::AwaitingApproval { expires: later }), WaitsFor::Approval, "waits for a person's approval until"),
        (record(Phase::Queued), WaitsFor::Turn, "in the backlog of topic mail.send with priority normal: 3 jobs go"),
        (record(Phase::Dispatched), WaitsFor::Worker, "offered to the workers of topic mail.send of tenant default"),
        (running(20, None), WaitsFor::Result, "Worker w7 runs attempt 1 since"),
        (ended(Ending::Succeeded, Event::Succeed, None), WaitsFor::Nothing, "succeeded in attempt 2 on worker w7 at"),
        (
            ended(Ending::Failed, Event::Fail, Some(("boom", "it broke."))),
            WaitsFor::Nothing,
            "failed in attempt 2 on worker w7 with boom: it broke, though attempts were left, because the error is",
        ),
        (
            ended(Ending::TimedOut, Event::TimeOut, Some(("deadline_exceeded", "late"))),
            WaitsFor::Nothing,
            "ran out of time in attempt 2 on worker w7 with deadline_exceeded: late",
        ),
        (
            noted(ended(Ending::Cancelled, Event::Cancel, None), Event::Cancel, "not needed"),
            WaitsFor::Nothing,
            "It was cancelled (not needed) at",
        ),
        (
            noted(record(Phase::Ended { end: Ending::Denied, lease_end: None }), Event::Deny, "rule 7"),
            WaitsFor::Nothing,
            "It was denied (rule 7) at",
        ),
        (
            ended(Ending::Expired, Event::Expire, Some(("start_by_passed", "too late"))),
            WaitsFor::Nothing,
            "expired before it ever started with start_by_passed: too late at",
        ),
        (
            ended(Ending::Quarantined, Event::Poison, Some(("stale_timeout", "silent"))),
            WaitsFor::Nothing,
            "Every one of its 2 attempts lost its worker, so it is in quarantine with stale_timeout: silent at",
        ),
    ];
    let mut states = std::collections::BTreeSet::new();
    for (record, waits_for, summary) in &cases {
        let state = record.head.state();
        states.insert(state);
        let explanation = placed(record, Some(NOW + 30 * S), Some(place).filter(|_| state == State::Queued));
        assert!(explanation.summary().contains(summary), "{state}: {}", explanation.summary());
        assert_eq!(explanation.waits_for, *waits_for, "{state}");
        assert_eq!(explanation.attempts.left, if state.is_end() { 0 } else { 5 - record.head.attempt }, "{state}");
        let shown = shown(&explanation);
        assert_eq!(shown["state"], state.as_str());
        assert_eq!(shown["done"], state.is_end());
        assert_eq!(shown["summary"], shown["sentences"][0]);
        assert_eq!(shown.get("holder").is_some(), state == State::Running, "{state}");
        assert_eq!(shown.get("backlog").is_some(), state == State::Queued, "{state}");
        assert!(explanation.sentences.iter().all(|s| s.ends_with('.') && !s.ends_with("..")), "{state}");
    }
    assert_eq!(states.len(), State::ALL.len(), "a state is missing from this table");
}

#[test]
fn moments_are_data_too() {
    let mut waiting = record(Phase::Scheduled { run_at: NOW + 60 * S });
    (waiting.head.start_by, waiting.head.deadline) = (Some(NOW + 90 * S), Some(NOW + 120 * S));
    let explanation = explained(&waiting);
    says(&explanation, "It expires if it has not started by 2027-01-15T08:01:30.000Z (in 90 s).");
    says(&explanation, "Its deadline is 2027-01-15T08:02:00.000Z (in 2 min).");
    says(&explanation, "checks it at 2027-01-15T08:00:30.000Z (in 30 s) and makes it ready to start");
    let shown = shown(&explanation);
    assert_eq!(shown["may_start_at"], "2027-01-15T08:01:00.000Z");
    assert_eq!(shown["start_by"], "2027-01-15T08:01:30.000Z");
    assert_eq!(shown["deadline"], "2027-01-15T08:02:00.000Z");
    assert_eq!(shown["next_look"]["at"], "2027-01-15T08:00:30.000Z");
    assert_eq!(shown["next_look"]["due"], false);
    assert_eq!(shown["as_of"], "2027-01-15T08:00:00.000Z");
    assert!(shown.get("next_retry_at").is_none(), "nothing was tried yet");
    // After the job has started, `start_by` no longer applies.
    let started = tried(waiting, Event::Release, None);
    assert!(explained(&started).start_by.is_none());
    says(&explained(&started), "Its last attempt on worker w7 was given back.");
}

#[test]
fn the_end_of_the_last_attempt_is_named() {
    let retrying = || record(Phase::Retrying { run_at: NOW + S });
    for (event, text) in [
        (Event::Retry, "Attempt 2 on worker w7 failed with boom: it broke: badly."),
        (Event::Rescue, "Attempt 2 on worker w7 was lost: the worker fell silent."),
        (Event::CutShort, "Attempt 2 on worker w7 took longer than its time-out."),
    ] {
        let explanation = explained(&tried(retrying(), event, Some(("boom", "it broke:\n badly"))));
        says(&explanation, text);
        says(&explanation, "2 of 5 attempts used, 3 left.");
        assert_eq!(shown(&explanation)["last_error"]["code"], "boom");
        assert_eq!(shown(&explanation)["next_retry_at"], "2027-01-15T08:00:01.000Z");
    }
    let mut lost = tried(retrying(), Event::Rescue, None);
    (lost.head.lost, lost.head.released) = (1, 2);
    says(&explained(&lost), "2 of 5 attempts used, 3 left; 1 lost the worker; given back 2 times.");
}

#[test]
fn the_place_in_the_backlog_is_named() {
    let waiting = noted(record(Phase::Queued), Event::Hold, "");
    let place = QueuePlace { ahead: 0, waiting: 7, claimed_until: None };
    let first = placed(&waiting, Some(NOW + S), Some(place));
    says(&first, "no job goes before it, 7 in all.");
    says(&first, "It is held because workers are offered only as many jobs as they soon start");
    assert_eq!(shown(&first)["backlog"], serde_json::json!({"ahead": 0, "waiting": 7, "priority": "normal"}));
    let claimed = QueuePlace { claimed_until: Some(NOW + S), ..place };
    says(&placed(&waiting, None, Some(claimed)), "no job goes before it, and a scheduler has claimed it");
    let kept = QueuePlace { ahead: 900, ..claimed };
    says(&placed(&waiting, None, Some(kept)), "900 jobs go before it, and a scheduler has claimed it");
    let lapsed = QueuePlace { claimed_until: Some(NOW.before(S)), ..place };
    says(&placed(&waiting, None, Some(lapsed)), "no job goes before it");
    says(&placed(&waiting, None, None), "its entry was lost and the next check will put it back");
    let held = explained(&noted(record(Phase::Queued), Event::Hold, "topic is paused"));
    says(&held, "It is held because: topic is paused.");
    assert_eq!(shown(&held)["refused_by"], serde_json::json!({"event": "hold", "reason": "topic is paused"}));
}

#[test]
fn a_running_job_names_its_holder_until_the_end_of_its_lease() {
    let mut held = running(20, Some(NOW + 40 * S));
    held.progress = Some(Progress { percent: Some(12.5), ..Default::default() });
    let explanation = explained(&held);
    says(&explanation, "The worker's lease lasts until 2027-01-15T08:00:20.000Z (in 20 s)");
    says(&explanation, "The attempt times out at 2027-01-15T08:00:40.000Z (in 40 s).");
    says(&explanation, "a progress of 12.5 %");
    assert_eq!(shown(&explanation)["holder"]["worker"], "w7");
    assert_eq!(shown(&explanation)["holder"]["lease_ran_out"], false);
    let silent = explained(&running(-3, None));
    says(&silent, "The worker's lease ran out at 2027-01-15T07:59:57.000Z (3 s ago)");
    assert_eq!(shown(&silent)["holder"]["lease_ran_out"], true);
}

#[test]
fn a_wait_that_is_too_long_says_what_to_look_at() {
    let old = |phase| {
        let mut record = record(phase);
        record.head.since = NOW.before(300 * S);
        record
    };
    says(&explained(&old(Phase::Pending { run_at: Time::NONE })), "no scheduler handles submits");
    says(&explained(&old(Phase::Dispatched)), "no worker of this topic and tenant runs, or all of them are busy");
    let young = explained(&record(Phase::Dispatched));
    assert!(!young.sentences.iter().any(|s| s.contains("no worker")), "{:?}", young.sentences);
}

#[test]
fn the_workers_that_could_run_it_are_named_until_one_does() {
    let worker = |tenant: &str, topic: &str, busy, healthy| WorkerSeen {
        tenant: tenant.into(),
        topics: vec!["other".into(), topic.into()],
        slots: 4,
        busy,
        healthy,
        ..WorkerSeen::default()
    };
    let mut workers = vec![
        worker("acme", "mail.send", 0, true),
        worker("default", "mail", 0, true),
        worker("default", "mail.send", 4, false),
    ];
    let told = |record: &Record, workers: &[WorkerSeen]| {
        let snapshot = WorkerSnapshot { at: NOW, workers: workers.to_vec() };
        let workers = Some(Serving::of(record, &snapshot, false));
        explain(&Seen { workers, ..seen(record) })
    };
    for phase in [Phase::Dispatched, Phase::Queued, Phase::Scheduled { run_at: NOW + S }] {
        let none = told(&record(phase), &workers);
        says(
            &none,
            "No live worker takes topic mail.send of tenant default (1 live and take no work); it cannot start",
        );
        assert_eq!(shown(&none)["workers"]["live"], 0);
    }
    workers.push(worker("default", "mail.send", 1, true));
    says(&told(&record(Phase::Dispatched), &workers), "1 live worker takes this topic; 3 of its 4 slots are free");
    workers.push(worker("default", "mail.send", 9, true));
    let two = told(&record(Phase::Dispatched), &workers);
    says(&two, "2 live workers take this topic; 3 of their 8 slots are free");
    let as_of = NOW.rfc3339();
    let wanted = serde_json::json!({"live": 2, "slots": 8, "free": 3, "unhealthy": 1, "lacking": 0, "as_of": as_of});
    assert_eq!(shown(&two)["workers"], wanted);
    for held in [running(9, None), ended(Ending::Succeeded, Event::Succeed, None)] {
        assert!(shown(&told(&held, &workers)).get("workers").is_none());
    }
}

#[test]
fn a_look_is_ahead_due_overdue_or_not_planned() {
    let waiting = record(Phase::Pending { run_at: Time::NONE });
    says(&placed(&waiting, Some(NOW.before(S)), None), "The reconciler of scheduler s1 checks it at any moment");
    let overdue = placed(&waiting, Some(NOW.before(60 * S)), None);
    says(&overdue, "overdue since 2027-01-15T07:59:00.000Z (60 s ago): scheduler s1 leads the reconciler and has not");
    assert_eq!(shown(&overdue)["next_look"]["due"], true);
    says(&placed(&waiting, None, None), "No check of it is planned");
    let done = placed(&ended(Ending::Succeeded, Event::Succeed, None), None, None);
    assert!(!done.sentences.iter().any(|s| s.contains("check")), "{:?}", done.sentences);
    let unfinished = explained(&ended(Ending::Succeeded, Event::Succeed, None));
    says(&unfinished, "completes the effects of its end");
    says(&unfinished, "the reconciler of scheduler s1 checks it at 2027-01-15T08:00:30.000Z (in 30 s)");
    assert_eq!(shown(&unfinished)["next_look"]["scheduler"], "s1");
    for (home, text) in [
        (NOW + 30 * S, "reconciler of the next leader (no scheduler leads it at this moment) checks it at 2027"),
        (NOW.before(S), "reconciler of the next leader (no scheduler leads it at this moment) checks it at any moment"),
        (NOW.before(60 * S), "(60 s ago): no scheduler leads the reconciler."),
    ] {
        let unled = explain(&Seen { home: Some(home), leader: None, ..seen(&waiting) });
        says(&unled, text);
        assert!(shown(&unled)["next_look"].get("scheduler").is_none());
    }
}

#[test]
fn the_settings_of_its_topic_are_named() {
    let place = Some(QueuePlace { ahead: 3, waiting: 9, claimed_until: None });
    let (queued, offered) = (record(Phase::Queued), record(Phase::Dispatched));
    let about = |record: &Record, told: &TopicRecord| explain(&Seen { place, told: Some(told), ..seen(record) });
    let by = |reason: &str| Paused { since: NOW.before(9 * S).0, by: "ops1".into(), reason: reason.into() };
    let mut told = TopicRecord { paused: Some(by("the printer burns.")), ..TopicRecord::default() };
    let paused = about(&queued, &told);
    assert_eq!(shown(&paused)["waits_for"], "resume");
    says(&paused, "paused since 2027-01-15T07:59:51.000Z (9 s ago) by key ops1 (the printer burns): no job of it");
    assert!(paused.sentences.iter().all(|said| !said.contains("workers are offered only")));
    says(&about(&offered, &told), "the start is refused");
    told.settings.rate = Some(TopicRate { per_s: 0.5, burst: 2 });
    says(&about(&queued, &told), "releases 0.5 jobs a second, 2 at once at most");
    told.paused = None;
    let rationed = about(&queued, &told);
    assert_eq!(shown(&rationed)["waits_for"], "rate");
    assert!(rationed.sentences.iter().all(|said| !said.contains("workers are offered only")));
    told.settings.rate = None;
    assert_eq!(shown(&about(&queued, &told))["waits_for"], "turn");
}

#[test]
fn what_ended_badly_says_why_no_attempt_follows() {
    let mut last = ended(Ending::Failed, Event::Fail, Some(("boom", "x")));
    last.head.max_attempts = 2;
    assert!(explained(&last).summary().starts_with("It failed in attempt 2 on worker w7 with boom: x at 2027"));
    let mut silent = ended(Ending::Failed, Event::Abandon, Some(("stale_timeout", "silent")));
    silent.spec.on_lost_lease = OnLostLease::Fail;
    says(&explained(&silent), "because its worker fell silent and `on_lost_lease` is `fail`");
    let mut unread = record(Phase::Ended { end: Ending::Failed, lease_end: None });
    unread.head.last_event = Some(Event::Reject);
    says(&explained(&unread), "A worker could not read its offer, so it failed at");
    let mut cut = ended(Ending::Cancelled, Event::Cancel, None);
    cut.head.phase = Phase::Ended { end: Ending::Cancelled, lease_end: Some(NOW + 9 * S) };
    cut.retried_as = Some(JobId::mint(2));
    says(&explained(&cut), "was asked to stop; it may continue until 2027-01-15T08:00:09.000Z");
    says(&explained(&cut), &format!("It was retried as job {}.", cut.retried_as.unwrap()));
}

#[test]
fn spans_are_shown_in_their_largest_unit() {
    let shown = |s| sentences::span(Duration::from_secs(s));
    assert_eq!(
        [0, 1, 119, 120, 7_200, 172_800].map(shown),
        ["less than a second", "1 s", "119 s", "2 min", "2 h", "2 days"]
    );
}
