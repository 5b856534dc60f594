//! Where the tests stand: a store on a shared server, jobs driven into every state by legal events
//! only, and their records as raw bytes. Every step that is applied here is held against the state
//! table and the rules of the look, whatever the test is about.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use bytes::Bytes;
use muster_domain::{
    Event, Head, JobId, JobSpec, Outcome, Seen, StartId, State, Tenant, Topic, WorkerId,
    job::{When, latest_look, next_look, transition},
};
use muster_store::{
    Fields, LeaderLock, Lease, LeaseKeeper, Moved, NewJob, Record, RedisSettings, Step, Store, Submitted,
    router::Command,
};
use muster_testkit::{RedisServer, until};
use redis::Value;
use tokio::sync::OnceCell;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Bench {
    pub(crate) store: Store,
    url: String,
}

/// A job and where it stands, as last heard.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) head: Head,
}

impl Job {
    /// An event as somebody sends it who knows where the job stands.
    pub(crate) fn step(&self, event: Event) -> Step {
        let seen = match event.seen() {
            Seen::Version => self.head.version.into(),
            Seen::Fence => self.head.fence,
            Seen::Any => 0,
        };
        let mut step = Step::new(self.id, event, seen);
        if event == Event::Start {
            step.start_id = StartId::random();
            step.worker = Some(WorkerId::parse("w-1").unwrap());
            step.lease = HOUR;
        }
        step
    }
}

/// How a job is driven into a state.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) spec: JobSpec,
    /// With an attempt that was started and lost before.
    pub(crate) again: bool,
    /// Of the start, if there is one.
    pub(crate) lease: Duration,
    /// Until run_at, or the approval's expiry.
    pub(crate) wait: Duration,
}

impl Course {
    /// Nothing is due within an hour.
    pub(crate) fn calm(again: bool) -> Course {
        Course { spec: spec(&tenant()), again, lease: HOUR, wait: HOUR }
    }

    fn route(&self, state: State) -> &'static [Event] {
        use Event::{
            AskApproval, Cancel, Deny, Dispatch, Expire, Fail, Hold, Quarantine, Reject, Release, Retry, Schedule,
            Start, Succeed, TimeOut,
        };
        match state {
            State::Pending => &[],
            State::Scheduled if self.spec.run_at.is_some() => &[Schedule],
            State::Scheduled => &[Dispatch, Start, Release],
            State::Retrying => &[Dispatch, Start, Retry],
            State::AwaitingApproval => &[AskApproval],
            State::Queued => &[Hold],
            State::Dispatched => &[Dispatch],
            State::Running => &[Dispatch, Start],
            State::Succeeded => &[Dispatch, Start, Succeed],
            State::Failed if self.again => &[Dispatch, Start, Fail],
            State::Failed => &[Dispatch, Reject],
            State::TimedOut if self.again => &[Dispatch, Start, TimeOut],
            State::TimedOut => &[TimeOut],
            State::Cancelled if self.again => &[Dispatch, Start, Cancel],
            State::Cancelled => &[Cancel],
            State::Denied => &[Deny],
            State::Expired => &[AskApproval, Expire],
            State::Quarantined => &[Dispatch, Start, Quarantine],
        }
    }

    /// The course into `state` on which `event`, if it is legal there, is due at once or `soon`.
    fn ripe(state: State, event: Event, again: bool, soon: Duration) -> Course {
        let mut course = Course::calm(again);
        let legal = transition(state, event).is_some();
        match (state, event) {
            (State::Pending, Event::Schedule) => course.spec.run_at = Some(When::In(HOUR)),
            (State::Scheduled | State::Retrying, Event::Wake) | (State::AwaitingApproval, Event::Expire) => {
                course.wait = Duration::ZERO;
            }
            (State::Expired, _) => course.wait = Duration::ZERO,
            (State::Running, Event::Rescue | Event::Abandon | Event::Poison) => course.lease = Duration::ZERO,
            (State::Running, Event::CutShort | Event::TimeOut) => course.spec.timeout_ms = 1,
            (State::TimedOut, _) if again => course.spec.timeout_ms = 1,
            (State::TimedOut, _) => course.spec.deadline = Some(When::In(Duration::from_micros(1))),
            (_, Event::TimeOut | Event::Expire) if legal => course.spec.deadline = Some(When::In(soon)),
            _ => {}
        }
        // A job that was never started becomes scheduled by its run_at; one that was, by a release.
        if state == State::Scheduled && !again && event != Event::Wake {
            course.spec.run_at = Some(When::In(HOUR));
        }
        course
    }
}

