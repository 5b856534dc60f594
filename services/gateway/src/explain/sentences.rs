//! The sentences of an explanation. Each sentence is complete by itself, gives times both as a clock time and
//! relative to now, and says what the reader can do when a wait is too long.

use std::time::Duration;

use muster_domain::{
    Ending, Event, Head, Phase, Time,
    job::{EndedBy, OnLostLease},
};
use muster_store::Record;

use super::{Seen, refusal};

/// A wait for the bus that takes longer than this is too long.
const LONG: Duration = Duration::from_secs(30);
/// A scheduler normally takes a due look within this time.
const OVERDUE: Duration = Duration::from_secs(10);

/// All sentences about a job. The first is the summary.
pub(super) fn about(seen: &Seen<'_>) -> Vec<String> {
    let mut told = Vec::new();
    standing(seen, &mut told);
    if !seen.record.head.state().is_end() {
        workers(seen, &mut told);
        last_attempt(seen.record, &mut told);
        limits(seen, &mut told);
    }
    told.push(attempts(&seen.record.head));
    look(seen, &mut told);
    if let Some(new) = seen.record.retried_as {
        told.push(format!("It was retried as job {new}."));
    }
    told
}

fn standing(seen: &Seen<'_>, told: &mut Vec<String>) {
    let (record, head, now) = (seen.record, &seen.record.head, seen.now);
    let (topic, tenant) = (&record.spec.topic, &record.spec.tenant);
    let waited = now.since(head.since);
    let hint = |told: &mut Vec<String>, text: &str| {
        if waited >= LONG {
            told.push(text.to_owned());
        }
    };
    match &head.phase {
        // The job is in the backlog, although its record only says that it was accepted.
        Phase::Pending { .. } if seen.place.is_some() => queued(seen, told),
        Phase::Pending { .. } if seen.standing_offers().is_some() => {
            told.push(format!(
                "It has probably been offered and waits for a worker to start it, for {} now: on a topic as busy as \
                 {topic} that leaves no word in its record, and {} there.",
                span(waited),
                messages(seen.standing_offers().unwrap_or_default())
            ));
            paused(seen, told);
            hint(told, "That is longer than it should be: its workers are gone or busy, or its offer was lost.");
        }
        Phase::Pending { run_at } => {
            match run_at.some().filter(|at| !at.reached(now)) {
                Some(at) => told.push(format!(
                    "It was accepted and may not start before {}; a scheduler has still to note that.",
                    on_clock(at, now)
                )),
                None => told.push(format!("It waits for a scheduler to decide about it, for {} now.", span(waited))),
            }
            match seen.deciding {
                Some(scheduler) => told.push(format!(
                    "Somebody outside has a say in jobs of topic {topic}: scheduler {scheduler} is asking, and asks \
                     again until there is an answer."
                )),
                None => hint(
                    told,
                    "That is longer than it should be: no scheduler handles submits. `/readyz` on the admin port of \
                     each says what it lacks.",
                ),
            }
        }
        Phase::Scheduled { run_at } => match run_at.reached(now) {
            false => told.push(format!("It waits for its time and may start at {}.", on_clock(*run_at, now))),
            true => told.push(format!(
                "Its time came at {}; the next look at it puts it back on its way.",
                on_clock(*run_at, now)
            )),
        },
        Phase::Retrying { run_at } => {
            let next = head.attempt.saturating_add(1);
            match run_at.reached(now) {
                false => told.push(format!(
                    "Attempt {} did not succeed; attempt {next} may start at {}.",
                    head.attempt,
                    on_clock(*run_at, now)
                )),
                true => told.push(format!(
                    "Attempt {} did not succeed; the time for attempt {next} came at {}, and the next look at it puts \
                     it back on its way.",
                    head.attempt,
                    on_clock(*run_at, now)
                )),
            }
        }
        Phase::AwaitingApproval { expires } => {
            told.push(match expires.some() {
                Some(at) => format!("It waits for a person's approval until {}.", on_clock(at, now)),
                None => "It waits for a person's approval.".to_owned(),
            });
            if let Some((_, reason)) = refusal(record) {
                told.push(format!("Approval was asked for because: {reason}."));
            }
        }
        Phase::Queued => queued(seen, told),
        Phase::Dispatched => {
            told.push(format!(
                "It is offered to the workers of topic {topic} of tenant {tenant}; none has started it since {}.",
                on_clock(head.since, now)
            ));
            paused(seen, told);
            if seen.workers.is_none() {
                hint(
                    told,
                    "Nobody took it for that long: no worker of this topic and tenant runs, or all of them are busy.",
                );
            }
        }
        Phase::Running { lease, attempt_end } => {
            let (worker, since) = (lease.worker.own_name(), head.started_at.unwrap_or(head.since));
            told.push(format!("Worker {worker} runs attempt {} since {}.", head.attempt, on_clock(since, now)));
            told.push(match lease.until.reached(now) {
                false => format!(
                    "The worker holds it until {}, and extends that while it lives.",
                    on_clock(lease.until, now)
                ),
                true => format!(
                    "The worker's lease ran out at {}: it has been silent, and loses the job as soon as a scheduler \
                     is sure that no word of it is still on its way.",
                    on_clock(lease.until, now)
                ),
            });
            if let Some(end) = attempt_end {
                told.push(format!("The attempt times out at {}.", on_clock(*end, now)));
            }
            if let Some(percent) = record.progress.as_ref().and_then(|progress| progress.percent) {
                told.push(format!("The worker says that it is at {percent} %."));
            }
        }
        Phase::Ended { end, lease_end } => {
            told.push(format!("{} at {}.", ended(record, *end), on_clock(head.since, now)));
            if let Some(at) = lease_end.filter(|at| !at.reached(now)) {
                told.push(format!(
                    "The worker that had it was told to stop; it may work on until {}.",
                    on_clock(at, now)
                ));
            }
        }
    }
}

