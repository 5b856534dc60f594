//! The backlog: strict priority, then age; claimed and removed, never popped.

use std::time::Duration;

use futures_util::future::join_all;
use muster_domain::{JobId, Line, Priority, Tenant, Time, Topic};
use muster_store::QueueEntry;
use muster_testkit::until;

use crate::bench::{Bench, HOUR, PATIENCE, tenant, topic};

struct Backlog {
    tenant: Tenant,
    topic: Topic,
}

impl Backlog {
    fn new() -> Backlog {
        Backlog { tenant: tenant(), topic: topic("backlog.test") }
    }

    fn entry(&self, priority: Priority, since: u64) -> QueueEntry {
        let (tenant, topic, since) = (self.tenant.clone(), self.topic.clone(), Time(since));
        QueueEntry { tenant, line: topic.into(), priority, job: JobId::mint(0), version: 2, since, limited: false }
    }

    /// So many of each, in the order in which they go.
    fn of_each_priority(&self, n: u64, base: u64) -> Vec<QueueEntry> {
        let of = |&priority| (0..n).map(move |age| self.entry(priority, base + age));
        Priority::ALL.iter().flat_map(of).collect()
    }

    async fn claim(&self, bench: &Bench, n: usize, hold: Duration) -> Vec<JobId> {
        jobs(&self.heads(bench, n, hold, None).await)
    }

    async fn heads(&self, bench: &Bench, n: usize, hold: Duration, ahead_of: Option<Time>) -> Vec<QueueEntry> {
        bench.store.claim_queued(&self.tenant, &self.topic, n, hold, ahead_of).await.unwrap()
    }

    async fn len(&self, bench: &Bench) -> u64 {
        bench.store.queue_lens(&[(self.tenant.clone(), Line::from(&self.topic))]).await.unwrap()[0]
    }
}

fn jobs(entries: &[QueueEntry]) -> Vec<JobId> {
    entries.iter().map(|entry| entry.job).collect()
}

/// Redis time of the first entry; ages are real ones, as they are in use.
async fn base(bench: &Bench) -> u64 {
    bench.store.due_homes(14, 1).await.unwrap().now.0
}

pub(crate) async fn priority_goes_first_then_age(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    // Enqueued from the last to the first, so that neither ids nor arrival decide.
    let entries = backlog.of_each_priority(5, base);
    for entry in entries.iter().rev() {
        bench.store.enqueue(std::slice::from_ref(entry)).await.unwrap();
    }
    assert_eq!(backlog.len(bench).await, 20);
    let mut taken = backlog.claim(bench, 7, HOUR).await;
    assert_eq!(taken, jobs(&entries[..7]));
    taken.extend(backlog.claim(bench, 100, HOUR).await);
    assert_eq!(taken, jobs(&entries));
    assert_eq!(backlog.len(bench).await, 20, "nothing is popped");
    // A critical one that comes last still goes first.
    let mut late = backlog.entry(Priority::Low, base);
    let last = backlog.entry(Priority::Critical, base + 100);
    late.version = 9;
    bench.store.enqueue(&[late.clone(), last.clone()]).await.unwrap();
    assert_eq!(backlog.claim(bench, 2, HOUR).await, [last.job, late.job]);
}

pub(crate) async fn a_claimed_entry_is_not_claimed_twice(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries: Vec<QueueEntry> = (0..300).map(|age| backlog.entry(Priority::Normal, base + age)).collect();
    bench.store.enqueue(&entries).await.unwrap();
    // Four schedulers claim at once.
    let replicas = join_all((0..4).map(|_| bench.replica())).await;
    let claims = (0..100).map(|n| {
        let (store, backlog) = (&replicas[n % 4], &backlog);
        async move { store.claim_queued(&backlog.tenant, &backlog.topic, 4, HOUR, None).await.unwrap() }
    });
    let mut claimed: Vec<JobId> = join_all(claims).await.concat().into_iter().map(|entry| entry.job).collect();
    assert_eq!(claimed.len(), 300);
    claimed.sort();
    let mut all = jobs(&entries);
    all.sort();
    assert_eq!(claimed, all);
    assert!(backlog.claim(bench, 10, HOUR).await.is_empty());
    bench.store.remove_queued(&entries).await.unwrap();
    bench.store.remove_queued(&entries).await.unwrap();
    assert_eq!(backlog.len(bench).await, 0);
}

pub(crate) async fn a_lapsed_claim_comes_first_again(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries: Vec<QueueEntry> = (0..6).map(|age| backlog.entry(Priority::Normal, base + age)).collect();
    bench.store.enqueue(&entries).await.unwrap();
    let hold = Duration::from_millis(200);
    assert_eq!(backlog.claim(bench, 2, hold).await, jobs(&entries[..2]));
    // Its scheduler died: when the claim lapses the entries come back, before those that are younger.
    let again = until(PATIENCE, "the lapsed claim", async || {
        let claimed = backlog.claim(bench, 1, Duration::ZERO).await;
        (claimed == [entries[0].job]).then_some(claimed)
    })
    .await;
    assert_eq!(again.len(), 1);
    // How many can be claimed is counted by what was last heard of Redis' clock.
    bench.store.ping().await.unwrap();
    let mut rest = backlog.claim(bench, 6, HOUR).await;
    assert_eq!(rest.len(), 6);
    // The probes above claimed for no time at all, so all lapsed ones come before the untouched.
    let untouched = rest.split_off(3.min(rest.len()));
    assert!(rest.contains(&entries[0].job) && rest.contains(&entries[1].job), "{rest:?}");
    assert_eq!(untouched, jobs(&entries[3..]));
    assert!(backlog.claim(bench, 6, HOUR).await.is_empty());
}

