//! The open-loop load: requests are sent when they are due, whatever happened to earlier ones. All latencies count
//! from the time at which a request was due, not from when a connection was free to send it. So a stack that stalls
//! is charged for every request that would have come meanwhile.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use anyhow::Context;
use futures_util::{StreamExt, stream::FuturesUnordered};
use hdrhistogram::Histogram;
use muster_domain::JobId;
use tokio::sync::mpsc;

use super::{
    delivery::{self, Delivery},
    figures::Figures,
    keep_alive::KeepAlive,
    load,
    meter::Meter,
    requests,
    rig::{Crew, Rig},
    stretch::{Outcome, until_executed},
};
use crate::{output, record};

/// The most requests a second that wait for their job's end; the others wait only for its acceptance. Waiting is work
/// too, and a load of only waiting requests would measure that.
const WAITERS: f64 = 500.0;
/// The number of connections: enough that one is nearly always free.
const CONNECTIONS: usize = 512;
/// The longest time that a request waits for its job.
const PATIENCE: Duration = Duration::from_secs(30);
/// The percentiles that are reported.
pub(super) const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("p999", 99.9)];

/// The load to offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLoop {
    /// Requests per second, one job each.
    pub(super) rate: f64,
    pub(super) lasts: Duration,
}

/// An answered request.
struct Answered {
    connection: KeepAlive,
    due_us: u64,
    waited: bool,
    job: Option<JobId>,
}

/// Times in microseconds, up to ten minutes.
pub(super) struct Times(Histogram<u64>);

impl Times {
    pub(super) fn new() -> anyhow::Result<Times> {
        Ok(Times(Histogram::new_with_bounds(1, 600_000_000, 3)?))
    }

    pub(super) fn note(&mut self, from_us: u64, to_us: u64) {
        self.0.saturating_record(to_us.saturating_sub(from_us).max(1));
    }

    /// The value at this percentile in milliseconds; 100 is the longest.
    pub(super) fn at(&self, percentile: f64) -> f64 {
        self.0.value_at_percentile(percentile) as f64 / 1e3
    }

    /// Adds `<name>.p50` and so on, in milliseconds.
    fn tell(&self, name: &str, figures: &mut Figures) {
        for (percentile, at) in PERCENTILES {
            figures.put(&format!("{name}.{percentile}"), self.at(at));
        }
    }
}

