//! The sentences of an explanation. Each sentence is complete by itself, gives times both as a clock time and
//! relative to now, and says what the reader can do when a wait is too long.

use std::time::Duration;

use muster_domain::{
    Ending, Event, Head, Phase, Time,
    job::{EndedBy, OnLostLease},
};
use muster_store::Record;

use super::{Seen, refusal};

/// A longer wait for the bus is too long.
const LONG: Duration = Duration::from_secs(30);
/// A scheduler normally does a due check within this time.
const OVERDUE: Duration = Duration::from_secs(10);

/// All sentences about a job. The first is the summary.
pub(super) fn about(seen: &Seen<'_>) -> Vec<String> {
    let mut sentences = Vec::new();
    standing(seen, &mut sentences);
    if !seen.record.head.state().is_end() {
        workers(seen, &mut sentences);
        last_attempt(seen.record, &mut sentences);
        limits(seen, &mut sentences);
    }
    sentences.push(attempts(&seen.record.head));
    look(seen, &mut sentences);
    if let Some(new) = seen.record.retried_as {
        sentences.push(format!("It was retried as job {new}."));
    }
    sentences
}

fn standing(seen: &Seen<'_>, sentences: &mut Vec<String>) {
    let (record, head, now) = (seen.record, &seen.record.head, seen.now);
    let (topic, tenant) = (&record.spec.topic, &record.spec.tenant);
    let waited = now.since(head.since);
    let hint = |sentences: &mut Vec<String>, text: &str| {
        if waited >= LONG {
            sentences.push(text.to_owned());
        }
    };
    match &head.phase {
        // The job is in the backlog, although its record only says that it was accepted.
        Phase::Pending { .. } if seen.place.is_some() => queued(seen, sentences),
        Phase::Pending { .. } if seen.standing_offers().is_some() => {
            sentences.push(format!(
                "It has probably been offered and waits for a worker to start it, for {} now: topic {topic} \
                 is so busy that its jobs are offered without a write to their record, and {} on the bus.",
                span(waited),
                messages(seen.standing_offers().unwrap_or_default())
            ));
            paused(seen, sentences);
            hint(sentences, "This is too long: its workers are gone or busy, or its offer was lost.");
        }
        Phase::Pending { run_at } => {
            match run_at.some().filter(|at| !at.reached(now)) {
                Some(at) => sentences.push(format!(
                    "It was accepted and may not start before {}; no scheduler has recorded this yet.",
                    on_clock(at, now)
                )),
                None => {
                    sentences.push(format!("It waits for a scheduler to decide about it, for {} now.", span(waited)))
                }
            }
            match seen.deciding {
                Some(scheduler) => sentences.push(format!(
                    "Jobs of topic {topic} need the answer of a decider outside Muster: scheduler {scheduler} is \
                     asking, and asks again until it gets one."
                )),
                None => hint(
                    sentences,
                    "This is too long: no scheduler handles submits. `/readyz` on the admin port of each says what is \
                     missing.",
                ),
            }
        }
        Phase::Scheduled { run_at } => match run_at.reached(now) {
            false => sentences.push(format!("It waits for its time and may start at {}.", on_clock(*run_at, now))),
            true => sentences.push(format!(
                "Its time came at {}; the next check will make it ready to start.",
                on_clock(*run_at, now)
            )),
        },
        Phase::Retrying { run_at } => {
            let next = head.attempt.saturating_add(1);
            match run_at.reached(now) {
                false => sentences.push(format!(
                    "Attempt {} did not succeed; attempt {next} may start at {}.",
                    head.attempt,
                    on_clock(*run_at, now)
                )),
                true => sentences.push(format!(
                    "Attempt {} did not succeed; the time for attempt {next} came at {}, and the next check will \
                     make it ready to start.",
                    head.attempt,
                    on_clock(*run_at, now)
                )),
            }
        }
        Phase::AwaitingApproval { expires } => {
            sentences.push(match expires.some() {
                Some(at) => format!("It waits for a person's approval until {}.", on_clock(at, now)),
                None => "It waits for a person's approval.".to_owned(),
            });
            if let Some((_, reason)) = refusal(record) {
                sentences.push(format!("Approval was asked for because: {reason}."));
            }
        }
        Phase::Queued => queued(seen, sentences),
        Phase::Dispatched => {
            sentences.push(format!(
                "It is offered to the workers of topic {topic} of tenant {tenant}; none has started it since {}.",
                on_clock(head.since, now)
            ));
            paused(seen, sentences);
            if seen.workers.is_none() {
                hint(sentences, "This is too long: no worker of this topic and tenant runs, or all of them are busy.");
            }
        }
        Phase::Running { lease, attempt_end } => {
            let (worker, since) = (lease.worker.own_name(), head.started_at.unwrap_or(head.since));
            sentences.push(format!("Worker {worker} runs attempt {} since {}.", head.attempt, on_clock(since, now)));
            sentences.push(match lease.until.reached(now) {
                false => {
                    format!("The worker's lease lasts until {}; a live worker extends it.", on_clock(lease.until, now))
                }
                true => format!(
                    "The worker's lease ran out at {}: the worker has been silent, and loses the job as soon as a \
                     scheduler is sure that no message from it is still on the way.",
                    on_clock(lease.until, now)
                ),
            });
            if let Some(end) = attempt_end {
                sentences.push(format!("The attempt times out at {}.", on_clock(*end, now)));
            }
            if let Some(percent) = record.progress.as_ref().and_then(|progress| progress.percent) {
                sentences.push(format!("The worker reports a progress of {percent} %."));
            }
        }
        Phase::Ended { end, lease_end } => {
            sentences.push(format!("{} at {}.", ended(record, *end), on_clock(head.since, now)));
            if let Some(at) = lease_end.filter(|at| !at.reached(now)) {
                sentences
                    .push(format!("Its last worker was asked to stop; it may continue until {}.", on_clock(at, now)));
            }
        }
    }
}

