//! A scheduler that is sick and not dead: frozen, cut off, or slow. Jobs must not wait for it.
//!
//! Each test runs two schedulers. The second one reaches its stores through proxies of its own. A steady load is
//! measured before the fault, during it and after it.

use std::{
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use muster_testkit::bin;
use muster_tests::{
    Executions, Options, Probe, Setup, Stack,
    sick::{Sick, Times, timed},
    spawn_forever,
};
use nix::sys::signal::Signal;
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
/// No job takes longer than normal by more than this while a replica is sick.
const LATE: Duration = Duration::from_secs(3);

/// What clients of the load see of a job.
#[derive(Clone, Copy)]
enum Client {
    /// A worker on the bus.
    Nats,
    /// A worker that speaks HTTP to the gateway.
    Http,
}

/// Submits at a steady rate, lets `fault` happen in the middle and `mend` afterwards, and judges how long jobs took.
async fn jobs_do_not_wait(client: Client, fault: impl AsyncFn(&Sick), mend: impl AsyncFn(&Sick)) {
    jobs_do_not_wait_on(&Stack::start().await, client, fault, mend).await;
}

/// The same with the sick scheduler beside those of this stack.
async fn jobs_do_not_wait_on(stack: &Stack, client: Client, fault: impl AsyncFn(&Sick), mend: impl AsyncFn(&Sick)) {
    let sick = Sick::beside(stack).await;
    let runs = Executions::default();
    let mut workers = (None, None);
    match client {
        Client::Nats => {
            let setup = Setup { slots: 16, ..Setup::new("w1", "sick") };
            workers.0 = Some(runs.worker(stack, setup, |_, payload| async move { Ok(payload) }));
        }
        Client::Http => {
            let url = stack.process("gateway-1").http.expect("a gateway has an address");
            workers.1 = Some(HttpWorker::start(&url, &stack.state().api_key));
        }
    }
    let gateway = stack.gateway(1);
    one(&gateway).await;
    let all = timed(|_| one(&gateway), async || fault(&sick).await, async || mend(&sick).await).await;
    let times = Times::of("jobs", all.iter().map(|(_, took)| *took));
    times.slowest_within(LATE);
    times.normal_while_sick();
    times.normal_afterwards();
    if let Client::Nats = client {
        assert_eq!(runs.all().len(), all.len() + 1, "each job was run once");
    }
}

/// Submits one job and waits for its end.
async fn one(gateway: &Probe) -> Duration {
    let at = Instant::now();
    let id = gateway.submit(json!({"topic": "sick", "retry": {"max_attempts": 1}})).await;
    let job = gateway.ended(&id, SOON).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    at.elapsed()
}

/// `muster worker run --http`.
struct HttpWorker(Child);

impl HttpWorker {
    fn start(url: &str, key: &str) -> HttpWorker {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(bin("muster")).args(["worker", "run", "--http", "--builtin", "echo"]);
        command.args(["--topic", "sick", "--concurrency", "16", "--id", "w1"]);
        command.env("MUSTER_URL", url).env("MUSTER_API_KEY", key);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        HttpWorker(spawn_forever(command))
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn no_job_waits_for_a_frozen_scheduler() {
    jobs_do_not_wait(Client::Nats, async |s| s.signal(Signal::SIGSTOP), async |s| s.signal(Signal::SIGCONT)).await;
}

#[tokio::test]
async fn no_job_of_an_http_worker_waits_for_a_frozen_scheduler() {
    jobs_do_not_wait(Client::Http, async |s| s.signal(Signal::SIGSTOP), async |s| s.signal(Signal::SIGCONT)).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_that_redis_does_not_answer() {
    jobs_do_not_wait(Client::Nats, async |s| s.redis.stall(), async |s| s.redis.heal().await).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_that_redis_refuses() {
    jobs_do_not_wait(Client::Nats, async |s| s.redis.cut().await, async |s| s.redis.heal().await).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_that_nats_does_not_answer() {
    jobs_do_not_wait(Client::Nats, async |s| s.nats.stall(), async |s| s.nats.heal().await).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_to_which_redis_is_slow() {
    let slow = async |s: &Sick| s.redis.slow(Duration::from_millis(300));
    jobs_do_not_wait(Client::Nats, slow, async |s| s.redis.heal().await).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_to_which_nats_is_slow() {
    let slow = async |s: &Sick| s.nats.slow(Duration::from_millis(300));
    jobs_do_not_wait(Client::Nats, slow, async |s| s.nats.heal().await).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_that_nats_refuses() {
    jobs_do_not_wait(Client::Nats, async |s| s.nats.cut().await, async |s| s.nats.heal().await).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_that_neither_store_answers() {
    let fault = async |s: &Sick| {
        s.redis.stall();
        s.nats.stall();
    };
    let mend = async |s: &Sick| {
        s.redis.heal().await;
        s.nats.heal().await;
    };
    jobs_do_not_wait(Client::Nats, fault, mend).await;
}

#[tokio::test]
async fn no_job_waits_for_a_scheduler_that_shares_its_core_with_a_busy_loop() {
    let busy = Mutex::new(None);
    let fault = async |s: &Sick| {
        let pid = s.pid().to_string();
        let pinned = Command::new("taskset").args(["--all-tasks", "-cp", "0", &pid]).stdout(Stdio::null()).status();
        assert!(pinned.expect("taskset").success());
        *busy.lock().expect("one thread") = Some(Busy::start());
    };
    jobs_do_not_wait(Client::Nats, fault, async |_| drop(busy.lock().expect("one thread").take())).await;
}

#[tokio::test]
async fn no_job_waits_for_a_frozen_scheduler_of_three() {
    let stack = Stack::with(Options::two()).await;
    let (fault, mend) = (async |s: &Sick| s.signal(Signal::SIGSTOP), async |s: &Sick| s.signal(Signal::SIGCONT));
    jobs_do_not_wait_on(&stack, Client::Nats, fault, mend).await;
}

/// A loop that uses up the first core.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "taskset", "-c", "0", "sh", "-c", "while :; do :; done"]);
        Busy(spawn_forever(command))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_frozen_nats_node_that_leads_the_streams_costs_time_and_no_job() {
    let stack = Stack::with(Options { replicas: 2, cluster: true, ..Options::default() }).await;
    let runs = Executions::default();
    let setup = Setup { slots: 16, ..Setup::new("w1", "sick") };
    let _worker = runs.worker(&stack, setup, |_, payload| async move { Ok(payload) });
    let servers: Vec<String> = stack.state().nats_url.split(',').map(str::to_owned).collect();
    let streams = async_nats::jetstream::new(async_nats::connect(servers).await.expect("NATS"));
    let led = streams.get_stream("MUSTER_SYS").await.expect("the stream");
    let leader = led.cached_info().cluster.as_ref().and_then(|nodes| nodes.leader.clone()).expect("a leader");
    let tell = |signal| {
        stack.signal(&leader, signal);
    };
    let gateway = stack.gateway(1);
    one(&gateway).await;
    let all = timed(|_| one(&gateway), async || tell(Signal::SIGSTOP), async || tell(Signal::SIGCONT)).await;
    // The servers elect another leader of the streams twice: when its node freezes, and once more when the node comes
    // back and believes that it still leads. How long that takes is theirs to say; each job has ended by now.
    Times::of("jobs", all.iter().map(|(_, took)| *took));
}