impl Bench {
    pub(crate) async fn standalone() -> Bench {
        Bench::at(muster_testkit::redis().await.url()).await
    }

    pub(crate) async fn cluster() -> Bench {
        Bench::at(muster_testkit::cluster().await.url()).await
    }

    pub(crate) async fn at(url: String) -> Bench {
        Bench { store: connect(&url).await, url }
    }

    /// Proof of leadership, for as long as any test takes. From a server of its own: who else asks for
    /// the lock, here, does not matter.
    pub(crate) async fn leads(&self, lock: LeaderLock) -> Lease {
        static LEASES: OnceCell<Vec<Lease>> = OnceCell::const_new();
        let all = LEASES.get_or_init(async || {
            let server = RedisServer::start().await;
            let store = connect(&server.url()).await;
            let mut leases = Vec::new();
            for lock in LeaderLock::ALL {
                let keeper = LeaseKeeper::new(store.clone(), lock, "bench", HOUR);
                tokio::select! {
                    () = keeper.run() => unreachable!("it runs until it is dropped"),
                    lease = until(PATIENCE, "the lease", async || keeper.lease()) => leases.push(lease),
                }
            }
            leases
        });
        all.await.iter().find(|lease| lease.lock() == lock.as_str()).expect("all of them").clone()
    }

    /// The store as another replica has it, over connections of its own.
    pub(crate) async fn replica(&self) -> Store {
        connect(&self.url).await
    }

    /// A plain command past the store, on one key.
    pub(crate) async fn command(&self, name: &str, key: &str, args: &[&[u8]]) -> Value {
        let mut cmd = redis::cmd(name);
        cmd.arg(key);
        for arg in args {
            cmd.arg(*arg);
        }
        self.store.router().call(Command::plain(cmd)).await.expect("redis answers")
    }

    /// The job's record, byte for byte; empty if there is none.
    pub(crate) async fn raw(&self, id: JobId) -> BTreeMap<Vec<u8>, Vec<u8>> {
        redis::from_redis_value(self.command("HGETALL", &job_key(id), &[]).await).expect("a hash")
    }

    /// Overwrites a part of the packed head by hand.
    pub(crate) async fn patch(&self, id: JobId, part: Range<usize>, number: u64) {
        let mut packed = self.raw(id).await.remove(&b"s"[..]).expect("a record");
        packed[part].copy_from_slice(&number.to_be_bytes());
        self.command("HSET", &job_key(id), &[b"s", &packed]).await;
    }

    pub(crate) async fn record(&self, id: JobId) -> Record {
        self.store.read_one(id, Fields::ALL).await.expect("redis answers").expect("a record")
    }

    pub(crate) async fn submit(&self, spec: JobSpec) -> Job {
        self.submit_many(vec![spec]).await.remove(0)
    }

    pub(crate) async fn submit_many(&self, specs: Vec<JobSpec>) -> Vec<Job> {
        let jobs: Vec<NewJob> = specs.into_iter().map(new_job).collect();
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let heads = self.store.submit(&jobs).await.into_iter().map(|outcome| match outcome {
            Ok(Submitted::Created(head)) => head,
            other => panic!("{other:?}"),
        });
        ids.into_iter().zip(heads).map(|(id, head)| Job { id, head }).collect()
    }

    /// Jobs with a home and a place, as after [`Store::prepare`], but always on the first list of their ten
    /// minutes: on a cluster, that one goes to another if the first takes long, and a busy machine may.
    pub(crate) async fn submit_listed(&self, tenant: &Tenant, n: usize) -> Vec<JobId> {
        let mut jobs: Vec<NewJob> = (0..n).map(|_| new_job(spec(tenant))).collect();
        let (ids, now) = (jobs.iter().map(|job| job.id).collect::<Vec<_>>(), self.store.ping().await.unwrap());
        let entries: Vec<_> = ids.iter().map(|id| (*id, now)).collect();
        self.store.set_homes(&ids, HOUR).await.unwrap();
        let places = self.store.index_jobs(tenant, &entries).await.unwrap();
        jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
        self.store.submit(&jobs).await.into_iter().for_each(|made| drop(made.unwrap()));
        ids
    }

