//! Homes: set by whoever submits, re-scored by readers who compare, forwarded by everybody else.
//! Each test has one of the shards 1 to 5 to itself.

use std::time::Duration;

use muster_domain::{JobId, RunId, ScheduleId, Time};
use muster_store::{Held, LeaderLock, LeaseKeeper, Lock, Rescore, ShardedLock};
use muster_testkit::until;

use crate::bench::{Bench, HOUR, PATIENCE};

const S: Duration = Duration::from_secs(1);

async fn home(bench: &Bench, id: JobId) -> Time {
    bench.store.home_of(id).await.unwrap().expect("a home")
}

async fn now(bench: &Bench, shard: u8) -> Time {
    bench.store.due_homes(shard, 1).await.unwrap().now
}

/// Whether the home is due so long after a moment between `from` and `to`.
fn is_after(home: Time, span: Duration, from: Time, to: Time) -> bool {
    (from + span..=to + span).contains(&home)
}

pub(crate) async fn a_home_is_set_whatever_stood_there(bench: &Bench) {
    // More than one call carries.
    let ids: Vec<JobId> = (0..1200).map(|_| JobId::mint(1)).collect();
    for span in [30 * S, S, HOUR, HOUR] {
        let from = now(bench, 1).await;
        bench.store.set_homes(&ids, span).await.unwrap();
        let to = now(bench, 1).await;
        for id in [ids[0], ids[599], ids[1199]] {
            let home = home(bench, id).await;
            assert!(is_after(home, span, from, to), "{home:?}, {span:?} after {from:?}");
        }
    }
    assert_eq!(bench.store.due_homes(1, 10).await.unwrap().entries, []);
    // One call for members of many shards.
    let spread: Vec<JobId> = (6..14).map(JobId::mint).collect();
    bench.store.set_homes(&spread, HOUR).await.unwrap();
    assert!(bench.store.count_homes().await.unwrap() >= 1208);
    for id in &spread {
        home(bench, *id).await;
    }
    bench.store.drop_homes(&[ids, spread.clone()].concat()).await.unwrap();
    assert_eq!(bench.store.home_of(spread[3]).await, Ok(None));
    assert_eq!(bench.store.due_homes(1, 10).await.unwrap().next, None);
}

pub(crate) async fn a_rescore_loses_against_a_forward_in_between(bench: &Bench) {
    let (id, lease) = (JobId::mint(2), bench.leads(LeaderLock::Reconciler).await);
    bench.store.set_homes(&[id], Duration::ZERO).await.unwrap();
    let read = home(bench, id).await.0;
    // The reader is slow; meanwhile a transition brings the look nearer, or asks for the same again.
    for after in [Duration::ZERO, HOUR] {
        let read = home(bench, id).await.0;
        bench.store.forward_homes(&[(id, after)]).await.unwrap();
        let forwarded = home(bench, id).await;
        bench.store.rescore_homes(&lease, &[Rescore { job: id, read, after: HOUR }]).await.unwrap();
        assert_eq!(home(bench, id).await, forwarded, "the nearer look stands");
    }
    // A reader that nobody disturbed sets it, once.
    let (fresh, from) = (home(bench, id).await.0, now(bench, 2).await);
    assert!(fresh < read);
    bench.store.rescore_homes(&lease, &[Rescore { job: id, read: fresh, after: HOUR }]).await.unwrap();
    let set = home(bench, id).await;
    assert!(is_after(set, HOUR, from, now(bench, 2).await));
    bench.store.rescore_homes(&lease, &[Rescore { job: id, read: fresh, after: 2 * HOUR }]).await.unwrap();
    assert_eq!(home(bench, id).await, set, "a repeat finds another score");
    // A home that has left is not brought back by a reader.
    bench.store.drop_homes(&[id]).await.unwrap();
    bench.store.rescore_homes(&lease, &[Rescore { job: id, read: set.0, after: HOUR }]).await.unwrap();
    assert_eq!(bench.store.home_of(id).await, Ok(None));
}

pub(crate) async fn a_forward_always_changes_the_score(bench: &Bench) {
    let ids: Vec<JobId> = (0..700).map(|_| JobId::mint(3)).collect();
    let id = ids[650];
    let all = async |after: Duration| {
        let items: Vec<_> = ids.iter().map(|id| (*id, after)).collect();
        bench.store.forward_homes(&items).await.unwrap();
        home(bench, id).await
    };
    let from = now(bench, 3).await;
    let added = all(HOUR).await;
    assert!(is_after(added, HOUR, from, now(bench, 3).await), "added if absent");
    assert_eq!(all(2 * HOUR).await.0, added.0 - 1, "never later, always another");
    let from = now(bench, 3).await;
    let nearer = all(60 * S).await;
    assert!(is_after(nearer, 60 * S, from, now(bench, 3).await), "nearer if nearer");
    assert_eq!(all(60 * S).await.0, nearer.0 - 1);
    let due = all(Duration::ZERO).await;
    assert!(due <= now(bench, 3).await);
    assert!(all(Duration::ZERO).await < due);
    bench.store.drop_homes(&ids).await.unwrap();
}

