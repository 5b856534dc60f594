//! A scheduler that is sick and not dead, beside the schedulers of a stack, and how long acts take meanwhile.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use muster_testkit::{Proxy, bin, free_port, until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{Probe, Stack, spawn_forever};

const READY: Duration = Duration::from_secs(60);
/// Between two acts.
const EVERY: Duration = Duration::from_millis(66);
/// How long the load runs before the fault, with it, and after it.
const BEFORE: Duration = Duration::from_secs(4);
const DURING: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(7);
/// Once the fault has lasted, or is over, for so long, acts take hardly longer than normal.
const SETTLED: Duration = Duration::from_secs(5);
const HARDLY: Duration = Duration::from_millis(500);

/// The scheduler that falls sick.
pub struct Sick {
    child: Child,
    /// Its way to Redis.
    pub redis: Proxy,
    /// Its way to NATS.
    pub nats: Proxy,
    folder: tempfile::TempDir,
}

impl Sick {
    /// Starts it, and waits until it is ready.
    pub async fn beside(stack: &Stack) -> Sick {
        let state = stack.state();
        let port = |url: &str| url.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok());
        let redis = Proxy::start(port(&state.redis_url).expect("a port")).await;
        let nats = Proxy::start(port(&state.nats_url).expect("a port")).await;
        let admin = tokio::task::spawn_blocking(free_port).await.expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(bin("muster-scheduler")).current_dir(folder.path());
        command.env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.url_port()));
        command.env("NATS_URL", format!("nats://127.0.0.1:{}", nats.url_port()));
        command.env("MUSTER_INSTANCE_ID", "sick").env("MUSTER_ADMIN_ADDR", format!("127.0.0.1:{admin}"));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let sick = Sick { child: spawn_forever(command), redis, nats, folder };
        let admin = Probe::new(format!("http://127.0.0.1:{admin}"), String::new());
        until(READY, "the second scheduler to be ready", async || {
            let answer = admin.send(reqwest::Method::GET, "/readyz", &[], None).await.ok()?;
            answer.status.is_success().then_some(())
        })
        .await;
        sick
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("it lives");
    }
}

impl Drop for Sick {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- sick scheduler\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// One act: when it began, counted from the first one, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Since the load began.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
}

/// Begins an act at a steady rate, lets `fault` happen in the middle and `mend` afterwards. `act` is handed its number and
/// gives the time that it took. The acts in the order of their ends, each with its number.
pub async fn timed<F: Future<Output = Duration>>(
    act: impl Fn(usize) -> F,
    fault: impl AsyncFn(),
    mend: impl AsyncFn(),
) -> Vec<(usize, Took)> {
    let (began, mut clock) = (Instant::now(), tokio::time::interval(EVERY));
    let (mut acts, mut all, mut n) = (FuturesUnordered::new(), Vec::new(), 0);
    let (mut sick_now, mut mended) = (false, false);
    while began.elapsed() < BEFORE + DURING + AFTER || !acts.is_empty() {
        tokio::select! {
            Some(ended) = acts.next() => all.push(ended),
            _ = clock.tick(), if began.elapsed() < BEFORE + DURING + AFTER => {
                if !sick_now && began.elapsed() >= BEFORE {
                    sick_now = true;
                    fault().await;
                }
                if !mended && began.elapsed() >= BEFORE + DURING {
                    mended = true;
                    mend().await;
                }
                let (nth, at, act) = (n, began.elapsed(), act(n));
                acts.push(async move { (nth, Took { at, took: act.await }) });
                n += 1;
            }
        }
    }
    all
}

/// How long acts took.
pub struct Times {
    /// p99 before the fault.
    pub normal: Duration,
    /// The slowest act from the fault on.
    pub slowest: Duration,
    /// p99 once the fault has lasted for a while.
    pub sick: Duration,
    /// p99 once it has been over for a while.
    pub well: Duration,
}

impl Times {
    /// Of these acts, which must be enough to judge by. `name` is printed with them.
    pub fn of(name: &str, all: impl Iterator<Item = Took>) -> Times {
        let all: Vec<Took> = all.collect();
        let span = |from: Duration, to: Duration| {
            let mut took: Vec<Duration> = all.iter().filter(|j| j.at >= from && j.at < to).map(|j| j.took).collect();
            took.sort_unstable();
            assert!(took.len() >= 4, "{name}: too few acts to judge by");
            (took[(took.len() * 99).div_ceil(100) - 1], took[took.len() - 1])
        };
        let times = Times {
            // What is under way when the fault begins is not normal.
            normal: span(Duration::ZERO, BEFORE - Duration::from_millis(500)).0,
            slowest: span(BEFORE, BEFORE + DURING + AFTER).1,
            sick: span(BEFORE + SETTLED, BEFORE + DURING).0,
            well: span(BEFORE + DURING + SETTLED, BEFORE + DURING + AFTER).0,
        };
        let Times { normal, slowest, sick, well } = times;
        eprintln!("{name}: normal p99 {normal:?}, slowest {slowest:?}, while sick {sick:?}, afterwards {well:?}");
        times
    }

    /// No act takes longer than normal by more than this.
    pub fn slowest_within(&self, late: Duration) {
        assert!(self.slowest <= self.normal + late, "the slowest took {:?}, normal is {:?}", self.slowest, self.normal);
    }

    /// Once the fault has lasted for a while, acts take hardly longer than normal.
    pub fn normal_while_sick(&self) {
        assert!(self.sick <= self.normal + HARDLY, "while sick, p99 is {:?}, normal is {:?}", self.sick, self.normal);
    }

    /// Once the fault has been over for a while, acts take hardly longer than normal.
    pub fn normal_afterwards(&self) {
        assert!(self.well <= self.normal + HARDLY, "afterwards p99 is {:?}, normal is {:?}", self.well, self.normal);
    }
}
