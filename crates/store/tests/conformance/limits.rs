//! Rate limits: exact, whoever asks and however many at once.

use std::time::Duration;

use futures_util::future::join_all;
use muster_store::{RateLimit, Taken, Want};
use muster_testkit::until;

use crate::bench::{Bench, PATIENCE, tenant};

const MINUTE: Duration = Duration::from_secs(60);
const SLOW: RateLimit = RateLimit { per_second: 1.0 / 60.0, burst: 10 };

pub(crate) async fn of_100_at_once_exactly_the_burst_is_granted(bench: &Bench) {
    let (tenant, replica) = (tenant(), bench.replica().await);
    let asks = (0..100).map(|n| {
        let store = if n % 2 == 0 { &bench.store } else { &replica };
        store.take_tokens(&tenant, "submit", 1, Want::Some, SLOW)
    });
    let taken: Vec<Taken> = join_all(asks).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(taken.iter().map(|t| t.granted).sum::<u32>(), 10);
    let refused: Vec<_> = taken.iter().filter(|t| t.granted == 0).collect();
    assert_eq!(refused.len(), 90);
    for Taken { retry_after, .. } in refused {
        assert!((MINUTE / 2..=MINUTE).contains(retry_after), "{retry_after:?}");
    }
    assert!(taken.iter().filter(|t| t.granted == 1).all(|t| t.retry_after == Duration::ZERO));
    // Another scope and another tenant have limits of their own.
    let other = bench.store.take_tokens(&tenant, "other", 1, Want::Some, SLOW).await.unwrap();
    assert_eq!(other, Taken { granted: 1, retry_after: Duration::ZERO });
    let other = bench.store.take_tokens(&crate::bench::tenant(), "submit", 10, Want::All, SLOW).await.unwrap();
    assert_eq!(other.granted, 10);
}

pub(crate) async fn part_of_what_is_wanted_or_all_of_it(bench: &Bench) {
    let tenant = tenant();
    let take = async |n, want| bench.store.take_tokens(&tenant, "s", n, want, SLOW).await.unwrap();
    assert_eq!(take(7, Want::All).await, Taken { granted: 7, retry_after: Duration::ZERO });
    let none = take(5, Want::All).await;
    assert_eq!(none.granted, 0);
    assert!((MINUTE..=2 * MINUTE).contains(&none.retry_after), "two more must come: {:?}", none.retry_after);
    let some = take(5, Want::Some).await;
    assert_eq!(some.granted, 3, "a refusal took nothing");
    assert!((MINUTE / 2..=MINUTE).contains(&some.retry_after), "{:?}", some.retry_after);
    assert_eq!(take(1, Want::Some).await.granted, 0);
    // Never more than the burst at once, whatever is asked for.
    let fresh = bench.store.take_tokens(&tenant, "fresh", 1000, Want::Some, SLOW).await.unwrap();
    assert_eq!(fresh.granted, 10);
    // A burst that is lowered holds at once.
    let lower = RateLimit { burst: 2, ..SLOW };
    let scope = |limit| bench.store.take_tokens(&tenant, "lowered", 1, Want::Some, limit);
    for granted in [1, 1, 0] {
        assert_eq!(scope(lower).await.unwrap().granted, granted);
    }
}

pub(crate) async fn a_limit_refills_at_its_rate(bench: &Bench) {
    let (tenant, quick) = (tenant(), RateLimit { per_second: 100.0, burst: 5 });
    let began = std::time::Instant::now();
    let mut granted = 0;
    until(PATIENCE, "60 grants at 100 a second", async || {
        // More than the burst, so that every answer says when the next one comes.
        let taken = bench.store.take_tokens(&tenant, "s", 6, Want::Some, quick).await.unwrap();
        granted += taken.granted;
        assert!(taken.retry_after <= Duration::from_millis(10) && !taken.retry_after.is_zero(), "{taken:?}");
        (granted >= 60).then_some(())
    })
    .await;
    // The burst, and then one in ten milliseconds: no faster.
    let most = 5 + began.elapsed().as_millis() / 10 + 1;
    assert!(u128::from(granted) <= most, "{granted} of at most {most}");
}