pub(crate) async fn an_orphan_is_dropped_only_if_due_and_untouched(bench: &Bench) {
    let (id, lease) = (JobId::mint(4), bench.leads(LeaderLock::Reconciler).await);
    bench.store.set_homes(&[id], HOUR).await.unwrap();
    let read = home(bench, id).await.0;
    assert_eq!(bench.store.drop_orphan_home(&lease, id, read).await, Ok(false), "not due");
    bench.store.set_homes(&[id], Duration::ZERO).await.unwrap();
    let due = home(bench, id).await.0;
    assert_eq!(bench.store.drop_orphan_home(&lease, id, read).await, Ok(false), "read before it was set");
    assert_eq!(bench.store.drop_orphan_home(&lease, id, due + 1).await, Ok(false), "another score");
    // A submit under way sets it again: what was read before no longer counts.
    bench.store.set_homes(&[id], 30 * S).await.unwrap();
    assert_eq!(bench.store.drop_orphan_home(&lease, id, due).await, Ok(false), "set again meanwhile");
    bench.store.forward_homes(&[(id, Duration::ZERO)]).await.unwrap();
    let due = home(bench, id).await.0;
    assert_eq!(bench.store.drop_orphan_home(&lease, id, due).await, Ok(true));
    assert_eq!(bench.store.drop_orphan_home(&lease, id, due).await, Ok(false), "a repeat finds nothing");
    assert_eq!(bench.store.home_of(id).await, Ok(None));
}

pub(crate) async fn homes_are_due_in_order_and_the_next_is_known(bench: &Bench) {
    let ids: Vec<JobId> = (0..30).map(|_| JobId::mint(5)).collect();
    // In an order that is not that of their ids.
    for n in (0..30).map(|n| (n * 7) % 20) {
        bench.store.set_homes(&[ids[n]], Duration::ZERO).await.unwrap();
    }
    for (n, id) in ids.iter().enumerate().skip(20) {
        bench.store.set_homes(&[*id], HOUR * u32::try_from(n).unwrap()).await.unwrap();
    }
    let all = bench.store.due_homes(5, 1000).await.unwrap();
    assert_eq!(all.entries.len(), 20);
    assert!(all.entries.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{:?}", all.entries);
    assert!(all.entries.iter().all(|(_, score)| *score <= all.now.0));
    for (id, score) in &all.entries {
        assert_eq!(home(bench, *id).await.0, *score);
    }
    assert_eq!(all.next, Some(home(bench, ids[20]).await));
    let some = bench.store.due_homes(5, 7).await.unwrap();
    assert_eq!((some.entries.as_slice(), some.next), (&all.entries[..7], None), "more are due now");
    bench.store.drop_homes(&ids[..20]).await.unwrap();
    let none = bench.store.due_homes(5, 7).await.unwrap();
    assert_eq!((none.entries.len(), none.next), (0, all.next));
    // What is next becomes due by itself.
    bench.store.forward_homes(&[(ids[25], Duration::from_millis(50))]).await.unwrap();
    let due = home(bench, ids[25]).await;
    until(PATIENCE, "the next home", async || {
        let read = bench.store.due_homes(5, 7).await.unwrap();
        assert_eq!(read.entries.is_empty(), read.now < due);
        (read.entries.first().map(|entry| entry.0) == Some(ids[25])).then_some(())
    })
    .await;
    bench.store.drop_homes(&ids).await.unwrap();
    // One that is further ahead than any number we keep does not hide its shard.
    bench.store.set_homes(&ids[..1], Duration::from_secs(10_u64.pow(12))).await.unwrap();
    let far = bench.store.due_homes(5, 7).await.unwrap();
    assert!(far.entries.is_empty() && far.next.is_some_and(|next| next > far.now + 1000 * HOUR));
    bench.store.drop_homes(&ids).await.unwrap();
}

pub(crate) async fn homes_of_runs_and_schedules_stand_apart_from_those_of_jobs(bench: &Bench) {
    let job = JobId::mint(2);
    let run: RunId = job.to_string().parse().unwrap();
    let schedule: ScheduleId = job.to_string().parse().unwrap();
    bench.store.set_homes(&[run], Duration::ZERO).await.unwrap();
    assert_eq!(bench.store.home_of(job).await, Ok(None), "the same text, another kind");
    assert_eq!(bench.store.home_of(schedule).await, Ok(None));
    for (key, there) in [("muster:due:run:2", true), ("muster:due:schedule:2", false)] {
        let found: Option<f64> =
            redis::from_redis_value(bench.command("ZSCORE", key, &[run.to_string().as_bytes()]).await).unwrap();
        assert_eq!(found.is_some(), there, "{key}");
    }
    let due = bench.store.due_homes_of::<RunId>(2, 10).await.unwrap();
    assert_eq!(due.entries.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [run]);

    // Whoever leads the jobs' homes does not lead these: each shard has an owner.
    let reconciler = bench.leads(LeaderLock::Reconciler).await;
    let rescore = [Rescore { job: run, read: due.entries[0].1, after: HOUR }];
    bench.store.rescore_homes(&reconciler, &rescore).await.unwrap_err();
    let keeper = LeaseKeeper::new(bench.replica().await, Lock::shard(ShardedLock::Runs, 2), "r", PATIENCE);
    let done = keeper
        .hold(async {
            let lease = keeper.lease().expect("it is held");
            bench.store.rescore_homes(&lease, &rescore).await.unwrap();
            let other = Rescore { job: RunId::mint(3), read: 0, after: HOUR };
            bench.store.rescore_homes(&lease, &[other]).await.unwrap_err();
        })
        .await;
    assert_eq!(done, Held::Done(()));
    assert_eq!(bench.store.due_homes_of::<RunId>(2, 10).await.unwrap().entries, [], "due in an hour");
    bench.store.drop_homes(&[run]).await.unwrap();
}