pub(crate) async fn an_entry_may_be_claimed_from_its_first_moment_on(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries: Vec<QueueEntry> = (0..4).map(|age| backlog.entry(Priority::Normal, base + age)).collect();
    bench.store.enqueue_claimed(&entries[2..3], HOUR).await.unwrap();
    // This one's keeper has died, and its claim with it.
    bench.store.enqueue_claimed(&entries[3..], Duration::ZERO).await.unwrap();
    bench.store.enqueue(&entries[..2]).await.unwrap();
    bench.store.ping().await.unwrap();
    assert_eq!(backlog.claim(bench, 9, HOUR).await, [entries[3].job, entries[0].job, entries[1].job]);
    let place = bench.store.queue_place(&entries[2]).await.unwrap().unwrap();
    assert_eq!(place.claimed_until, Some(entries[2].since + HOUR));
    bench.store.unclaim_queued(&entries[2..3]).await.unwrap();
    assert_eq!(backlog.claim(bench, 9, HOUR).await, [entries[2].job], "given up by who stops");
}

pub(crate) async fn a_claim_from_a_clock_that_ran_ahead_is_over(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries: Vec<QueueEntry> = (0..4).map(|age| backlog.entry(Priority::Normal, base + age)).collect();
    bench.store.enqueue(&entries[..3]).await.unwrap();
    // As if the clock had shown an hour more.
    assert_eq!(backlog.claim(bench, 2, HOUR).await, jobs(&entries[..2]));
    bench.store.enqueue_claimed(&entries[3..], HOUR).await.unwrap();
    bench.store.ping().await.unwrap();
    let moment = Duration::from_secs(30);
    let mut freed = backlog.claim(bench, 3, moment).await;
    freed.sort();
    let mut claimed = vec![entries[0].job, entries[1].job, entries[3].job];
    claimed.sort();
    assert_eq!(freed, claimed, "before the one that waits");
    assert_eq!(backlog.claim(bench, 9, moment).await, [entries[2].job], "each is claimed once");
}

pub(crate) async fn who_goes_before_a_kept_one_is_claimed_alone(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries = backlog.of_each_priority(3, base);
    bench.store.enqueue(&entries).await.unwrap();
    let normal = |age: usize| entries[2 * 3 + age].clone();
    assert_eq!(normal(0).priority, Priority::Normal);
    let ahead = backlog.heads(bench, 99, HOUR, Some(normal(1).since)).await;
    assert_eq!(jobs(&ahead), jobs(&entries[..7]), "the more urgent ones, and who is older");
    assert!(backlog.heads(bench, 99, HOUR, Some(normal(1).since)).await.is_empty());
    assert_eq!(backlog.claim(bench, 99, HOUR).await, jobs(&entries[7..]));
}

pub(crate) async fn a_late_removal_does_not_hit_the_new_entry(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let old = backlog.entry(Priority::Normal, base);
    bench.store.enqueue(std::slice::from_ref(&old)).await.unwrap();
    let claimed = backlog.heads(bench, 1, HOUR, None).await;
    assert_eq!((claimed[0].job, claimed[0].version), (old.job, old.version));
    // Dispatched, failed, and held again: the job is in the backlog anew.
    let new = QueueEntry { version: old.version + 5, since: Time(base + 10), ..old.clone() };
    bench.store.enqueue(std::slice::from_ref(&new)).await.unwrap();
    bench.store.remove_queued(&claimed).await.unwrap();
    let left = backlog.heads(bench, 5, HOUR, None).await;
    assert_eq!(left.iter().map(|e| (e.job, e.version)).collect::<Vec<_>>(), [(new.job, new.version)]);
}

pub(crate) async fn an_entry_that_is_there_stays_as_it_is(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries: Vec<QueueEntry> = (0..3).map(|age| backlog.entry(Priority::High, base + age)).collect();
    bench.store.enqueue(&entries).await.unwrap();
    let older = QueueEntry { since: Time(base - 1000), ..entries[2].clone() };
    bench.store.enqueue(&[older]).await.unwrap();
    assert_eq!(backlog.claim(bench, 1, HOUR).await, jobs(&entries[..1]), "its age is still the first one");
    // A claimed one is not freed by being put there again.
    bench.store.enqueue(&entries).await.unwrap();
    assert_eq!(backlog.claim(bench, 5, HOUR).await, jobs(&entries[1..]));
    assert_eq!(backlog.len(bench).await, 3);
}

pub(crate) async fn a_place_counts_everybody_who_goes_before(bench: &Bench) {
    let (backlog, base) = (Backlog::new(), base(bench).await);
    let entries = backlog.of_each_priority(3, base);
    bench.store.enqueue(&entries).await.unwrap();
    for (n, entry) in entries.iter().enumerate() {
        let place = bench.store.queue_place(entry).await.unwrap().expect("it is there");
        assert_eq!((place.ahead, place.waiting, place.claimed_until), (n as u64, 12, None), "{:?}", entry.priority);
    }
    let stranger = backlog.entry(Priority::High, base);
    assert_eq!(bench.store.queue_place(&stranger).await.unwrap(), None);
    let older = QueueEntry { version: 1, ..entries[0].clone() };
    assert_eq!(bench.store.queue_place(&older).await.unwrap(), None, "of another version");

    assert_eq!(backlog.claim(bench, 1, HOUR).await, [entries[0].job]);
    let place = bench.store.queue_place(&entries[0]).await.unwrap().expect("nothing is popped");
    let until = place.claimed_until.expect("claimed");
    assert!(until > Time(base) + HOUR && until < Time(base) + 2 * HOUR, "{until:?}");
    assert_eq!(bench.store.queue_place(&entries[1]).await.unwrap().map(|p| p.ahead), Some(1));
}
