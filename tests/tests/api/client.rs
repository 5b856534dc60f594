//! The SDK's client against a real gateway.

use muster_domain::{State, Time};
use muster_sdk::{Client, HandlerError, JobFilter, JobRequest};
use muster_testkit::until;
use muster_tests::{Executions, Setup, Stack};
use serde_json::Value;

/// A gateway knows every filter of the client: none is refused, and each narrows the list.
#[tokio::test]
async fn every_filter_of_the_client_has_its_effect() {
    let stack = Stack::start().await;
    let client = Client::new(stack.process("gateway-1").http, stack.state().api_key).expect("a client");
    let runs = Executions::default();
    let _worker = runs.worker(&stack, Setup::new("w1", "t"), |_, _| async {
        Err::<Value, _>(HandlerError::permanent("never").code("c1"))
    });
    let before = Time::parse_rfc3339("2020-01-01T00:00:00Z").expect("a moment");
    let after = Time::parse_rfc3339("2120-01-01T00:00:00Z").expect("a moment");
    let failing = client.submit(JobRequest::new("t").label("a", "b").payload(&1)).await.expect("taken");
    client.submit(JobRequest::new("other")).await.expect("taken");
    until(super::SOON, "the end", async || client.get(failing.job.id).await.expect("read").done.then_some(())).await;
    let found = async |filter: JobFilter| {
        let page = client.list(filter).next_page().await.expect("no filter is refused").unwrap_or_default();
        page.into_iter().map(|job| job.id).collect::<Vec<_>>()
    };
    let all = || JobFilter::new().include_payload().include_result();
    for (name, fits, other) in [
        ("state", all().state(State::Failed), all().state(State::Succeeded)),
        ("topic", all().topic("t"), all().topic("nothing")),
        ("label", all().label("a", "b"), all().label("a", "c")),
        ("error_code", all().error_code("c1"), all().error_code("c2")),
        ("worker", all().worker("w1"), all().worker("w2")),
        ("created_after", all().topic("t").created_after(before), all().created_after(after)),
        ("created_before", all().topic("t").created_before(after), all().created_before(before)),
        ("finished_after", all().finished_after(before), all().finished_after(after)),
        ("finished_before", all().finished_before(after), all().finished_before(before)),
    ] {
        assert_eq!((found(fits).await, found(other).await), (vec![failing.job.id], vec![]), "{name}");
    }
    assert_eq!((found(all()).await.len(), found(all().limit(1)).await.len()), (2, 1));
}