/// What a pause of the topic does to an offer on the bus.
fn paused(seen: &Seen<'_>, sentences: &mut Vec<String>) {
    let topic = &seen.record.spec.topic;
    if seen.told.is_some_and(|topic| topic.paused.is_some()) {
        sentences.push(format!(
            "Topic {topic} is paused: if a worker asks for the job, the start is refused and the job goes back to the \
             backlog."
        ));
    }
}

fn queued(seen: &Seen<'_>, sentences: &mut Vec<String>) {
    let (record, now) = (seen.record, seen.now);
    let (topic, priority) = (&record.spec.topic, record.spec.priority);
    let limited = seen.slots.is_some_and(|slots| slots.held > 0) || seen.places.is_some_and(|p| p.are_taken());
    sentences.push(match &seen.place {
        // A scheduler also claims jobs that wait for a limit, and then finds that the limit holds them.
        Some(place) if !limited && place.claimed_until.is_some_and(|until| !until.reached(now)) => {
            format!(
                "It is in the backlog of topic {topic}, {} before it, and a scheduler has claimed it to offer it now.",
                jobs(place.ahead)
            )
        }
        Some(place) => format!(
            "It waits its turn in the backlog of topic {topic} with priority {priority}: {} before it, {} in all.",
            jobs(place.ahead),
            place.waiting
        ),
        None => format!(
            "It belongs in the backlog of topic {topic} and is not there: a scheduler is offering it at this moment, \
             or its entry was lost and the next check will put it back."
        ),
    });
    let rules = seen.told;
    if let Some(paused) = rules.and_then(|rules| rules.paused.as_ref()) {
        let why = if paused.reason.is_empty() { String::new() } else { format!(" ({})", plain(&paused.reason)) };
        sentences.push(format!(
            "Topic {topic} is paused since {} by key {}{why}: no job of it starts before it is resumed.",
            on_clock(paused.since(), now),
            paused.by
        ));
    }
    if let Some(rate) = rules.and_then(|rules| rules.settings.rate) {
        sentences.push(format!(
            "Topic {topic} releases {} jobs a second, {} at once at most, over all replicas.",
            rate.per_s, rate.burst
        ));
    }
    let full = seen.places.filter(|places| places.are_taken());
    if let Some(places) = full {
        let by: Vec<String> = places.held_by.iter().map(ToString::to_string).collect();
        let more = places.held.saturating_sub(by.len() as u64);
        sentences.push(format!(
            "It is held because no more than {} of topic {topic} may run at once, over all replicas: the places are \
             taken by {}{}.",
            if places.max == 1 { "one job".to_owned() } else { format!("{} jobs", places.max) },
            by.join(", "),
            if more > 0 { format!(" and {more} more") } else { String::new() },
        ));
    }
    if let Some(slots) = seen.slots.filter(|slots| slots.held > 0) {
        let by: Vec<String> = slots.held_by.iter().map(ToString::to_string).collect();
        sentences.push(format!(
            "It is held because {} with its concurrency key {} may run: {} has the slot, and {} waiting.",
            if slots.held == 1 { "one job".to_owned() } else { format!("{} jobs", slots.held) },
            slots.key,
            by.join(", "),
            if slots.waiting == 1 { "1 job is".to_owned() } else { format!("{} jobs are", slots.waiting) },
        ));
        return;
    }
    if full.is_some() {
        return;
    }
    sentences.push(match refusal(record) {
        Some((_, reason)) => format!("It is held because: {reason}."),
        None if rules.is_some_and(|rules| rules.paused.is_some() || rules.settings.rate.is_some()) => return,
        None => {
            "It is held because workers are offered only as many jobs as they soon start; the others wait here, the \
                 most urgent first, then the oldest."
                .to_owned()
        }
    });
}