impl OpenLoop {
    /// Offers the load to a new topic with its own workers. Figures: `accepted`, `start` and `end`, each with its
    /// percentiles in milliseconds from the time when the submit was due, and the costs.
    pub(super) async fn run(&self, rig: &Rig) -> anyhow::Result<Outcome> {
        let topics = rig.topics(1);
        let workers = rig.hire(&Crew::default(), &topics).await?;
        let first = until_executed(&workers, 1, PATIENCE, &indicatif::ProgressBar::hidden()).await?;
        let job = format!(r#"{{"topic":"{}","payload":{}}}"#, topics[0], requests::payload());
        let plain = requests::post(&rig.door, "/jobs", &job);
        let waiting = requests::post(&rig.door, &format!("/jobs?wait_ms={}", PATIENCE.as_millis()), &job);
        let connections = load::connect(&rig.addrs, CONNECTIONS).await?;
        let bar = output::bar(self.count(), "answered");

        let meter = Meter::start(rig, &workers.pids).await?;
        let (mut accepted, mut start, mut end) = (Times::new()?, Times::new()?, Times::new()?);
        let mut due_of: HashMap<JobId, u64> = HashMap::new();
        let mut jobs = Vec::new();
        self.offer(connections, (&plain, &waiting), |answered, now| {
            let times = if answered.waited { &mut end } else { &mut accepted };
            times.note(answered.due_us, now);
            if let Some(job) = answered.job {
                due_of.insert(job, answered.due_us);
                jobs.push(job);
            }
            bar.inc(1);
        })
        .await?;
        until_executed(&workers, first + jobs.len() as u64, PATIENCE, &bar).await?;
        let bytes = std::fs::read(&workers.record)?;
        let ran = delivery::executions(&workers.record)?.split_off(usize::try_from(first)?);
        delivery::until_settled(rig, &ran, PATIENCE).await?;
        let mut figures = meter.per_job(jobs.len() as u64).await?;
        bar.finish_and_clear();
        for (id, at) in record::entries(&bytes) {
            if let Some(due) = id.parse().ok().and_then(|id: JobId| due_of.get(&id)) {
                start.note(*due, at);
            }
        }
        if self.wait_every() > 1 {
            accepted.tell("accepted", &mut figures);
        }
        start.tell("start", &mut figures);
        end.tell("end", &mut figures);
        figures.put("rate", self.rate);
        figures.put("jobs", jobs.len() as f64);
        let delivery = Delivery::check(rig, &jobs, &ran, PATIENCE).await?;
        workers.dismiss().await;
        Ok(Outcome { figures, delivery })
    }

    fn count(&self) -> u64 {
        (self.rate * self.lasts.as_secs_f64()).ceil() as u64
    }

    /// One request of this many waits for the end of its job.
    fn wait_every(&self) -> u64 {
        ((self.rate / WAITERS).ceil() as u64).max(1)
    }

    /// Sends every request when it is due, or as soon after that as a connection is free.
    async fn offer(
        &self,
        mut idle: Vec<KeepAlive>,
        (plain, waiting): (&[u8], &[u8]),
        mut heard: impl FnMut(&Answered, u64),
    ) -> anyhow::Result<()> {
        let (count, every) = (self.count(), self.wait_every());
        let mut due = schedule(self.rate, count);
        let (mut busy, mut queue, mut n) = (FuturesUnordered::new(), VecDeque::new(), 0);
        let mut answered = 0;
        while answered < count {
            tokio::select! {
                Some(moment) = due.recv() => queue.push_back(moment),
                Some(done) = busy.next() => {
                    let done: Answered = match done {
                        Ok(done) => done,
                        Err(error) => return Err(error),
                    };
                    heard(&done, record::now_us());
                    idle.push(done.connection);
                    answered += 1;
                }
            }
            while let Some(connection) = if queue.is_empty() { None } else { idle.pop() } {
                let Some(due_us) = queue.pop_front() else { break };
                let waited = n % every == 0;
                n += 1;
                busy.push(send(connection, if waited { waiting } else { plain }, due_us, waited));
            }
        }
        Ok(())
    }
}

async fn send(mut connection: KeepAlive, request: &[u8], due_us: u64, waited: bool) -> anyhow::Result<Answered> {
    let answer = connection.exchange(request).await.context("a connection broke")?;
    let done = if waited { answer.status == 200 } else { answer.status == 202 };
    let job = requests::job_ids(answer.body).next().filter(|_| done);
    if job.is_none() {
        let said = String::from_utf8_lossy(answer.body);
        anyhow::bail!("a submit was answered {} below the peak: {said}", answer.status);
    }
    Ok(Answered { connection, due_us, waited, job })
}

/// The due times by the shared clock, each sent when it comes. A separate thread waits for them: the runtime's timers
/// have a resolution of milliseconds.
pub(super) fn schedule(rate: f64, count: u64) -> mpsc::UnboundedReceiver<u64> {
    let (due, inbox) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let begun = record::now_us();
        for n in 0..count {
            let moment = begun + (n as f64 / rate * 1e6) as u64;
            let left = moment.saturating_sub(record::now_us());
            if left > 0 {
                std::thread::sleep(Duration::from_micros(left));
            }
            if due.send(moment).is_err() {
                return;
            }
        }
    });
    inbox
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moments_come_at_their_rate_and_never_early() {
        let mut due = schedule(1000.0, 50);
        let mut before = None;
        let mut count = 0;
        while let Some(moment) = due.recv().await {
            assert!(record::now_us() >= moment);
            assert!(before.is_none_or(|before| moment - before == 1000));
            before = Some(moment);
            count += 1;
        }
        assert_eq!(count, 50);
    }

    #[test]
    fn times_are_told_in_milliseconds_however_long() {
        let mut times = Times::new().unwrap();
        (1..=1000).for_each(|n| times.note(5_000_000, 5_000_000 + n * 1_000));
        assert!((499.0..=501.0).contains(&times.at(50.0)) && (989.0..=991.0).contains(&times.at(99.0)));
        assert!((999.0..=1001.0).contains(&times.at(100.0)));
        times.note(9, 3);
        assert_eq!(times.at(0.0), 0.001, "a clock that stood still costs nothing");
    }

    #[test]
    fn only_some_of_a_heavy_load_wait() {
        let every = |rate| OpenLoop { rate, lasts: Duration::from_secs(1) }.wait_every();
        assert_eq!((every(200.0), every(2000.0), every(7100.0)), (1, 4, 15));
    }
}
