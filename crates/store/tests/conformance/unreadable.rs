//! A record that cannot be read is passed over by every reader, whatever is wrong with it, and can be
//! removed. The live counts, scrub and retention go over all jobs, so these tests have servers of their own.

use std::time::Duration;

use muster_domain::{Event, JobId, State, Tenant};
use muster_store::{
    Extension, Fields, LeaderLock, ListFilter, LiveCounts, LiveCountsWalk, NewJob, Page, Retention, RetentionWalk,
    ScrubWalk, Step, StoreError,
};
use muster_testkit::{RedisCluster, RedisServer};

use crate::bench::{Bench, HOUR, Job, job_key, new_job, spec, tenant};

/// Whoever has ended is due.
const SHORT: Retention = Retention::of_all(Duration::from_micros(1), Duration::from_micros(1));
const NOISE: &[u8] = &[0xff; 200];

/// What may be wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    HeadCutShort,
    HeadOfNoise,
    UnknownState,
    WorkerCutShort,
    NoHistory,
    HistoryCutShort,
    LinesMissing,
    NoHead,
    SpecOfNoise,
    NoSpec,
    ErrorOfNoise,
    NotAHash,
}

impl Damage {
    const ALL: [Damage; 12] = [
        Damage::HeadCutShort,
        Damage::HeadOfNoise,
        Damage::UnknownState,
        Damage::WorkerCutShort,
        Damage::NoHistory,
        Damage::HistoryCutShort,
        Damage::LinesMissing,
        Damage::NoHead,
        Damage::SpecOfNoise,
        Damage::NoSpec,
        Damage::ErrorOfNoise,
        Damage::NotAHash,
    ];

    async fn befall(self, bench: &Bench, id: JobId) {
        let key = job_key(id);
        let mut packed = bench.raw(id).await.remove(&b"s"[..]).expect("a head");
        let head = async |packed: &[u8]| drop(bench.command("HSET", &key, &[b"s", packed]).await);
        match self {
            Damage::HeadCutShort => head(&packed[..40]).await,
            Damage::HeadOfNoise => head(NOISE).await,
            Damage::UnknownState => {
                packed[0] = 99;
                head(&packed).await;
            }
            Damage::WorkerCutShort => {
                packed.truncate(91);
                packed[90] = 7;
                head(&packed).await;
            }
            Damage::NoHistory => head(&packed[..91]).await,
            Damage::HistoryCutShort => {
                packed[92] = 1;
                packed.extend([12, 0, 1]);
                head(&packed).await;
            }
            Damage::LinesMissing => {
                packed[92] = 1;
                head(&packed).await;
            }
            Damage::NoHead => drop(bench.command("HDEL", &key, &[b"s"]).await),
            Damage::SpecOfNoise => drop(bench.command("HSET", &key, &[b"d", NOISE]).await),
            Damage::NoSpec => drop(bench.command("HDEL", &key, &[b"d"]).await),
            Damage::ErrorOfNoise => drop(bench.command("HSET", &key, &[b"e", NOISE]).await),
            Damage::NotAHash => {
                bench.command("DEL", &key, &[]).await;
                bench.command("SET", &key, &[b"something else"]).await;
            }
        }
    }

    /// Whether scripts, which look at the head and where the history begins, find nothing wrong.
    fn spares_the_head(self) -> bool {
        use Damage::{ErrorOfNoise, HistoryCutShort, LinesMissing, NoSpec, SpecOfNoise};
        matches!(self, SpecOfNoise | NoSpec | ErrorOfNoise | HistoryCutShort | LinesMissing)
    }
}

#[tokio::test]
async fn damage_on_a_standalone_server_harms_nobody_else() {
    let server = RedisServer::start().await;
    everything(&Bench::at(server.url()).await).await;
}

#[tokio::test]
async fn damage_on_a_cluster_harms_nobody_else() {
    let cluster = RedisCluster::start_steady().await;
    everything(&Bench::at(cluster.url()).await).await;
}

