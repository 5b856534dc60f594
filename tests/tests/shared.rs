//! Shared topics: workers for the jobs of all tenants, and no tenant starves another. Two of each service.
//! `promises/sharing.rs` changes the setting under load.

use std::{collections::HashSet, time::Duration};

use muster_testkit::until;
use muster_tests::{Answer, Executions, Options, Probe, Setup, Stack, WorkerProcess};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

async fn tell(gateway: &Probe, topic: &str, body: Value) -> Answer {
    let path = format!("/api/v1/topics/{topic}");
    gateway.send(Method::PUT, &path, &[], Some(body.to_string().into_bytes())).await.expect("an answer")
}

fn crew(name: &str, topic: &str, slots: usize) -> Setup {
    Setup { slots, all_tenants: true, ..Setup::new(name, topic) }
}

#[tokio::test]
async fn a_tenant_s_first_jobs_start_next_to_the_thousands_of_another() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    assert_eq!(tell(&gateway, "t", json!({"shared": true})).await.status, 200);
    let (flood, guest) = (gateway.for_tenant("flood"), gateway.for_tenant("guest"));
    let runs = Executions::default();
    // Slow enough that few start while a busy machine tells the workers about the guest.
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(payload)
    };
    let many = flood.submit_many(1000, &json!({"topic": "t", "payload": 1})).await;
    let _crew = ["w1", "w2"].map(|name| runs.worker(&stack, crew(name, "t", 2), work));
    runs.reach(40, SOON).await;
    let few = guest.submit_many(40, &json!({"topic": "t", "payload": 2})).await;
    let submitted = runs.all().len();
    for id in &few {
        assert_eq!(guest.ended(id, SOON).await["state"], "succeeded");
    }
    // In the order of the starts: from the guest's first job until its last, about every other start is the guest's.
    let all = runs.all();
    let theirs: HashSet<&String> = few.iter().collect();
    let first = all.iter().position(|run| theirs.contains(&run.job)).expect("they ran");
    let last = all.iter().rposition(|run| theirs.contains(&run.job)).expect("they ran");
    let (before, between) = (first.saturating_sub(submitted), last + 1 - first);
    eprintln!("{before} starts before its first, {between} until its last, {} in all", all.len());
    assert!(between <= 140, "40 jobs had their turn among {between} starts, after {submitted}");
    // The workers learn about the line a moment later, which is some more starts on a busy machine.
    assert!(before <= 400 && all.len() < 900, "long before the flood was over: {before} of {}", all.len());
    // Only a job's own tenant sees it.
    assert_eq!(flood.get(&format!("/jobs/{}", few[0])).await.status, 404);
    assert_eq!(guest.get(&format!("/jobs/{}", many[0])).await.status, 404);
    for id in &many {
        let job = flood.ended(id, Duration::from_secs(120)).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
}

#[tokio::test]
async fn where_one_slot_is_all_there_is_tenants_take_turns() {
    let stack = Stack::with(Options::two()).await;
    let gateway = stack.gateway(1);
    assert_eq!(tell(&gateway, "t", json!({"shared": true})).await.status, 200);
    let runs = Executions::default();
    // Longer than a worker keeps an offer that it cannot start: an offer that is pulled in vain goes back.
    let work = |_, payload: Value| async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(payload)
    };
    for flood in ["flood-a", "flood-b", "flood-c"] {
        gateway.for_tenant(flood).submit_many(60, &json!({"topic": "t"})).await;
    }
    let _crew = runs.worker(&stack, crew("w1", "t", 1), work);
    runs.reach(4, SOON).await;
    let guest = gateway.for_tenant("guest");
    let few = guest.submit_many(5, &json!({"topic": "t"})).await;
    let submitted = runs.all().len();
    for id in &few {
        guest.ended(id, SOON).await;
    }
    let all = runs.all();
    let first = all.iter().position(|run| few.contains(&run.job)).expect("they ran");
    let last = all.iter().rposition(|run| few.contains(&run.job)).expect("they ran");
    let (before, between) = (first.saturating_sub(submitted), last + 1 - first);
    eprintln!("{before} starts before its first, {between} until its last");
    // Four tenants take turns: from the first job of one to its fifth are seventeen starts. The workers learn about
    // it a few starts later, or some more on a busy machine; there are 180 jobs of the others.
    assert!(between <= 23 && before <= 40, "five turns took {between} starts after {before} others");
}

