//! `muster bench overload`: far more load than the stack can handle, for a while. What must hold: every refusal says
//! when to retry, the memory of every process stays bounded, accepted submits are answered in bounded time, and all
//! accepted jobs end.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    time::Duration,
};

use clap::Args;
use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_domain::JobId;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::{
    delivery::{self, Delivery},
    keep_alive::KeepAlive,
    load, meter,
    open_loop::{Times, schedule},
    requests::{Submits, job_ids},
    rig::{Crew, Rig},
    stretch::{Stretch, until_executed},
};
use crate::{
    outcome::Failure,
    output::{self, Format},
    record, spans,
};

/// Other files that the process needs.
const OTHER_FILES: u64 = 500;
/// How often memory is measured.
const LOOK: Duration = Duration::from_millis(200);

/// Submit more jobs than the stack can handle, and check that it stays healthy
#[derive(Args, Debug)]
pub(super) struct Overload {
    /// How long the overload lasts
    #[arg(long = "for", default_value = "60s", value_parser = spans::parse, value_name = "DURATION")]
    lasts: Duration,

    /// Rate of submits, as a multiple of the peak
    #[arg(long, default_value_t = 3.0)]
    times: f64,

    /// The peak, in jobs a second; measured first if it is not given
    #[arg(long, value_name = "RATE")]
    peak: Option<f64>,

    /// Maximum number of connections, as far as the system allows; a request waits if all are busy
    #[arg(long, default_value_t = 12_000, value_parser = clap::value_parser!(u64).range(64..=60_000))]
    connections: u64,

    /// Maximum memory of a service or worker, in MiB
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    memory: u64,

    /// Maximum time for the answer to an accepted submit
    #[arg(long, default_value = "5s", value_parser = spans::parse, value_name = "DURATION")]
    answer: Duration,

    /// Give up when there is no progress for this long
    #[arg(long, default_value = "60s", value_parser = spans::parse, value_name = "DURATION")]
    patience: Duration,

    /// Start a separate stack even if one runs here
    #[arg(long)]
    pub(super) own: bool,
}

/// The answers to the flood.
struct Heard {
    accepted: Vec<JobId>,
    /// The number of refusals, by status.
    refused: BTreeMap<u16, u64>,
    /// Refusals that did not say when to retry.
    curt: u64,
    /// Answers that leave it unknown whether the job was stored.
    unknown: u64,
    /// Requests that were due when every connection was busy.
    held_back: u64,
    /// Connections that broke while a request was in flight.
    broken: u64,
    /// The times of answers to accepted submits.
    answers: Times,
}

impl Overload {
    pub(super) async fn run(&self, rig: &Rig, format: Format) -> anyhow::Result<()> {
        let connections = allow(self.connections)?;
        let peak = match self.peak {
            Some(peak) => peak,
            None => peak(rig).await?,
        };
        let rate = (peak * self.times).max(1.0);
        let topics = rig.topics(1);
        let workers = rig.hire(&Crew::default(), &topics).await?;
        // The job that showed that the worker is ready has been executed too.
        let first = until_executed(&workers, 1, self.patience, &output::bar(1, "started")).await?;
        let submits = Submits::new(&rig.door, &topics, 1);

        let (over, most) = (Cell::new(false), RefCell::new(BTreeMap::<String, u64>::new()));
        let flood = async {
            let heard = self.flood(rig, connections, submits.nth(0), rate).await;
            over.set(true);
            heard
        };
        let watch = async {
            while !over.get() {
                look(rig, &workers.pids, &mut most.borrow_mut());
                tokio::time::sleep(LOOK).await;
            }
        };
        let (heard, ()) = tokio::join!(flood, watch);
        let heard = heard?;
        let begun = tokio::time::Instant::now();
        let wanted = first + heard.accepted.len() as u64;
        until_executed(&workers, wanted, self.patience, &output::bar(wanted, "finished")).await?;
        // Some of the executed jobs may be among the unknown ones, so wait for each accepted job by its id.
        delivery::until_ended(rig, &heard.accepted, self.patience).await?;
        let ran = delivery::executions(&workers.record)?.split_off(usize::try_from(first)?);
        let delivery = Delivery::check(rig, &heard.accepted, &ran, self.patience).await?;
        look(rig, &workers.pids, &mut most.borrow_mut());
        workers.dismiss().await;

        let faults = self.faults(&heard, &most.borrow(), &delivery);
        let story = story(&heard, (peak, rate), (&most.borrow(), begun.elapsed()), (&delivery, &faults));
        match format {
            Format::Json => output::json(&story),
            Format::Table => output::facts(&facts(&story)),
        }
        match faults.is_empty() {
            true => Ok(()),
            false => {
                Err(Failure::new(format!("the stack did not withstand the overload: {}", faults.join("; "))).into())
            }
        }
    }