async fn everything(bench: &Bench) {
    for damage in Damage::ALL {
        let crowd = Crowd::with(bench, damage).await;
        crowd.it_is_read_as_such_and_the_others_as_they_are(bench).await;
        crowd.scripts_change_nothing_of_it(bench).await;
        crowd.lists_show_the_others_and_name_it_once(bench).await;
        crowd.a_census_counts_the_others(bench).await;
        crowd.scrub_helps_the_others(bench).await;
        crowd.dead_letters_show_the_others(bench).await;
        crowd.retention_removes_the_others(bench).await;
        crowd.it_can_be_removed(bench).await;
    }
}

/// Five jobs, the third of which is damaged.
struct Crowd {
    damage: Damage,
    tenant: Tenant,
    ids: Vec<JobId>,
    bad: JobId,
}

impl Crowd {
    async fn with(bench: &Bench, damage: Damage) -> Crowd {
        let tenant = tenant();
        let ids = bench.submit_listed(&tenant, 5).await;
        damage.befall(bench, ids[2]).await;
        Crowd { damage, tenant, bad: ids[2], ids }
    }

    fn others(&self) -> Vec<JobId> {
        self.ids.iter().copied().filter(|id| *id != self.bad).collect()
    }

    async fn dump(&self, bench: &Bench) -> redis::Value {
        bench.command("DUMP", &job_key(self.bad), &[]).await
    }

    async fn it_is_read_as_such_and_the_others_as_they_are(&self, bench: &Bench) {
        for (id, record) in self.ids.iter().zip(bench.store.read(&self.ids, Fields::ALL).await) {
            match record {
                Ok(Some(record)) => assert!(record.id == *id && *id != self.bad, "{:?}", self.damage),
                Err(StoreError::Unreadable { job, what }) => {
                    assert!(job == *id && *id == self.bad && !what.is_empty(), "{:?}", self.damage);
                }
                other => panic!("{:?}: {other:?}", self.damage),
            }
        }
    }

    async fn scripts_change_nothing_of_it(&self, bench: &Bench) {
        if self.damage.spares_the_head() || self.damage == Damage::NoHead {
            return;
        }
        let before = self.dump(bench).await;
        for event in [Event::Dispatch, Event::Start, Event::Cancel] {
            let moved = bench.store.apply_one(Step::new(self.bad, event, 1)).await;
            assert!(moved.as_ref().is_err_and(StoreError::is_unreadable), "{:?} + {event}: {moved:?}", self.damage);
        }
        if self.damage != Damage::NoHistory {
            let extension = Extension { job: self.bad, fence: 1, lease: HOUR, progress: None };
            let extended = bench.store.extend(vec![extension]).await.remove(0);
            assert!(extended.is_err_and(|fault| fault.is_unreadable()), "{:?}", self.damage);
            let again = NewJob { id: self.bad, ..new_job(spec(&self.tenant)) };
            let again = bench.store.submit(&[again]).await.remove(0);
            assert!(again.is_err_and(|fault| fault.is_unreadable()), "{:?}", self.damage);
        }
        assert_eq!(self.dump(bench).await, before, "{:?}", self.damage);
    }

    async fn walk(&self, bench: &Bench, limit: usize, filter: &ListFilter) -> (Vec<JobId>, Vec<JobId>) {
        let (mut shown, mut unreadable, mut cursor) = (Vec::new(), Vec::new(), None::<String>);
        loop {
            let page = bench.store.list(&self.tenant, cursor.as_deref(), limit, filter, Fields::NONE).await;
            let Page { items, unreadable: bad, next_cursor } = page.unwrap();
            shown.extend(items.into_iter().map(|record| record.id));
            unreadable.extend(bad);
            cursor = next_cursor;
            if cursor.is_none() {
                return (shown, unreadable);
            }
        }
    }

