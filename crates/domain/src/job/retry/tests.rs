//! Properties of what follows a failed attempt, with values far beyond what the API accepts, because a record may
//! contain anything.

use proptest::prelude::*;

use super::*;
use crate::{
    Tenant, Time, Topic,
    job::{Phase, State, transition},
};

fn spec(on_lost_lease: OnLostLease) -> JobSpec {
    JobSpec { on_lost_lease, ..JobSpec::new(Tenant::default(), Topic::parse("t").unwrap()) }
}

fn head(attempt: u16, max_attempts: u16, lost: u16) -> Head {
    let at = Time(1);
    Head {
        version: 3,
        attempt,
        max_attempts,
        lost,
        released: 0,
        timeout: None,
        fence: 9,
        since: at,
        deadline: None,
        start_by: None,
        started_at: Some(at),
        created_at: at,
        last_event: None,
        attempt_ended_by: None,
        last_worker: None,
        phase: Phase::Dispatched,
    }
}

/// Durations from zero to the longest possible, often at either end.
fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        (0_u64..100_000_000).prop_map(Duration::from_millis),
        any::<u64>().prop_map(Duration::from_secs),
        Just(Duration::MAX),
    ]
}

fn attempts() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), 1_u16..=1000, Just(u16::MAX), any::<u16>()]
}

/// Values that the API accepts, and values that break careless arithmetic.
fn backoffs() -> impl Strategy<Value = Backoff> {
    let factor = prop_oneof![1.0..=100.0, Just(1.0), Just(100.0), any::<f64>()];
    let jitter = prop_oneof![0.0..=1.0, Just(0.0), Just(1.0), any::<f64>()];
    (durations(), factor, durations(), jitter).prop_map(|(initial, factor, max, jitter)| Backoff {
        initial,
        factor,
        max,
        jitter,
    })
}