    /// Sends each request when it is due, over a free connection or a new one while the limit allows it, and waits
    /// for the last answers.
    async fn flood(&self, rig: &Rig, most: usize, request: &[u8], rate: f64) -> anyhow::Result<Heard> {
        let count = (rate * self.lasts.as_secs_f64()) as u64;
        let mut heard = Heard {
            accepted: Vec::new(),
            refused: BTreeMap::new(),
            curt: 0,
            unknown: 0,
            held_back: 0,
            broken: 0,
            answers: Times::new()?,
        };
        let bar = output::bar(count, "offered");
        let (mut due, mut busy, mut idle) = (schedule(rate, count), FuturesUnordered::new(), Vec::new());
        let mut addrs = rig.addrs.iter().cycle();
        let mut open = true;
        while open || !busy.is_empty() {
            tokio::select! {
                moment = due.recv(), if open => match moment {
                    None => open = false,
                    Some(moment) => {
                        bar.inc(1);
                        let (free, next) = (idle.pop(), addrs.next().copied());
                        match (free, next) {
                            (None, _) if busy.len() >= most => heard.held_back += 1,
                            (free, Some(addr)) => busy.push(exchange(free, addr, request, moment)),
                            (_, None) => anyhow::bail!("there is no gateway"),
                        }
                    }
                },
                Some(done) = busy.next() => match done {
                    Ok((connection, answered)) => {
                        idle.push(connection);
                        heard.note(&answered);
                    }
                    // The gateway may have stored the job before the connection broke.
                    Err(_) => {
                        heard.broken += 1;
                        heard.unknown += 1;
                    }
                }
            }
        }
        bar.finish_and_clear();
        Ok(heard)
    }

    fn faults(&self, heard: &Heard, most: &BTreeMap<String, u64>, delivery: &Delivery) -> Vec<String> {
        let mut faults = Vec::new();
        let refused: u64 = heard.refused.values().sum();
        if refused + heard.held_back == 0 {
            faults.push("no submit was refused, so this was not an overload".to_owned());
        }
        if heard.curt > 0 {
            faults.push(format!("{} refusals do not say when to retry", heard.curt));
        }
        let odd: Vec<String> =
            heard.refused.iter().filter(|(s, _)| !matches!(s, 429 | 503)).map(|(s, n)| format!("{n} × {s}")).collect();
        if !odd.is_empty() {
            faults.push(format!("refused with other codes than 429 or 503: {}", odd.join(", ")));
        }
        let longest = Duration::from_secs_f64(heard.answers.at(100.0) / 1e3);
        if longest > self.answer {
            faults.push(format!("an accepted submit was answered after {}", spans::show(longest)));
        }
        // A gateway closes a connection that was idle for too long, perhaps at the moment of a write.
        if heard.broken > 100.max(heard.accepted.len() as u64 / 100) {
            faults.push(format!("{} connections broke", heard.broken));
        }
        for (service, bytes) in most.iter().filter(|(service, _)| !matches!(service.as_str(), "redis" | "nats")) {
            if *bytes > self.memory << 20 {
                faults.push(format!("a {service} used {} MiB", bytes >> 20));
            }
        }
        if !delivery.is_whole(heard.unknown) {
            faults.push(delivery.to_string());
        }
        faults
    }
}