    async fn lists_show_the_others_and_name_it_once(&self, bench: &Bench) {
        let newest_first: Vec<JobId> = self.others().into_iter().rev().collect();
        for limit in [1, 2, 50] {
            let found = self.walk(bench, limit, &ListFilter::default()).await;
            assert_eq!(found, (newest_first.clone(), vec![self.bad]), "{:?}, {limit} a page", self.damage);
        }
    }

    async fn a_census_counts_the_others(&self, bench: &Bench) {
        let mut walk = LiveCountsWalk::new();
        let counts: LiveCounts = loop {
            if let Some(counts) = bench.store.count_live(&mut walk, 500).await.unwrap() {
                break counts;
            }
        };
        let counted: u64 = counts.topics.values().flat_map(|topic| topic.states.values()).sum();
        assert_eq!((counted, counts.unreadable), (4, 1), "{:?}", self.damage);
    }

    async fn scrub_helps_the_others(&self, bench: &Bench) {
        bench.store.drop_homes(&self.others()).await.unwrap();
        let lease = bench.leads(LeaderLock::Scrub).await;
        let (mut walk, mut homes, mut unreadable) = (ScrubWalk::new(), 0, 0);
        loop {
            let done = bench.store.scrub(&lease, &mut walk, 500).await.unwrap();
            assert_eq!(done.faults, 0, "{:?}: nobody waits for it to pass", self.damage);
            homes += done.homes;
            unreadable += done.unreadable;
            if done.passed {
                break;
            }
        }
        assert_eq!((homes, unreadable > 0), (4, true), "{:?}", self.damage);
    }

    async fn dead_letters_show_the_others(&self, bench: &Bench) {
        for id in self.others() {
            let head = bench.record(id).await.head;
            let job = Job { id, head };
            bench.go(&job, job.step(Event::Deny)).await;
        }
        let now = bench.store.now();
        let letters: Vec<_> = self.ids.iter().map(|id| (self.tenant.clone(), *id, now)).collect();
        bench.store.add_dead_letters(&letters).await.unwrap();
        let filter = ListFilter { states: vec![State::Denied], ..ListFilter::default() };
        for limit in [1, 50] {
            let (mut shown, unreadable) = self.walk(bench, limit, &filter).await;
            let mut others = self.others();
            shown.sort();
            others.sort();
            assert_eq!((shown, unreadable), (others, vec![self.bad]), "{:?}, {limit} a page", self.damage);
        }
    }

    async fn retention_removes_the_others(&self, bench: &Bench) {
        bench.store.drop_homes(&self.others()).await.unwrap();
        let lease = bench.leads(LeaderLock::Retention).await;
        let (mut walk, mut records, mut unreadable) = (RetentionWalk::new(), 0, 0);
        loop {
            let done = bench.store.retain(&lease, &mut walk, &SHORT, 500).await.unwrap();
            records += done.records;
            unreadable += done.unreadable;
            if done.passed {
                break;
            }
        }
        assert_eq!((records, unreadable), (4, 1), "{:?}", self.damage);
    }

    async fn it_can_be_removed(&self, bench: &Bench) {
        let letter = [(self.tenant.clone(), self.bad, bench.store.now())];
        bench.store.add_dead_letters(&letter).await.unwrap();
        assert!(bench.store.home_of(self.bad).await.unwrap().is_some());
        assert!(bench.store.delete_unreadable(self.bad).await.unwrap(), "{:?}", self.damage);
        assert_eq!(bench.command("EXISTS", &job_key(self.bad), &[]).await, redis::Value::Int(0));
        assert_eq!(bench.store.home_of(self.bad).await.unwrap(), None);
        assert_eq!(bench.store.count_dead_letters(&self.tenant).await.unwrap(), 0);
        assert!(!bench.store.delete_unreadable(self.bad).await.unwrap(), "once");

        let sound = bench.submit(spec(&self.tenant)).await;
        assert!(!bench.store.delete_unreadable(sound.id).await.unwrap(), "one that can be read is left alone");
        bench.record(sound.id).await;
        bench.command("DEL", &job_key(sound.id), &[]).await;
    }
}