/// Whether there are workers that could run the job.
fn workers(seen: &Seen<'_>, sentences: &mut Vec<String>) {
    let Some(serving) = seen.workers.filter(|_| seen.record.head.lease().is_none()) else { return };
    let (topic, tenant) = (&seen.record.spec.topic, &seen.record.spec.tenant);
    let ill = match serving.unhealthy {
        0 => String::new(),
        n => format!(" ({n} live and take no work)"),
    };
    sentences.push(match serving.live {
        0 if serving.lacking > 0 => format!(
            "No live worker provides what it requires ({}){ill}: {} of this topic and tenant lack it; it cannot start \
             until one comes that does.",
            required(seen.record),
            serving.lacking
        ),
        0 => format!("No live worker takes topic {topic} of tenant {tenant}{ill}; it cannot start until one comes."),
        1 => format!("1 live worker takes this topic; {} of its {} slots are free{ill}.", serving.free, serving.slots),
        n => format!(
            "{n} live workers take this topic; {} of their {} slots are free{ill}.",
            serving.free, serving.slots
        ),
    });
}

fn required(record: &Record) -> String {
    record.spec.requires.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

fn ended(record: &Record, end: Ending) -> String {
    let head = &record.head;
    let by = head.last_worker.as_ref().map(|w| format!(" on worker {}", w.own_name())).unwrap_or_default();
    let why = record.error.as_ref().map(|e| format!(" with {}: {}", e.code, plain(&e.message))).unwrap_or_default();
    let reason = refusal(record).map(|(_, reason)| format!(" ({reason})")).unwrap_or_default();
    match end {
        Ending::Succeeded => format!("It succeeded in attempt {}{by}", head.attempt),
        Ending::Failed if head.last_event == Some(Event::Reject) => {
            format!("A worker could not read its offer, so it failed{why}")
        }
        Ending::Failed => {
            let last = match (head.attempt < head.max_attempts, record.spec.on_lost_lease, head.ended_by()) {
                (true, OnLostLease::Fail, Some(EndedBy::Silence)) => {
                    ", because its worker fell silent and `on_lost_lease` is `fail`,"
                }
                (true, _, _) => ", though attempts were left, because the error is not retryable,",
                (false, _, _) => "",
            };
            format!("It failed in attempt {}{by}{why}{last}", head.attempt)
        }
        Ending::TimedOut => {
            let during = if head.attempt_ended_by == Some(Event::TimeOut) { "in" } else { "after" };
            format!("It ran out of time {during} attempt {}{by}{why}", head.attempt)
        }
        Ending::Cancelled => format!("It was cancelled{reason}"),
        Ending::Denied => format!("It was denied{reason}"),
        Ending::Expired => format!("It expired before it ever started{why}"),
        Ending::Quarantined if head.last_event == Some(Event::Quarantine) => {
            format!("Its output was held back, so it is in quarantine{why}")
        }
        Ending::Quarantined => {
            format!("Every one of its {} attempts lost its worker, so it is in quarantine{why}", head.attempt)
        }
    }
}

/// How the previous attempt of an active job ended.
fn last_attempt(record: &Record, sentences: &mut Vec<String>) {
    let (head, attempt) = (&record.head, record.head.attempt);
    if head.lease().is_some() {
        if let Some(error) = record.error.as_ref().filter(|_| attempt > 1) {
            sentences.push(format!("An earlier attempt failed with {}: {}.", error.code, plain(&error.message)));
        }
        return;
    }
    let by = head.last_worker.as_ref().map(|w| format!(" on worker {}", w.own_name())).unwrap_or_default();
    let why = record.error.as_ref().map(|e| format!(" with {}: {}", e.code, plain(&e.message))).unwrap_or_default();
    match head.ended_by() {
        Some(EndedBy::Worker(Event::Release)) => sentences.push(format!("Its last attempt{by} was given back.")),
        Some(EndedBy::Worker(_)) => sentences.push(format!("Attempt {attempt}{by} failed{why}.")),
        Some(EndedBy::Silence) => sentences.push(format!("Attempt {attempt}{by} was lost: the worker fell silent.")),
        Some(EndedBy::Clock) => sentences.push(format!("Attempt {attempt}{by} took longer than its time-out.")),
        Some(EndedBy::Cancel) | None => {}
    }
}

/// The times at which the job expires.
fn limits(seen: &Seen<'_>, sentences: &mut Vec<String>) {
    let (head, now) = (&seen.record.head, seen.now);
    if let Some(at) = head.start_by.filter(|_| !head.was_started()) {
        sentences.push(match at.reached(now) {
            false => format!("It expires if it has not started by {}.", on_clock(at, now)),
            true => format!("It had not started by {} and expires at the next check.", on_clock(at, now)),
        });
    }
    if let Some(at) = head.deadline {
        sentences.push(match at.reached(now) {
            false => format!("Its deadline is {}.", on_clock(at, now)),
            true => format!("Its deadline passed at {}; it ends at the next check.", on_clock(at, now)),
        });
    }
}

fn attempts(head: &Head) -> String {
    let left = match head.state().is_end() {
        true => String::new(),
        false => format!(", {} left", head.max_attempts.saturating_sub(head.attempt)),
    };
    let lost = if head.lost > 0 { format!("; {} lost the worker", head.lost) } else { String::new() };
    let back = if head.released > 0 { format!("; given back {} times", head.released) } else { String::new() };
    format!("{} of {} attempts used{left}{lost}{back}.", head.attempt, head.max_attempts)
}

/// Which scheduler checks the job next, and when.
fn look(seen: &Seen<'_>, sentences: &mut Vec<String>) {
    let (head, now) = (&seen.record.head, seen.now);
    let does = match &head.phase {
        Phase::Pending { .. } => "sends it to the schedulers again if the message was lost",
        Phase::Scheduled { .. } | Phase::Retrying { .. } => "makes it ready to start when its time has come",
        Phase::AwaitingApproval { .. } => "ends it if it was not approved by then",
        Phase::Queued => "checks its place in the backlog",
        Phase::Dispatched => "offers it again if the offer was lost",
        Phase::Running { .. } => "takes it from the worker if that is silent or out of time",
        Phase::Ended { .. } => "completes the effects of its end",
    };
    let reconciler = match seen.leader {
        Some(leader) => format!("reconciler of scheduler {leader}"),
        None => "reconciler of the next leader (no scheduler leads it at this moment)".to_owned(),
    };
    match seen.home {
        Some(at) if !at.reached(now) => sentences.push(format!(
            "If nothing happens earlier, the {reconciler} checks it at {} and {does}.",
            on_clock(at, now)
        )),
        Some(at) if now.since(at) < OVERDUE => {
            sentences.push(format!("The {reconciler} checks it at any moment and {does}."))
        }
        Some(at) => sentences.push(match seen.leader {
            Some(leader) => format!(
                "Its check is overdue since {}: scheduler {leader} leads the reconciler and has not checked it yet.",
                on_clock(at, now)
            ),
            None => {
                format!("Its check is overdue since {}: no scheduler leads the reconciler.", on_clock(at, now))
            }
        }),
        None if head.state().is_end() => {}
        None => sentences.push("No check of it is planned at this moment.".to_owned()),
    }
}

fn jobs(n: u64) -> String {
    match n {
        0 => "no job goes".to_owned(),
        1 => "1 job goes".to_owned(),
        n => format!("{n} jobs go"),
    }
}

fn messages(n: u64) -> String {
    match n {
        1 => "1 message with offers waits".to_owned(),
        n => format!("{n} messages with offers wait"),
    }
}

/// The text on one line, at most 200 characters, without a final full stop: the sentence adds its own.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut: String = line.chars().take(200).collect();
    let more = if cut.len() < line.len() { "…" } else { "" };
    format!("{}{more}", cut.trim_end_matches('.'))
}

/// A time as a clock time and relative to now.
fn on_clock(at: Time, now: Time) -> String {
    match at.reached(now) {
        true => format!("{} ({} ago)", at.rfc3339(), span(now.since(at))),
        false => format!("{} (in {})", at.rfc3339(), span(at.remaining(now))),
    }
}

/// A duration in its largest sensible unit.
pub(super) fn span(span: Duration) -> String {
    match span.as_secs() {
        0 => "less than a second".to_owned(),
        s @ 1..=119 => format!("{s} s"),
        s @ 120..=7_199 => format!("{} min", s / 60),
        s @ 7_200..=172_799 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}