/// The state that the event leads to from a running job. The event must be legal.
fn leads_to(after: &FailedAttempt) -> State {
    transition(State::Running, after.event).expect("a legal event")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_wait_is_longer_than_the_longest(backoff in backoffs(), attempt in attempts(), id in any::<u8>()) {
        let id = JobId::mint(id);
        let wait = backoff.wait(id, attempt);
        prop_assert!(wait <= backoff.max, "{wait:?}");
        prop_assert_eq!(wait, backoff.wait(id, attempt), "the same on every replica");
        if backoff.initial.is_zero() && !backoff.jitter.is_nan() {
            prop_assert_eq!(wait, Duration::ZERO, "nothing does not grow");
        }
    }

    #[test]
    fn without_jitter_waits_only_grow(backoff in backoffs(), attempt in 0_u16..=1000) {
        let (plain, id) = (Backoff { jitter: 0.0, ..backoff }, JobId::mint(0));
        prop_assert!(plain.wait(id, attempt) <= plain.wait(id, attempt + 1));
        prop_assert_eq!(plain.wait(id, attempt), plain.wait(JobId::mint(1), attempt), "the same for every job");
        prop_assert_eq!(plain.wait(id, 1).as_secs_f64(), plain.initial.min(plain.max).as_secs_f64());
    }

    #[test]
    fn jitter_spreads_by_its_share_and_no_further(
        initial in 0_u64..=86_400_000,
        factor in 1.0_f64..=100.0,
        max in 0_u64..=86_400_000,
        jitter in 0.0_f64..=1.0,
        attempt in 1_u16..=1000,
    ) {
        let (initial, max) = (Duration::from_millis(initial), Duration::from_millis(max));
        let (backoff, id) = (Backoff { initial, factor, max, jitter }, JobId::mint(0));
        let plain = Backoff { jitter: 0.0, ..backoff }.wait(id, attempt).as_secs_f64();
        let wait = backoff.wait(id, attempt).as_secs_f64();
        prop_assert!((wait - plain).abs() <= plain * jitter + 1e-6, "{wait} is not {plain} by {jitter}");
    }

    #[test]
    fn a_failure_is_retried_while_it_may_be_and_an_attempt_is_left(
        (attempt, max_attempts, lost) in (attempts(), attempts(), attempts()),
        backoff in backoffs(),
        retryable in any::<bool>(),
        wish in proptest::option::of(durations()),
    ) {
        let (id, head) = (JobId::mint(0), head(attempt, max_attempts, lost));
        let policy = RetryPolicy { max_attempts, backoff };
        let error = JobError::new("boom", "it broke", retryable);
        let after = after_failure(id, &head, &policy, error.clone(), wish);
        prop_assert_eq!(&after.error, &error, "what the worker said is kept");
        if retryable && attempt < max_attempts {
            prop_assert_eq!(leads_to(&after), State::Retrying);
            prop_assert_eq!(after.wait, wish.unwrap_or(backoff.wait(id, attempt)));
        } else {
            prop_assert_eq!((leads_to(&after), after.wait), (State::Failed, Duration::ZERO));
        }
    }

    #[test]
    fn a_lost_lease_is_tried_again_put_aside_or_the_end(
        (attempt, max_attempts, lost) in (attempts(), attempts(), attempts()),
        may_lose in any::<bool>(),
    ) {
        let on_lost_lease = if may_lose { OnLostLease::Retry } else { OnLostLease::Fail };
        let after = after_lost_lease(&head(attempt, max_attempts, lost), &spec(on_lost_lease));
        let every_attempt = u32::from(lost) + 1 >= u32::from(attempt);
        let wanted = match (may_lose, attempt < max_attempts, every_attempt) {
            (true, true, _) => (Event::Rescue, State::Retrying),
            (true, false, true) => (Event::Poison, State::Quarantined),
            _ => (Event::Abandon, State::Failed),
        };
        prop_assert_eq!((after.event, leads_to(&after)), wanted);
        prop_assert_eq!((after.wait, after.error.code.as_str()), (Duration::ZERO, "stale_timeout"));
    }

    #[test]
    fn an_attempt_that_took_too_long_is_retried_while_one_is_left(
        (attempt, max_attempts) in (attempts(), attempts()),
        backoff in backoffs(),
    ) {
        let (id, policy) = (JobId::mint(0), RetryPolicy { max_attempts, backoff });
        let after = after_time_out(id, &head(attempt, max_attempts, 0), &policy);
        prop_assert_eq!(after.error.code.as_str(), "attempt_timeout");
        let wanted = match attempt < max_attempts {
            true => (State::Retrying, backoff.wait(id, attempt)),
            false => (State::TimedOut, Duration::ZERO),
        };
        prop_assert_eq!((leads_to(&after), after.wait), wanted);
    }
}

#[test]
fn waits_at_the_longest_are_spread_below_it() {
    let backoff = Backoff { max: Duration::from_secs(10), ..Backoff::default() };
    let waits: Vec<Duration> = (0..200).map(|_| backoff.wait(JobId::mint(0), 100)).collect();
    let near = |seconds: f64| waits.iter().any(|wait| (wait.as_secs_f64() - seconds).abs() < 0.2);
    assert!(near(8.1) && near(9.0) && near(9.9), "{waits:?}");
    assert!(waits.iter().filter(|wait| **wait == backoff.max).count() < 3, "not all at one moment");
}

#[test]
fn a_job_that_may_not_lose_its_lease_says_so_and_not_that_its_attempts_are_used_up() {
    let said = |attempt: u16| {
        let after = after_lost_lease(&head(attempt, 2, 0), &spec(OnLostLease::Fail));
        (after.event, after.error.message.contains("no attempt is left"))
    };
    assert_eq!(said(1), (Event::Abandon, false));
    assert_eq!(said(2), (Event::Abandon, true));
}

#[test]
fn without_jitter_the_waits_are_exact() {
    let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
    let waits: Vec<u64> = (1..=10).map(|n| backoff.wait(JobId::mint(0), n).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
}
