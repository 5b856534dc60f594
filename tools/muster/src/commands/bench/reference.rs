//! The references for Muster: plain SETs of `redis-benchmark`, and other queues of the Rust ecosystem. All run on a
//! separate Redis with the same log on disk, all with the same payload. The drivers of the queues are built from
//! `bench/`; without them their rows are left out.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{
    figures::Figures,
    meter::cpu_us,
    requests::{PAYLOAD, payload},
};
use crate::{
    commands::dev::{bound_to_parent, probe, redis},
    outcome::Failure,
    programs,
};

/// The longest time that a driver may take for one figure.
const PATIENCE: Duration = Duration::from_secs(180);

/// A queue that a user might choose instead, with the best settings of a sweep on two cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Its name in the figures.
    pub(super) name: &'static str,
    program: &'static str,
    clients: u32,
    concurrency: u32,
    bare: bool,
    /// The most jobs that may wait when its worker starts.
    backlog: u64,
}

/// The official port of BullMQ.
pub(super) const BULLMQ: Peer = Peer {
    name: "bullmq-official",
    program: "peer-bullmq",
    clients: 100,
    concurrency: 50,
    bare: false,
    backlog: u64::MAX,
};
/// apalis with its default settings. Its worker takes over all waiting jobs in one script, which fails above some
/// 8,000.
pub(super) const APALIS: Peer =
    Peer { name: "apalis-redis", program: "peer-apalis", clients: 100, concurrency: 300, bare: false, backlog: 5_000 };
/// apalis without locks and events: a crash may lose or duplicate a job.
pub(super) const APALIS_BARE: Peer = Peer { name: "apalis-redis-bare", bare: true, ..APALIS };

/// A Redis for the references.
pub(super) struct Reference {
    server: Child,
    pid: u32,
    addr: String,
    dir: TempDir,
    peers: Option<PathBuf>,
}

impl Reference {
    /// Starts the server; `peers` is the folder of the drivers.
    pub(super) async fn start(peers: Option<&Path>) -> anyhow::Result<Reference> {
        let dir = tempfile::Builder::new().prefix("muster-bench-").tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = "appendonly yes\nappendfsync everysec\nsave \"\"\n";
        let config = format!("bind 127.0.0.1\nport {port}\n{log}{}", redis::LATE_REWRITE);
        std::fs::write(dir.path().join("redis.conf"), config)?;
        let program = programs::server("redis-server", "redis-server")?;
        let mut command = bound_to_parent(programs::find("setpriv").as_deref(), &program);
        command.arg("redis.conf").current_dir(dir.path()).kill_on_drop(true);
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot start redis-server")?;
        let addr = format!("127.0.0.1:{port}");
        let ping = || async { probe::redis_ask(&addr, "PING").await.map(drop) };
        probe::until_ready("the references' Redis", ping).await?;
        let pid = server.id().context("the references' Redis is gone")?;
        Ok(Reference { server, pid, addr, dir, peers: peers.map(Path::to_owned) })
    }

    /// Stops the server.
    pub(super) async fn stop(mut self) {
        let _ = self.server.kill().await;
    }

    /// SETs per second over 50 connections.
    pub(super) async fn set(&self) -> anyhow::Result<Figures> {
        let program = programs::server("redis-benchmark", "redis-tools")?;
        let (_, port) = self.addr.split_once(':').context("no port")?;
        let size = PAYLOAD.to_string();
        let before = cpu_us(self.pid).unwrap_or_default();
        let args = ["-t", "set", "-c", "50", "-n", "200000", "--csv", "-p", port, "-d", &size];
        let output = Command::new(program).args(args).stdin(Stdio::null()).output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rate = set_rate(&text).with_context(|| format!("redis-benchmark said {text:?}"))?;
        let mut figures = Figures::default();
        figures.put("rate", rate);
        figures.put("cpu.redis", (cpu_us(self.pid).unwrap_or_default() - before) as f64 / 200_000.0);
        self.forget().await?;
        Ok(figures)
    }

    /// Submits single jobs while a worker runs, then as many, or as many as it can take, which a worker that starts
    /// later drains. Figures: `rate`, `drained`, and CPU per job of both. `None` if the driver was not built.
    pub(super) async fn peer(&self, peer: &Peer, jobs: u64) -> anyhow::Result<Option<Figures>> {
        let Some(driver) = self.driver(peer) else { return Ok(None) };
        let mut figures = Figures::default();
        let ticks = self.dir.path().join(format!("{}.ticks", peer.name));
        let _ = std::fs::remove_file(&ticks);

        let worker = self.spawn(peer, &driver, &ticks, &["worker"], false)?;
        let worker_pid = worker.id().context("the peer's worker is gone")?;
        self.ask(peer, &driver, &ticks, &["submit", "200"]).await?;
        let before = [self.pid, worker_pid].map(|pid| cpu_us(pid).unwrap_or_default());
        let said = self.ask(peer, &driver, &ticks, &["submit", &jobs.to_string()]).await?;
        let after = [self.pid, worker_pid].map(|pid| cpu_us(pid).unwrap_or_default());
        let seconds = said["seconds"].as_f64().context("the driver reported no time")?;
        figures.put("rate", jobs as f64 / seconds);
        figures.put("cpu.redis", (after[0] - before[0]) as f64 / jobs as f64);
        figures.put("cpu.worker", (after[1] - before[1]) as f64 / jobs as f64);
        self.exactly(&ticks, jobs + 200)?;
        stopped(worker).await?;
        self.forget().await?;

        let _ = std::fs::remove_file(&ticks);
        let jobs = jobs.min(peer.backlog);
        self.ask(peer, &driver, &ticks, &["fill", &jobs.to_string()]).await?;
        let begun = Instant::now();
        let worker = self.spawn(peer, &driver, &ticks, &["worker"], false)?;
        let limit = begun + PATIENCE;
        while size(&ticks) < jobs {
            anyhow::ensure!(Instant::now() < limit, "{} drained {} of {jobs} jobs", peer.name, size(&ticks));
            sleep(Duration::from_millis(2)).await;
        }
        figures.put("drained", jobs as f64 / begun.elapsed().as_secs_f64());
        self.exactly(&ticks, jobs)?;
        stopped(worker).await?;
        self.forget().await?;
        Ok(Some(figures))
    }