#[tokio::test]
async fn a_crew_of_all_tenants_takes_what_is_shared_and_nothing_else() {
    let stack = Stack::with(Options::two()).await;
    let (one, two) = (stack.gateway(1), stack.gateway(2));
    let acme = two.for_tenant("acme");
    let runs = Executions::default();
    let _crew = runs.worker(&stack, crew("w1", "t", 4), |_, payload| async move { Ok(payload) });
    let gpu = json!({"topic": "t", "requires": {"gpu": "a100"}});
    let (private, needs) = (acme.submit(json!({"topic": "t"})).await, acme.submit(gpu).await);
    // The worker takes the jobs of its own tenant as before.
    let own = one.submit(json!({"topic": "t"})).await;
    assert_eq!(one.ended(&own, SOON).await["state"], "succeeded");
    acme.reaches(&private, "dispatched", SOON).await;
    let shown = until(SOON, "the worker to be shown", async || {
        Some(one.get("/workers").await).filter(|shown| shown.body["items"][0]["id"] == "w1")
    })
    .await;
    assert_eq!(shown.body["items"][0]["all_tenants"], true, "{}", shown.text);
    assert_eq!(acme.get("/workers").await.body["items"], json!([]), "another tenant's worker");
    let why = acme.get(&format!("/jobs/{private}/explain")).await;
    assert_eq!(why.body["workers"]["live"], 0, "{}", why.text);
    assert_eq!(acme.job(&private).await["state"], "dispatched", "not shared");

    // Only a key for all tenants may share a topic, and only the topic of the default tenant.
    let key = |tenant: &str| json!({"name": "k", "tenant": tenant, "scopes": ["admin", "read"]});
    let tenants_own = one.post("/keys", &key("default")).await.body["key"].as_str().unwrap().to_owned();
    let tenants_own = one.with_key(Some(&tenants_own));
    let refused = tell(&tenants_own, "t", json!({"shared": true})).await;
    assert_eq!((refused.status.as_u16(), &refused.body["code"]), (403, &json!("missing_scope")), "{}", refused.text);
    let refused = tell(&acme, "t", json!({"shared": true})).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.body["errors"][0]["pointer"]),
        (422, &json!("/shared")),
        "{}",
        refused.text
    );
    let shared = tell(&one, "t", json!({"shared": true})).await;
    assert_eq!((shared.status.as_u16(), &shared.body["shared"]), (200, &json!(true)), "{}", shared.text);
    assert_eq!(tell(&tenants_own, "t", json!({})).await.status, 403, "nor take it back");
    assert_eq!(tell(&tenants_own, "t", json!({"shared": true, "max_backlog": 9})).await.status, 200);
    assert_eq!(tell(&acme, "t", json!({"max_backlog": 9})).await.status, 200, "the rest is each tenant's own");

    assert_eq!(acme.ended(&private, SOON).await["worker"], "w1");
    // Requirements of a job apply here too, and a tenant's own workers continue beside the shared ones.
    let able = Setup { provides: vec![("gpu".into(), "a100".into())], ..crew("w2", "t", 1) };
    let _able = runs.worker(&stack, able, |_, payload| async move { Ok(payload) });
    assert_eq!(acme.ended(&needs, SOON).await["worker"], "w2");
    let mut theirs =
        WorkerProcess::start(&stack, &["--topic", "t", "--tenant", "acme", "--id", "own", "--builtin", "echo"]);
    until(SOON, "both to have worked", async || {
        let id = acme.submit(json!({"topic": "t"})).await;
        (acme.ended(&id, SOON).await["worker"] == "own").then_some(())
    })
    .await;
    theirs.kill9();

    // A shared worker from the command line.
    let mut crew =
        WorkerProcess::start(&stack, &["--topic", "cli", "--all-tenants", "--id", "crew", "--builtin", "echo"]);
    assert_eq!(tell(&one, "cli", json!({"shared": true})).await.status, 200);
    let first = acme.submit(json!({"topic": "cli"})).await;
    assert_eq!(acme.ended(&first, SOON).await["worker"], "crew");
    assert!(crew.is_alive());
}
