//! What both drivers share: the command line, a file that grows by a byte per finished job, and how
//! figures are told. Modes: `worker` runs jobs, `submit N` submits N one by one from many clients and
//! waits until all are finished, `fill N` submits N in bulk, `latency RATE SECONDS` submits at a rate,
//! `version` tells which version of the queue was built in.
//!
//! Settings come by the environment: `REDIS_URL`, `TICKS` (the file), `PAYLOAD` (JSON), `CLIENTS`,
//! `CONCURRENCY`.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Longest that nothing may move.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the driver is asked to do.
pub enum Mode {
    Worker,
    Submit { jobs: u64 },
    Fill { jobs: u64 },
    Latency { rate: u64, seconds: u64 },
}

/// What the command line asks for; `queue` is the crate whose version is told.
pub fn mode(queue: &str) -> Result<Mode> {
    let mut args = std::env::args().skip(1);
    let name = args.next().context("usage: worker | submit N | fill N | latency RATE SECONDS")?;
    let mut number = || args.next().context("a number is missing")?.parse::<u64>().context("not a number");
    Ok(match name.as_str() {
        "version" => {
            println!("{}", version(queue).unwrap_or("unknown"));
            std::process::exit(0);
        }
        "worker" => Mode::Worker,
        "submit" => Mode::Submit { jobs: number()? },
        "fill" => Mode::Fill { jobs: number()? },
        "latency" => Mode::Latency { rate: number()?, seconds: number()? },
        other => bail!("{other:?} is no mode"),
    })
}

/// As the lock file has it.
fn version(queue: &str) -> Option<&'static str> {
    let (_, rest) = include_str!("../Cargo.lock").split_once(&format!("name = \"{queue}\"\nversion = \""))?;
    rest.split('"').next()
}

pub fn setting(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set"))
}

pub fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The file that tells how many jobs are finished.
#[derive(Clone)]
pub struct Ticks(Arc<File>);

impl Ticks {
    pub fn open() -> Result<Ticks> {
        let path = setting("TICKS")?;
        Ok(Ticks(Arc::new(OpenOptions::new().create(true).append(true).open(path)?)))
    }

    /// One more job is finished.
    pub fn tick(&self) {
        let _ = (&*self.0).write_all(b".");
    }

    fn count(&self) -> u64 {
        self.0.metadata().map_or(0, |file| file.len())
    }
}

/// Submits `jobs` by `CLIENTS` tasks at once, waits until all are finished, and prints how long it took.
pub async fn submit_all<Q, F, Fut>(jobs: u64, queue: Q, submit: F) -> Result<()>
where
    Q: Clone + Send + 'static,
    F: Fn(Q) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<()>> + Send,
{
    let ticks = Ticks::open()?;
    let (wanted, begun, taken) = (ticks.count() + jobs, Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..number("CLIENTS", 100) {
        let (queue, taken, submit) = (queue.clone(), Arc::clone(&taken), submit.clone());
        clients.spawn(async move {
            while taken.fetch_add(1, Ordering::Relaxed) < jobs {
                submit(queue.clone()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    until_finished(&ticks, wanted).await?;
    println!("{{\"jobs\":{jobs},\"seconds\":{:.4}}}", begun.elapsed().as_secs_f64());
    Ok(())
}

/// The moments at which an open loop submits, whatever became of the submits before. A thread of its
/// own, because the runtime's timers are too coarse for it.
pub fn schedule(rate: u64, seconds: u64) -> tokio::sync::mpsc::UnboundedReceiver<Instant> {
    let (due, inbox) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let begun = Instant::now();
        for n in 0..rate * seconds {
            let moment = begun + Duration::from_nanos(n * 1_000_000_000 / rate);
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            if due.send(moment).is_err() {
                return;
            }
        }
    });
    inbox
}

/// Prints latencies as percentiles, in milliseconds.
pub fn tell(latencies: impl Iterator<Item = Duration>) -> Result<()> {
    let mut all = hdrhistogram::Histogram::<u64>::new(3)?;
    for latency in latencies {
        all.record(u64::try_from(latency.as_micros())?.max(1))?;
    }
    let ms = |percentile| all.value_at_percentile(percentile) as f64 / 1e3;
    println!(
        "{{\"jobs\":{},\"p50\":{:.3},\"p95\":{:.3},\"p99\":{:.3},\"p999\":{:.3}}}",
        all.len(),
        ms(50.0),
        ms(95.0),
        ms(99.0),
        ms(99.9)
    );
    Ok(())
}

/// Waits until so many jobs are finished.
async fn until_finished(ticks: &Ticks, wanted: u64) -> Result<()> {
    let (mut before, mut moved) = (0, Instant::now());
    loop {
        let now = ticks.count();
        if now >= wanted {
            return Ok(());
        }
        if now > before {
            (before, moved) = (now, Instant::now());
        }
        if moved.elapsed() > PATIENCE {
            bail!("{now} of {wanted} jobs are finished, and no more within {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