    /// Submits at a rate and measures when the jobs end: `end.p50` and so on, in milliseconds.
    pub(super) async fn peer_latency(&self, peer: &Peer, rate: u64, seconds: u64) -> anyhow::Result<Option<Figures>> {
        let Some(driver) = self.driver(peer) else { return Ok(None) };
        let ticks = self.dir.path().join("latency.ticks");
        let _ = std::fs::remove_file(&ticks);
        let worker = self.spawn(peer, &driver, &ticks, &["worker"], false)?;
        self.ask(peer, &driver, &ticks, &["submit", "200"]).await?;
        let said = self.ask(peer, &driver, &ticks, &["latency", &rate.to_string(), &seconds.to_string()]).await?;
        stopped(worker).await?;
        self.forget().await?;
        let mut figures = Figures::default();
        for (name, _) in super::open_loop::PERCENTILES {
            figures.put(&format!("end.{name}"), said[name].as_f64().unwrap_or(f64::NAN));
        }
        Ok(Some(figures))
    }

    /// The version that a peer's driver reports.
    pub(super) async fn version(&self, peer: &Peer) -> Option<String> {
        let output = Command::new(self.driver(peer)?).arg("version").output().await.ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn driver(&self, peer: &Peer) -> Option<PathBuf> {
        let path = self.peers.as_ref()?.join(peer.program);
        path.is_file().then_some(path)
    }

    /// Runs a driver to its end and parses the JSON that it prints.
    async fn ask(&self, peer: &Peer, driver: &Path, ticks: &Path, args: &[&str]) -> anyhow::Result<Value> {
        let child = self.spawn(peer, driver, ticks, args, true)?;
        let output = timeout(PATIENCE, child.wait_with_output()).await;
        let output = output.with_context(|| format!("{} took longer than {PATIENCE:?}: {args:?}", peer.name))??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::new(format!("{} failed at {args:?}: {}", peer.name, said.trim())).into());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    fn spawn(&self, peer: &Peer, driver: &Path, ticks: &Path, args: &[&str], heard: bool) -> anyhow::Result<Child> {
        let mut command = bound_to_parent(programs::find("setpriv").as_deref(), driver);
        command
            .args(args)
            .env("REDIS_URL", format!("redis://{}", self.addr))
            .env("TICKS", ticks)
            .env("PAYLOAD", payload())
            .env("CLIENTS", peer.clients.to_string())
            .env("CONCURRENCY", peer.concurrency.to_string())
            .stdin(Stdio::null())
            .stdout(if heard { Stdio::piped() } else { Stdio::null() })
            .stderr(if heard { Stdio::piped() } else { Stdio::null() })
            .kill_on_drop(true);
        if peer.bare {
            command.env("APALIS_BARE", "1");
        }
        command.spawn().with_context(|| format!("cannot start {}", driver.display()))
    }

    /// Refuses a reference that loses or duplicates jobs in a quiet run.
    fn exactly(&self, ticks: &Path, jobs: u64) -> anyhow::Result<()> {
        let ran = size(ticks);
        anyhow::ensure!(ran == jobs, "{ran} executions of {jobs} jobs: the reference's run is void");
        Ok(())
    }

    /// Deletes all data of the server.
    pub(super) async fn forget(&self) -> anyhow::Result<()> {
        probe::redis_ask(&self.addr, "FLUSHALL").await.map(drop)
    }
}

/// Kills a worker and waits until it is gone: its last writes must not come after a FLUSHALL.
async fn stopped(mut worker: Child) -> anyhow::Result<()> {
    Ok(worker.kill().await?)
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len())
}

/// The second field of the row for SET.
fn set_rate(csv: &str) -> Option<f64> {
    let row = csv.lines().find_map(|line| line.strip_prefix("\"SET\",\""))?;
    row.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_what_redis_benchmark_prints() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"61728.39\",\"0.412\"\n";
        assert_eq!(set_rate(csv), Some(61_728.39));
        assert_eq!(set_rate("nothing"), None);
    }
}