/// One answer.
struct Answered {
    status: u16,
    job: Option<JobId>,
    curt: bool,
    unknown: bool,
    due_us: u64,
}

async fn exchange(
    free: Option<KeepAlive>,
    addr: SocketAddr,
    request: &[u8],
    due_us: u64,
) -> anyhow::Result<(KeepAlive, Answered)> {
    let mut connection = match free {
        Some(connection) => connection,
        None => KeepAlive::open(addr).await?,
    };
    let answer = connection.exchange(request).await?;
    let job = job_ids(answer.body).next().filter(|_| answer.status == 202);
    let refused = job.is_none();
    let answered = Answered {
        status: answer.status,
        job,
        curt: refused && answer.retry_after.is_none(),
        unknown: refused && load::asked_to_wait(&answer).is_none(),
        due_us,
    };
    Ok((connection, answered))
}

impl Heard {
    fn note(&mut self, answered: &Answered) {
        match answered.job {
            Some(job) => {
                self.accepted.push(job);
                self.answers.note(answered.due_us, record::now_us());
            }
            None => *self.refused.entry(answered.status).or_default() += 1,
        }
        self.curt += u64::from(answered.curt);
        self.unknown += u64::from(answered.unknown);
    }
}

/// Jobs per second that go through end to end, from a run of a few seconds.
async fn peak(rig: &Rig) -> anyhow::Result<f64> {
    let rate = |jobs: u64| async move {
        let figures = Stretch { jobs, ..Stretch::default() }.end_to_end(rig).await?.exact()?;
        anyhow::Ok(figures.get("rate").unwrap_or(1.0))
    };
    let first = rate(3_000).await?;
    rate((first * 3.0) as u64 + 1_000).await
}

/// Allows this many connections, or as many as the system allows one process. Processes of a stack that was started
/// before have limits of their own.
fn allow(connections: u64) -> anyhow::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = (connections + OTHER_FILES).min(hard);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(usize::try_from(wanted.saturating_sub(OTHER_FILES).clamp(64, connections))?)
}

/// Records the largest memory that a process of each service has had.
fn look(rig: &Rig, workers: &[u32], most: &mut BTreeMap<String, u64>) {
    let stack = rig.stack.processes.iter().map(|process| (process.service.as_str(), process.pid));
    for (service, pid) in stack.chain(workers.iter().map(|pid| ("worker", *pid))) {
        let bytes = meter::rss_bytes(pid).unwrap_or_default();
        let known = most.entry(service.to_owned()).or_default();
        *known = (*known).max(bytes);
    }
}

fn story(
    heard: &Heard,
    (peak, rate): (f64, f64),
    (most, cleared): (&BTreeMap<String, u64>, Duration),
    (delivery, faults): (&Delivery, &[String]),
) -> Value {
    let ms = |percentile| heard.answers.at(percentile);
    json!({
        "peak": peak.round(),
        "offered": rate.round(),
        "accepted": heard.accepted.len(),
        "refused": heard.refused.iter().map(|(s, n)| (s.to_string(), *n)).collect::<BTreeMap<_, _>>(),
        "refused_without_retry_after": heard.curt,
        "outcome_unknown": heard.unknown,
        "held_back": heard.held_back,
        "broken_connections": heard.broken,
        "answer_ms": { "p50": ms(50.0), "p99": ms(99.0), "max": ms(100.0) },
        "memory_mib": most.iter().map(|(service, bytes)| (service.clone(), bytes >> 20)).collect::<BTreeMap<_, _>>(),
        "all_ended_after_s": cleared.as_secs_f64(),
        "delivery": delivery,
        "faults": faults,
    })
}

fn facts(story: &Value) -> Vec<(&str, String)> {
    let Value::Object(fields) = story else { return Vec::new() };
    fields.iter().map(|(name, value)| (name.as_str(), output::cell(value))).collect()
}
