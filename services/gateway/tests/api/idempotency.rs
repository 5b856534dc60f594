//! Scenario 41: one key, one job, whoever asks where.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::json;

use crate::gate::Gate;

#[tokio::test]
async fn fifty_posts_with_one_key_over_two_gateways_make_one_job() {
    let (one, other) = (Gate::start(&[]).await, Gate::start(&[]).await);
    let other = other.for_tenant(one.tenant());
    let body = json!({"topic": "mail.send", "payload": {"n": 1}});
    let posts = (0..50).map(|n| if n % 2 == 0 { &one } else { &other }).map(|gate| {
        let body = body.clone();
        async move { gate.post_keyed("/api/v1/jobs", "the-key", &body).await }
    });
    let answers = join_all(posts).await;
    assert!(answers.iter().all(|answer| answer.status == 202), "{answers:?}");
    let ids: BTreeSet<&str> = answers.iter().map(|answer| answer.json["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
    let fresh = answers.iter().filter(|answer| !answer.headers.contains_key("idempotency-replayed")).count();
    assert_eq!(fresh, 1, "all but the first say that they found it");
    let id = ids.first().unwrap();
    assert!(answers.iter().all(|answer| answer.headers["location"] == format!("/api/v1/jobs/{id}").as_str()));
    assert_eq!(one.count_jobs().await, 1);

    let quoted = other.post_keyed("/api/v1/jobs", "\"the-key\"", &body).await;
    assert_eq!(quoted.json["id"], *id, "quoted or bare");
    let differs =
        other.post_keyed("/api/v1/jobs", "the-key", &json!({"topic": "mail.send", "payload": {"n": 1.0}})).await;
    assert_eq!((differs.status.as_u16(), differs.code()), (422, "idempotency_mismatch"));
    let elsewhere = one.for_tenant(&crate::gate::fresh_tenant()).post_keyed("/api/v1/jobs", "the-key", &body).await;
    assert_ne!(elsewhere.json["id"], *id, "another tenant's key is another key");
}
