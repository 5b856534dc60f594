//! Tests of the submit fields, row by row: what is accepted, what is refused, and the pointer of each fault.

use muster_domain::Time;
use muster_flow::admission::bounds::{MOST_DEPTH, MOST_PAYLOAD};

use super::*;
use crate::problem::Problem;

fn read(body: &str) -> Result<ReadJob, Problem> {
    let body = Bytes::from(body.to_owned());
    let mut faults = Faults::default();
    let object = Object::from_body(&body)?;
    let asked = read_job(
        &body,
        object,
        &Tenant::default(),
        &|topic| Ok(JobSpec::new(Tenant::default(), topic)),
        Place::Alone,
        true,
        &mut faults,
    );
    faults.into_result().map(|()| asked.expect("no fault, so a job"))
}

fn refused(body: &str) -> Vec<(String, ProblemCode)> {
    read(body).expect_err(body).errors.into_iter().map(|f| (f.pointer, f.code)).collect()
}

#[test]
fn a_topic_is_all_it_takes() {
    let asked = read(r#"{"topic":"mail.send"}"#).unwrap();
    assert_eq!(asked.spec, JobSpec::new(Tenant::default(), Topic::parse("mail.send").unwrap()));
    assert!(asked.payload.as_bytes().is_empty());
}

#[test]
fn every_field_is_read() {
    let asked = read(
        r#"{"topic":"t","payload":[1.0,12345678901234567890123],"priority":"critical","labels":{"a":"b"},
            "run_at":"2030-01-01T00:00:00+01:00","start_within_ms":5,"expire_in_ms":60000,"timeout_ms":7,
            "retry":{"max_attempts":3,"backoff":{"initial_ms":10,"factor":1.5,"max_ms":20,"jitter":0}},
            "on_lost_lease":"fail","durability":"replicated",
            "traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#,
    )
    .unwrap();
    let spec = asked.spec;
    assert_eq!(asked.payload.as_bytes(), b"[1.0,12345678901234567890123]");
    assert_eq!(spec.priority, Priority::Critical);
    assert_eq!(spec.labels["a"], "b");
    assert_eq!(spec.run_at, Some(When::At(Time::parse_rfc3339("2029-12-31T23:00:00Z").unwrap())));
    assert_eq!(spec.start_by, Some(When::In(Duration::from_millis(5))));
    assert_eq!(spec.deadline, Some(When::In(Duration::from_secs(60))));
    assert_eq!((spec.timeout_ms, spec.retry.max_attempts), (7, 3));
    assert_eq!(spec.retry.backoff.initial, Duration::from_millis(10));
    assert_eq!((spec.retry.backoff.factor, spec.retry.backoff.jitter), (1.5, 0.0));
    assert_eq!((spec.on_lost_lease, spec.durability), (OnLostLease::Fail, Durability::Replicated));
    assert!(spec.trace.is_some());
}

#[test]
fn null_is_the_same_as_nothing_but_for_a_payload() {
    let asked = read(r#"{"topic":"t","payload":null,"labels":null,"delay_ms":null,"unique":null}"#).unwrap();
    assert_eq!(asked.payload.as_bytes(), b"null");
    assert_eq!(asked.spec.run_at, None);
    assert_eq!(read(r#"{"topic":"t","delay_ms":0}"#).unwrap().spec.run_at, None, "no delay is no delay");
}

#[test]
fn each_wrong_value_is_refused_at_its_place() {
    let rows: &[(&str, &str)] = &[
        (r#"{}"#, "/topic"),
        (r#"{"topic":null}"#, "/topic"),
        (r#"{"topic":1}"#, "/topic"),
        (r#"{"topic":"A b"}"#, "/topic"),
        (r#"{"topic":"a..b"}"#, "/topic"),
        (r#"{"topic":"a\u0000b"}"#, "/topic"),
        (r#"{"topic":"t","priority":"urgent"}"#, "/priority"),
        (r#"{"topic":"t","priority":1}"#, "/priority"),
        (r#"{"topic":"t","labels":[]}"#, "/labels"),
        (r#"{"topic":"t","labels":{"a":1}}"#, "/labels/a"),
        (r#"{"topic":"t","labels":{"a/b":"x\u0000"}}"#, "/labels/a~1b"),
        (r#"{"topic":"t","labels":{"a\u0000":"x"}}"#, "/labels/a\0"),
        (r#"{"topic":"t","labels":{"a":"1","a":"2"}}"#, "/labels/a"),
        (r#"{"topic":"t","requires":{"worker":"bad id!"}}"#, "/requires/worker"),
        (r#"{"topic":"t","delay_ms":-1}"#, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":1.5}"#, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":1e3}"#, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":"5"}"#, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":99999999999999999999999}"#, "/delay_ms"),
        (r#"{"topic":"t","delay_ms":315360000001}"#, "/delay_ms"),
        (r#"{"topic":"t","run_at":"tomorrow"}"#, "/run_at"),
        (r#"{"topic":"t","run_at":"9999-01-01T00:00:00Z"}"#, "/run_at"),
        (r#"{"topic":"t","run_at":5}"#, "/run_at"),
        (r#"{"topic":"t","run_at":"2030-01-01T00:00:00Z","delay_ms":5}"#, "/delay_ms"),
        (r#"{"topic":"t","start_by":"2030-01-01T00:00:00Z","start_within_ms":5}"#, "/start_within_ms"),
        (r#"{"topic":"t","deadline":"2030-01-01T00:00:00Z","expire_in_ms":5}"#, "/expire_in_ms"),
        (r#"{"topic":"t","expire_in_ms":0}"#, "/expire_in_ms"),
        (r#"{"topic":"t","timeout_ms":0}"#, "/timeout_ms"),
        (r#"{"topic":"t","timeout_ms":4294967296}"#, "/timeout_ms"),
        (r#"{"topic":"t","timeout_ms":true}"#, "/timeout_ms"),
        (r#"{"topic":"t","retry":5}"#, "/retry"),
        (r#"{"topic":"t","retry":{"max_attempts":0}}"#, "/retry/max_attempts"),
        (r#"{"topic":"t","retry":{"max_attempts":1001}}"#, "/retry/max_attempts"),
        (r#"{"topic":"t","retry":{"backoff":{"jitter":1.1}}}"#, "/retry/backoff/jitter"),
        (r#"{"topic":"t","retry":{"backoff":{"factor":0.5}}}"#, "/retry/backoff/factor"),
        (r#"{"topic":"t","retry":{"backoff":{"factor":1e999}}}"#, "/retry/backoff/factor"),
        (r#"{"topic":"t","retry":{"backoff":{"initial_ms":-1}}}"#, "/retry/backoff/initial_ms"),
        (r#"{"topic":"t","on_lost_lease":"ignore"}"#, "/on_lost_lease"),
        (r#"{"topic":"t","durability":"tape"}"#, "/durability"),
        (r#"{"topic":"t","traceparent":"00-zz"}"#, "/traceparent"),
    ];
    for (body, pointer) in rows {
        assert_eq!(refused(body), [((*pointer).to_owned(), ProblemCode::InvalidRequest)], "{body}");
    }
}

#[test]
fn what_is_unknown_or_not_built_yet_is_never_ignored() {
    let one = |body: &str, pointer: &str, code| assert_eq!(refused(body), [(pointer.to_owned(), code)], "{body}");
    one(r#"{"topic":"t","prio":"low"}"#, "/prio", ProblemCode::UnknownField);
    one(r#"{"topic":"t","idempotency_key":"k"}"#, "/idempotency_key", ProblemCode::UnknownField);
    one(r#"{"topic":"t","retry":{"times":3}}"#, "/retry/times", ProblemCode::UnknownField);
    one(r#"{"topic":"t","retry":{"backoff":{"base":3}}}"#, "/retry/backoff/base", ProblemCode::UnknownField);
    for name in NOT_YET {
        one(&format!(r#"{{"topic":"t","{name}":{{}}}}"#), &format!("/{name}"), ProblemCode::UnsupportedField);
    }
}

#[test]
fn all_faults_of_a_body_are_listed_at_once() {
    let pointers: Vec<String> = refused(r#"{"topic":"T","priority":9,"delay_ms":-4,"x":1,"unique":{}}"#)
        .into_iter()
        .map(|(pointer, _)| pointer)
        .collect();
    assert_eq!(pointers, ["/topic", "/priority", "/delay_ms", "/unique", "/x"]);
}

#[test]
fn payloads_are_bounded_in_size_and_depth() {
    let large = format!(r#"{{"topic":"t","payload":"{}"}}"#, "x".repeat(MOST_PAYLOAD));
    assert_eq!(refused(&large), [("/payload".to_owned(), ProblemCode::PayloadTooLarge)]);
    assert_eq!(read(&large).unwrap_err().status(), 413);
    let largest = format!(r#"{{"topic":"t","payload":"{}"}}"#, "x".repeat(MOST_PAYLOAD - 2));
    assert_eq!(read(&largest).unwrap().payload.as_bytes().len(), MOST_PAYLOAD);
    let nested = |n: usize| format!(r#"{{"topic":"t","payload":{}{}}}"#, "[".repeat(n), "]".repeat(n));
    assert!(read(&nested(MOST_DEPTH)).is_ok());
    assert_eq!(refused(&nested(MOST_DEPTH + 1)), [("/payload".to_owned(), ProblemCode::InvalidRequest)]);
    assert_eq!(refused(&nested(200_000)).len(), 1, "no stack is harmed");
    let deep_label = format!(r#"{{"topic":"t","labels":{}{}}}"#, "[".repeat(90_000), "]".repeat(90_000));
    assert_eq!(refused(&deep_label), [("/labels".to_owned(), ProblemCode::InvalidRequest)]);
}

#[test]
fn ten_thousand_labels_are_refused_once() {
    let labels: Vec<String> = (0..10_000).map(|i| format!(r#""l{i}":"v""#)).collect();
    let body = format!(r#"{{"topic":"t","labels":{{{}}}}}"#, labels.join(","));
    assert_eq!(refused(&body), [("/labels".to_owned(), ProblemCode::InvalidRequest)]);
}

#[test]
fn the_hash_is_that_of_the_request_whatever_its_spelling() {
    let hash = |body: &str| read(body).unwrap().hash;
    let one = hash(r#"{"topic":"t","payload":{"a":1,"b":2}}"#);
    assert_eq!(one, hash(r#"{ "payload": {"b":2, "a":1}, "topic":"\u0074" }"#));
    assert_ne!(one, hash(r#"{"topic":"t","payload":{"a":1.0,"b":2}}"#));
    assert_ne!(one, hash(r#"{"topic":"t","payload":{"a":1,"b":2},"priority":"normal"}"#));
}

#[test]
fn an_items_own_key_is_not_part_of_its_hash() {
    let read = |body: &str, place| {
        let body = Bytes::from(body.to_owned());
        let mut faults = Faults::default();
        let object = Object::from_body(&body).unwrap();
        read_job(
            &body,
            object,
            &Tenant::default(),
            &|topic| Ok(JobSpec::new(Tenant::default(), topic)),
            place,
            true,
            &mut faults,
        )
        .unwrap()
    };
    let in_batch = read(r#"{"topic":"t","idempotency_key":"k"}"#, Place::InBatch);
    assert_eq!(in_batch.key.as_deref(), Some("k"));
    assert_eq!(in_batch.hash, read(r#"{"topic":"t"}"#, Place::Alone).hash);
}

#[test]
fn idempotency_keys_come_bare_or_quoted() {
    assert_eq!(read_key("k-1"), Ok("k-1"));
    assert_eq!(read_key("\"k-1\""), Ok("k-1"));
    for bad in ["", "\"\"", "\"k", " k", "k\t", "k\0", "ü", &"x".repeat(257)] {
        assert!(read_key(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_retry_may_change_payload_topic_and_priority_only() {
    let read = |body: &'static str| {
        let mut faults = Faults::default();
        let overrides = read_overrides(&Bytes::from_static(body.as_bytes()), &mut faults)?;
        faults.into_result().map(|()| overrides)
    };
    let none = read("").unwrap();
    assert!(none.payload.is_none() && none.topic.is_none() && none.priority.is_none());
    assert_eq!(none.hash, read(" {} ").unwrap().hash);
    let some = read(r#"{"payload":7,"topic":"u","priority":"low"}"#).unwrap();
    assert_eq!(some.payload.unwrap().as_bytes(), b"7");
    assert_eq!((some.topic.unwrap().as_str(), some.priority), ("u", Some(Priority::Low)));
    assert_ne!(none.hash, some.hash);
    assert_eq!(read(r#"{"labels":{}}"#).unwrap_err().code, ProblemCode::UnknownField);
}
