//! A topic becomes shared, and stops being shared, while its jobs run: no job is lost, none runs twice, and a worker
//! that may no longer take a job leaves it alone.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use muster_testkit::until;
use muster_tests::{Executions, Options, Probe, Setup, Stack};
use reqwest::Method;
use serde_json::{Value, json};

use crate::SOON;

fn crew(name: &str) -> Setup {
    Setup { slots: 8, all_tenants: true, ..Setup::new(name, "t") }
}

/// Long enough that a worker that pulls from a line has asked many times.
const UNTOUCHED: Duration = Duration::from_secs(5);

/// Submits a job. Returns its id if no worker takes it: it is offered, and stays so for a while. `None` if a worker
/// took it.
async fn left_alone(tenant: &Probe, job: &Value) -> Option<String> {
    let id = tenant.submit(job.clone()).await;
    let since = Instant::now();
    until(SOON, "it to be taken, or not", async || {
        let state = tenant.job(&id).await["state"].as_str().map(str::to_owned);
        let taken = !["pending", "queued", "dispatched"].contains(&state.as_deref()?);
        (taken || since.elapsed() > UNTOUCHED).then_some(!taken)
    })
    .await
    .then_some(id)
}

#[tokio::test]
async fn a_topic_that_is_shared_and_no_longer_shared_under_load_loses_no_job_and_repeats_none() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let runs = Executions::default();
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok(payload)
    };
    // One tenant has a worker of its own, one has none, and only one shared worker provides what the latter requires.
    let able = Setup { provides: vec![("gpu".into(), "a100".into())], ..crew("crew-2") };
    let own = Setup { tenant: "acme".into(), ..Setup::new("own", "t") };
    let _workers = [crew("crew-1"), able, own].map(|setup| runs.worker(&stack, setup, work));
    let tenants = ["default", "acme", "bare"].map(|name| two.for_tenant(name));
    let (plain, gpu) = (
        json!({"topic": "t", "retry": {"max_attempts": 1}}),
        json!({"topic": "t", "retry": {"max_attempts": 1}, "requires": {"gpu": "a100"}}),
    );
    let mut ids: Vec<(usize, String)> = Vec::new();
    let share = async |yes: bool| {
        let body = Some(json!({"shared": yes}).to_string().into_bytes());
        let answer = one.send(Method::PUT, "/api/v1/topics/t", &[], body).await.expect("an answer");
        assert_eq!((answer.status.as_u16(), answer.body["shared"] == true), (200, yes), "{}", answer.text);
    };
    let of_the_crew = |ids: &[(usize, String)]| {
        let of: HashMap<&str, usize> = ids.iter().map(|(tenant, id)| (id.as_str(), *tenant)).collect();
        let by_crew = runs.all().into_iter().filter(|run| run.worker.starts_with("crew"));
        by_crew.filter(|run| of.get(run.job.as_str()).is_some_and(|tenant| *tenant > 0)).count()
    };
    for round in 0..6 {
        let begun = runs.all().len();
        for (n, tenant) in tenants.iter().enumerate() {
            ids.extend(tenant.submit_many(80, &plain).await.into_iter().map(|id| (n, id)));
        }
        ids.extend(tenants[2].submit_many(20, &gpu).await.into_iter().map(|id| (2, id)));
        // Change the setting in the middle of it, back and forth.
        share(round % 2 == 0).await;
        if round == 3 {
            stack.kill9("scheduler-1");
        }
        runs.reach(begun + 30, SOON).await;
        if round % 2 == 0 {
            // One more job that no other worker can take: a shared worker that still had the line may have emptied
            // it.
            let of_others = of_the_crew(&ids);
            ids.push((2, tenants[2].submit(plain.clone()).await));
            until(SOON, "the crew to take the jobs of others", async || (of_the_crew(&ids) > of_others).then_some(()))
                .await;
        }
    }

    // No tenant has a backlog left, so jobs from here on are offered at once.
    share(true).await;
    for (tenant, id) in &ids {
        tenants[*tenant].ended(id, SOON).await;
    }
    share(false).await;

    // No longer shared: a shared worker drops a line that it gets no more notices of, and the job waits.
    let waits =
        until(SOON, "the crew to leave another tenant's job alone", async || left_alone(&tenants[2], &plain).await)
            .await;
    // The worker drops one line after the other, so perhaps this one a moment later.
    until(SOON, "a tenant's own worker to go on", async || {
        let id = tenants[1].submit(plain.clone()).await;
        let by = tenants[1].ended(&id, SOON).await["worker"].clone();
        ids.push((1, id));
        (by == "own").then_some(())
    })
    .await;
    let crews = one.submit(plain.clone()).await;
    let by = one.ended(&crews, SOON).await["worker"].as_str().map(str::to_owned);
    assert!(by.is_some_and(|by| by.starts_with("crew")), "and so does the crew with its own tenant's jobs");
    let why = tenants[2].get(&format!("/jobs/{waits}/explain")).await;
    assert_eq!((&why.body["state"], &why.body["workers"]["live"]), (&json!("dispatched"), &json!(0)), "{}", why.text);

    // Shared again: the job is taken at once.
    let shared = Instant::now();
    share(true).await;
    let job = tenants[2].ended(&waits, SOON).await;
    assert!(job["worker"].as_str().is_some_and(|by| by.starts_with("crew")), "{job}");
    assert!(shared.elapsed() < Duration::from_secs(25), "taken after {:?}", shared.elapsed());

    ids.extend([(2, waits), (0, crews)]);
    for (tenant, id) in &ids {
        let job = tenants[*tenant].ended(id, SOON).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    let counts = runs.counts();
    let again: Vec<_> = counts.iter().filter(|(_, n)| **n != 1).collect();
    assert!(again.is_empty() && ids.iter().all(|(_, id)| counts.contains_key(id)), "each ran once: {again:?}");
    let store = stack.store().await;
    until(SOON, "every home to be gone", async || (store.count_homes().await == Ok(0)).then_some(())).await;
}
