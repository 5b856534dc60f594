//! Bulk operations: one carrier at a time, progress under a fence, a cancel that holds.

use std::time::Duration;

use muster_domain::{JobId, OperationId};
use muster_store::{Action, Claimed, ListError, NewOperation, Operation, OperationStatus, Tally, Walk};
use muster_testkit::until;

use crate::bench::{Bench, tenant};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

fn new() -> NewOperation {
    NewOperation {
        id: OperationId::mint(0),
        tenant: tenant(),
        action: Action::Retry,
        filter: r#"{"topic":"ü"}"#.into(),
        topics: vec!["mail.*".into(), "a".into()],
        principal: "key".into(),
        rate: 7,
        canary: 3,
        hash: [9; 16],
    }
}

async fn claimed(bench: &Bench, id: OperationId, owner: &str, hold: Duration) -> Option<Operation> {
    match bench.store.claim_operation(id, owner, hold).await.unwrap() {
        Claimed::Ours(operation) => Some(*operation),
        Claimed::Theirs | Claimed::Over => None,
    }
}

async fn is_open(bench: &Bench, id: OperationId) -> bool {
    bench.store.open_operations(1000).await.unwrap().contains(&id)
}

pub(crate) async fn an_operation_has_one_carrier_and_the_next_goes_on_where_it_stopped(bench: &Bench) {
    let asked = new();
    let (created, stored) = bench.store.create_operation(&asked).await.unwrap();
    assert!(created && stored.status == OperationStatus::Running && stored.created_at.0 > 0);
    assert!(!bench.store.create_operation(&asked).await.unwrap().0, "once");
    assert_eq!((stored.asked.filter.as_str(), stored.asked.topics.len()), (r#"{"topic":"ü"}"#, 2));
    assert_eq!((stored.asked.rate, stored.asked.canary, stored.asked.hash), (7, 3, [9; 16]));
    assert!(is_open(bench, asked.id).await);

    let mut first = claimed(bench, asked.id, "one", LONG).await.unwrap();
    assert_eq!((first.walk.clone(), first.batch.len()), (Walk::At(None), 0));
    assert!(claimed(bench, asked.id, "one", LONG).await.is_some(), "the carrier may ask again");
    assert!(claimed(bench, asked.id, "two", LONG).await.is_none(), "another may not");
    first.batch = vec![JobId::mint(1), JobId::mint(2)];
    first.walk = Walk::At(Some("b.1.2".into()));
    first.tally = Tally { matched: 2, done: 0, skipped: 0, failed: 0 };
    let running = OperationStatus::Running;
    assert_eq!(bench.store.note_operation(&first, running, SHORT).await, Ok(Some(running)));

    // The first falls silent: the second gets everything that it had noted.
    let mut second =
        until(Duration::from_secs(20), "the claim to run out", async || claimed(bench, asked.id, "two", LONG).await)
            .await;
    assert_eq!((&second.batch, &second.walk, second.tally), (&first.batch, &first.walk, first.tally));
    assert!(second.fence > first.fence);
    first.tally.done = 99;
    let done = OperationStatus::Done;
    assert_eq!(bench.store.note_operation(&first, done, LONG).await, Ok(None), "what the first says is too late");
    (second.batch, second.walk, second.tally.done) = (vec![], Walk::Over, 2);
    for _ in 0..2 {
        assert_eq!(bench.store.note_operation(&second, done, LONG).await, Ok(Some(done)));
    }
    let ended = bench.store.operation(asked.id).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.tally.done, ended.walk), (done, 2, Walk::Over));
    assert!(ended.finished_at.is_some());
    assert!(claimed(bench, asked.id, "three", LONG).await.is_none());
    assert!(!is_open(bench, asked.id).await, "whoever finds it over takes it out");
    assert_eq!(bench.store.cancel_operation(asked.id).await.unwrap().unwrap().status, done, "too late to cancel");
}

pub(crate) async fn a_cancelled_operation_counts_what_it_did_and_does_not_go_on(bench: &Bench) {
    let asked = new();
    bench.store.create_operation(&asked).await.unwrap();
    let mut carried = claimed(bench, asked.id, "one", LONG).await.unwrap();
    let cancelled = OperationStatus::Cancelled;
    for _ in 0..2 {
        assert_eq!(bench.store.cancel_operation(asked.id).await.unwrap().unwrap().status, cancelled);
    }
    carried.tally.done = 5;
    for status in [OperationStatus::Running, OperationStatus::Done] {
        assert_eq!(bench.store.note_operation(&carried, status, LONG).await, Ok(Some(cancelled)));
    }
    let ended = bench.store.operation(asked.id).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.tally.done), (cancelled, 5));
    assert!(claimed(bench, asked.id, "one", LONG).await.is_none());
    assert!(bench.store.cancel_operation(OperationId::mint(0)).await.unwrap().is_none());
    assert!(bench.store.operation(OperationId::mint(0)).await.unwrap().is_none());
}

pub(crate) async fn operations_are_listed_by_tenant_newest_first(bench: &Bench) {
    let tenant = tenant();
    let mut ids = Vec::new();
    for _ in 0..5 {
        let asked = NewOperation { tenant: tenant.clone(), ..new() };
        bench.store.create_operation(&asked).await.unwrap();
        ids.insert(0, asked.id);
    }
    bench.store.create_operation(&new()).await.unwrap();
    let (mut found, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let (page, next) = bench.store.list_operations(&tenant, cursor.as_deref(), 2).await.unwrap();
        found.extend(page.iter().map(|operation| operation.asked.id));
        let Some(next) = next else { break };
        cursor = Some(next);
    }
    assert_eq!(found, ids);
    for bad in ["x", "m.1.2", "o.x.y", "o.1"] {
        assert_eq!(bench.store.list_operations(&tenant, Some(bad), 2).await.unwrap_err(), ListError::BadCursor);
    }
}