    /// Applies a step that must be possible now, and checks what every transition must keep to.
    pub(crate) async fn go(&self, job: &Job, step: Step) -> Job {
        let event = step.event;
        moved_on(job, event, &self.apply(step).await)
    }

    pub(crate) async fn apply(&self, step: Step) -> Moved {
        self.store.apply_one(step).await.expect("redis answers")
    }

    /// Applies a step as soon as its moment has come.
    pub(crate) async fn when_due(&self, step: Step) -> Moved {
        let what = format!("the moment of {}", step.event);
        until(PATIENCE, &what, async || {
            Some(self.apply(step.clone()).await).filter(|moved| moved.outcome != Outcome::Early)
        })
        .await
    }

    /// Drives a new job into a state; `None` if its deadline came before it could be started.
    pub(crate) async fn drive(&self, state: State, course: &Course) -> Option<Job> {
        let mut job = self.submit(course.spec.clone()).await;
        let before: &[Event] =
            if course.again { &[Event::Dispatch, Event::Start, Event::Rescue, Event::Wake] } else { &[] };
        let lost = before.iter().map(|event| (*event, Duration::ZERO, Duration::ZERO));
        let then = course.route(state).iter().map(|event| (*event, course.lease, course.wait));
        for (event, lease, wait) in lost.chain(then) {
            let step = Step { lease, wait, ..job.step(event) };
            let moved = match event {
                Event::Start => self.apply(step).await,
                _ => self.when_due(step).await,
            };
            if moved.outcome == Outcome::Early {
                return None;
            }
            job = moved_on(&job, event, &moved);
        }
        assert_eq!(job.head.state(), state);
        Some(job)
    }

    /// A job in this state on which nothing is due for an hour.
    pub(crate) async fn calm(&self, state: State) -> Job {
        self.drive(state, &Course::calm(false)).await.expect("no deadline was set")
    }

    /// A job in this state for which this event, if it is legal, is due at once or very soon.
    pub(crate) async fn ripe(&self, state: State, event: Event, again: bool) -> Job {
        let mut soon = Duration::from_millis(50);
        loop {
            if let Some(job) = self.drive(state, &Course::ripe(state, event, again, soon)).await {
                return job;
            }
            soon *= 4;
        }
    }
}

/// What must be true of every applied transition.
pub(crate) fn moved_on(job: &Job, event: Event, moved: &Moved) -> Job {
    let old = &job.head;
    let head = moved.head.clone().expect("an existing job has a head");
    assert_eq!(moved.outcome, Outcome::Applied, "{} + {event}: {head:?}", old.state());
    assert_eq!(Some(head.state()), transition(old.state(), event), "{} + {event}", old.state());
    assert_eq!((head.version, head.since), (old.version + 1, moved.now), "{} + {event}", old.state());
    assert_eq!((head.last_event, head.created_at), (Some(event), old.created_at));
    // Whoever ends a job does the effects of its end and drops its home before anything is
    // answered, so an end needs no forward.
    let next = next_look(&head, moved.now);
    let nearer = !head.state().is_end() && next < latest_look(old, moved.now);
    let wanted = nearer.then(|| next.remaining(moved.now));
    assert_eq!(moved.forward, wanted, "forward of {} + {event}, from {old:?} to {head:?}", old.state());
    Job { id: job.id, head }
}

async fn connect(url: &str) -> Store {
    // Patient, so that a busy machine causes no repeats: `applied` is then what must be heard.
    let (response_timeout, budget) = (Duration::from_secs(10), PATIENCE);
    Store::connect(RedisSettings { response_timeout, budget, ..RedisSettings::new(url) }).await.expect("a store")
}

pub(crate) fn job_key(id: JobId) -> String {
    format!("muster:job:{id}")
}

/// A tenant that no other test has.
pub(crate) fn tenant() -> Tenant {
    Tenant::parse(&format!("t{:016x}", fastrand::u64(..))).unwrap()
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic::parse(name).unwrap()
}

pub(crate) fn spec(tenant: &Tenant) -> JobSpec {
    JobSpec::new(tenant.clone(), topic("work"))
}

/// A job whose home is in none of the shards that a test of homes has to itself.
pub(crate) fn new_job(spec: JobSpec) -> NewJob {
    NewJob {
        id: JobId::mint(fastrand::u8(6..15)),
        spec,
        payload: Bytes::from_static(b"{\"n\":1}"),
        body_hash: None,
        place: None,
        at: None,
    }
}