/// What a pause of the topic does to an offer on the bus.
fn paused(seen: &Seen<'_>, told: &mut Vec<String>) {
    let topic = &seen.record.spec.topic;
    if seen.told.is_some_and(|told| told.paused.is_some()) {
        told.push(format!(
            "Topic {topic} is paused: a worker that asks for it is refused, and it waits its turn again."
        ));
    }
}

fn queued(seen: &Seen<'_>, told: &mut Vec<String>) {
    let (record, now) = (seen.record, seen.now);
    let (topic, priority) = (&record.spec.topic, record.spec.priority);
    let limited = seen.slots.is_some_and(|slots| slots.held > 0) || seen.places.is_some_and(|p| p.are_taken());
    told.push(match &seen.place {
        // A scheduler also claims jobs that wait for a limit, and then finds that the limit holds them.
        Some(place) if !limited && place.claimed_until.is_some_and(|until| !until.reached(now)) => {
            format!(
                "It is in the backlog of topic {topic}, {} before it, and a scheduler has claimed it and is about to \
                 offer it.",
                jobs(place.ahead)
            )
        }
        Some(place) => format!(
            "It waits its turn in the backlog of topic {topic} with priority {priority}: {} before it, {} in all.",
            jobs(place.ahead),
            place.waiting
        ),
        None => format!(
            "It belongs in the backlog of topic {topic} and is not there: it is being offered at this moment, or its \
             entry was lost and the next look puts it back."
        ),
    });
    let rules = seen.told;
    if let Some(paused) = rules.and_then(|rules| rules.paused.as_ref()) {
        let why = if paused.reason.is_empty() { String::new() } else { format!(" ({})", plain(&paused.reason)) };
        told.push(format!(
            "Topic {topic} is paused since {} by key {}{why}: nothing of it starts until somebody resumes it.",
            on_clock(paused.since(), now),
            paused.by
        ));
    }
    if let Some(rate) = rules.and_then(|rules| rules.settings.rate) {
        told.push(format!(
            "Topic {topic} releases {} jobs a second, {} at once at most, over all replicas.",
            rate.per_s, rate.burst
        ));
    }
    let full = seen.places.filter(|places| places.are_taken());
    if let Some(places) = full {
        let by: Vec<String> = places.held_by.iter().map(ToString::to_string).collect();
        let more = places.held.saturating_sub(by.len() as u64);
        told.push(format!(
            "It is held because no more than {} of topic {topic} may run at once, over all replicas: the places are \
             taken by {}{}.",
            if places.max == 1 { "one job".to_owned() } else { format!("{} jobs", places.max) },
            by.join(", "),
            if more > 0 { format!(" and {more} more") } else { String::new() },
        ));
    }
    if let Some(slots) = seen.slots.filter(|slots| slots.held > 0) {
        let by: Vec<String> = slots.held_by.iter().map(ToString::to_string).collect();
        told.push(format!(
            "It is held because {} with its concurrency key {} may run: {} has the slot, and {} in line.",
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
    told.push(match refusal(record) {
        Some((_, reason)) => format!("It is held because: {reason}."),
        None if rules.is_some_and(|rules| rules.paused.is_some() || rules.settings.rate.is_some()) => return,
        None => {
            "It is held because workers are offered only as much as they soon start; the rest waits here, the most \
                 urgent first, then the oldest."
                .to_owned()
        }
    });
}

/// Whether there are workers that could run the job.
fn workers(seen: &Seen<'_>, told: &mut Vec<String>) {
    let Some(serving) = seen.workers.filter(|_| seen.record.head.lease().is_none()) else { return };
    let (topic, tenant) = (&seen.record.spec.topic, &seen.record.spec.tenant);
    let ill = match serving.unhealthy {
        0 => String::new(),
        n => format!(" ({n} live and take no work)"),
    };
    told.push(match serving.live {
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
fn last_attempt(record: &Record, told: &mut Vec<String>) {
    let (head, attempt) = (&record.head, record.head.attempt);
    if head.lease().is_some() {
        if let Some(error) = record.error.as_ref().filter(|_| attempt > 1) {
            told.push(format!("An attempt before failed with {}: {}.", error.code, plain(&error.message)));
        }
        return;
    }
    let by = head.last_worker.as_ref().map(|w| format!(" on worker {}", w.own_name())).unwrap_or_default();
    let why = record.error.as_ref().map(|e| format!(" with {}: {}", e.code, plain(&e.message))).unwrap_or_default();
    match head.ended_by() {
        Some(EndedBy::Worker(Event::Release)) => told.push(format!("Its last attempt{by} was given back.")),
        Some(EndedBy::Worker(_)) => told.push(format!("Attempt {attempt}{by} failed{why}.")),
        Some(EndedBy::Silence) => told.push(format!("Attempt {attempt}{by} was lost: the worker fell silent.")),
        Some(EndedBy::Clock) => told.push(format!("Attempt {attempt}{by} took longer than its time-out.")),
        Some(EndedBy::Cancel) | None => {}
    }
}

/// The times at which the job expires.
fn limits(seen: &Seen<'_>, told: &mut Vec<String>) {
    let (head, now) = (&seen.record.head, seen.now);
    if let Some(at) = head.start_by.filter(|_| !head.was_started()) {
        told.push(match at.reached(now) {
            false => format!("It expires if it has not started by {}.", on_clock(at, now)),
            true => format!("It had not started by {} and expires at the next look.", on_clock(at, now)),
        });
    }
    if let Some(at) = head.deadline {
        told.push(match at.reached(now) {
            false => format!("Its deadline is {}.", on_clock(at, now)),
            true => format!("Its deadline passed at {}; it ends at the next look.", on_clock(at, now)),
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

/// Which scheduler looks at the job next, and when.
fn look(seen: &Seen<'_>, told: &mut Vec<String>) {
    let (head, now) = (&seen.record.head, seen.now);
    let does = match &head.phase {
        Phase::Pending { .. } => "tells the schedulers of it again if the message was lost",
        Phase::Scheduled { .. } | Phase::Retrying { .. } => "puts it on its way when its time has come",
        Phase::AwaitingApproval { .. } => "ends it if nobody has said yes by then",
        Phase::Queued => "checks its place in the backlog",
        Phase::Dispatched => "offers it again if the offer was lost",
        Phase::Running { .. } => "takes it back if the worker has fallen silent or is out of time",
        Phase::Ended { .. } => "completes what belongs to its end",
    };
    let whose = match seen.leader {
        Some(leader) => format!("reconciler of scheduler {leader}"),
        None => "reconciler of whichever scheduler leads next (none does at this moment)".to_owned(),
    };
    match seen.home {
        Some(at) if !at.reached(now) => told
            .push(format!("If nothing happens before, the {whose} looks at it at {} and {does}.", on_clock(at, now))),
        Some(at) if now.since(at) < OVERDUE => told.push(format!("The {whose} looks at it at any moment and {does}.")),
        Some(at) => told.push(match seen.leader {
            Some(leader) => format!(
                "The look at it is overdue since {}: scheduler {leader} leads the reconciler and has not come to it.",
                on_clock(at, now)
            ),
            None => {
                format!("The look at it is overdue since {}: no scheduler leads the reconciler.", on_clock(at, now))
            }
        }),
        None if head.state().is_end() => {}
        None => told.push("No look at it is planned at this moment.".to_owned()),
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
        1 => "1 message with offers stands".to_owned(),
        n => format!("{n} messages with offers stand"),
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
