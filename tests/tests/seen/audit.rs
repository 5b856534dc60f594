//! The audit log as people and auditors see it: each retry once, whichever process dies and however many schedulers
//! act; every administrative act; only a tenant's own entries; a chain that shows where it was changed; an export
//! that loses nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_bus::ConsumerSpec;
use muster_domain::Time;
use muster_sdk::HandlerError;
use muster_store::DeadMessage;
use muster_testkit::{bin, until};
use muster_tests::{Executions, Options, Probe, Setup, Stack, by_hand::bus_of};
use muster_wire::Body;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(150);

async fn redis(stack: &Stack, args: &[&str]) -> String {
    let output = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(args).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Every entry that a query returns, newest first.
async fn audit(gateway: &Probe, query: &str) -> Vec<Value> {
    let (mut entries, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = gateway.get(&format!("/audit?limit=100&{query}{cursor}")).await;
        assert_eq!(page.status, 200, "{}", page.text);
        entries.extend(page.body["items"].as_array().unwrap().iter().cloned());
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return entries,
        }
    }
}

async fn is_valid(gateway: &Probe) -> Value {
    let verdict = gateway.get("/audit/verify").await;
    assert_eq!(verdict.status, 200, "{}", verdict.text);
    assert_eq!((&verdict.body["valid"], &verdict.body["complete"]), (&json!(true), &json!(true)), "{}", verdict.text);
    verdict.body
}

#[tokio::test]
async fn each_retry_is_one_entry_though_three_sweep_and_some_die() {
    let folder = tempfile::tempdir().unwrap();
    let once = |name: &str| format!("{name}=kill:{}", folder.path().join(name).display());
    let deaths = [once("wake.after_apply"), once("wake.after_audit")].join(";");
    let options = Options { replicas: 3, ..Options::default() };
    let stack = Stack::with(options.env("MUSTER_FAILPOINTS", deaths).env("MUSTER_OUTAGE_WAIT", "1s")).await;
    let (gateway, runs) = (stack.gateway(1), Executions::default());
    let _worker = runs.worker(&stack, Setup::new("w1", "flaky"), |_, _: Value| async move {
        Err::<Value, _>(HandlerError::retryable("not yet"))
    });
    let retry = json!({"max_attempts": 3, "backoff": {"initial_ms": 200, "jitter": 0}});
    let job = json!({"topic": "flaky", "retry": retry});
    let jobs = gateway.submit_many(30, &job).await;
    // The leader loses its lock again and again, and continues for a while: the others lead too.
    let robbed = async {
        loop {
            redis(&stack, &["DEL", "muster:reconciler:default"]).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let ended = async {
        for id in &jobs {
            assert_eq!(gateway.ended(id, LONG).await["state"], "failed");
        }
    };
    tokio::select! {
        () = robbed => {}
        () = ended => {}
    }
    for name in ["wake.after_apply", "wake.after_audit"] {
        assert!(folder.path().join(name).exists(), "nobody died at {name}: are failpoints built in?");
    }

    let retries = audit(&gateway, "action=job_retry").await;
    let mut of: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for entry in &retries {
        of.entry(entry["job_id"].as_str().unwrap()).or_default().push(entry);
    }
    for id in &jobs {
        let told = of.get(id.as_str()).map(Vec::as_slice).unwrap_or_default();
        let attempts: Vec<u64> = told.iter().rev().map(|entry| entry["attempt"].as_u64().unwrap()).collect();
        assert_eq!(attempts, [1, 2], "{id}: {told:?}");
        // Each entry has the version that the retry led to, as in the job's history.
        let story = gateway.history(id).await;
        let lines = story["transitions"].as_array().unwrap();
        let at = |entry: &Value| entry["id"].as_str().unwrap().rsplit(':').next().unwrap().parse::<usize>().unwrap();
        for entry in told {
            let line = &lines[at(entry) - 1];
            assert_eq!((&line["event"], &line["state"]), (&json!("wake"), &json!("pending")), "{entry} {story}");
            assert_eq!(line["at"], entry["at"]);
            let expected = json!(["system", "system", "retrying", "pending", 3, "default"]);
            let names = ["actor", "actor_type", "old_status", "new_status", "max_attempts", "tenant"];
            assert_eq!(Value::from_iter(names.map(|name| entry[name].clone())), expected, "{entry}");
        }
    }
    assert_eq!(retries.len(), 2 * jobs.len());
    is_valid(&gateway).await;
}

#[tokio::test]
async fn healthy_jobs_leave_no_trace_and_people_do() {
    let folder = tempfile::tempdir().unwrap();
    let asleep = folder.path().join("relay");
    std::fs::write(&asleep, "").unwrap();
    let death = format!("audit.before_confirm=kill:{}", asleep.display());
    let options = Options::two().env("AUDIT_TRANSPORT", "nats").env("MUSTER_FAILPOINTS", death);
    let stack = Stack::with(options).await;
    let (one, runs) = (stack.gateway(1), Executions::default());
    let _worker = runs.echo(&stack, "w1", "good");
    for id in one.submit_many(50, &json!({"topic": "good", "payload": 1})).await {
        one.ended(&id, SOON).await;
    }
    assert_eq!(audit(&one, "").await, Vec::<Value>::new(), "a healthy job costs the log nothing");

    // Keys, and jobs that are cancelled, retried and deleted; alone and in bulk.
    let made = one
        .post("/keys", &json!({"name": "ops", "tenant": "acme", "scopes": ["submit", "read", "control", "admin"]}))
        .await;
    assert_eq!(made.status, 201, "{}", made.text);
    let (key_id, secret) = (made.id(), made.body["key"].as_str().unwrap().to_owned());
    let acme = one.with_key(Some(&secret));
    let job = acme.submit(json!({"topic": "later", "delay_ms": 3_600_000})).await;
    assert_eq!(acme.post(&format!("/jobs/{job}/cancel"), &json!({"reason": "no more"})).await.status, 200);
    assert_eq!(
        acme.post(&format!("/jobs/{job}/cancel"), &json!({})).await.status,
        200,
        "again, without a second entry"
    );
    let again = acme.post(&format!("/jobs/{job}/retry"), &json!({})).await;
    assert_eq!(again.status, 202, "{}", again.text);
    assert_eq!(acme.send(Method::DELETE, &format!("/api/v1/jobs/{job}"), &[], None).await.unwrap().status, 204);
    let bulk = acme.post("/jobs/bulk", &json!({"action": "cancel", "filter": {"topic": "later"}})).await;
    assert_eq!(bulk.status, 202, "{}", bulk.text);
    acme.reaches(&again.id(), "cancelled", SOON).await;

    let told = |entries: &[Value]| {
        let word = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let row = |entry: &Value| (word(entry, "action"), word(entry, "actor"), word(entry, "job_id"));
        entries.iter().rev().map(row).collect::<Vec<_>>()
    };
    let row = |action: &str, actor: &str, job: &str| (action.to_owned(), actor.to_owned(), job.to_owned());
    let own = audit(&acme, "").await;
    let expected = [
        row("key_create", "bootstrap", ""),
        row("job_cancel", &key_id, &job),
        row("job_retry_by_hand", &key_id, &job),
        row("job_delete", &key_id, &job),
        row("bulk_start", &key_id, ""),
        row("job_cancel", &key_id, &again.id()),
    ];
    assert_eq!(told(&own), expected);
    assert_eq!(
        (own[5]["actor_type"].as_str(), own[5]["target"].as_str()),
        (Some("key"), Some(&*format!("key/{key_id}")))
    );
    assert!(!json!(own).to_string().contains(secret.rsplit('_').next().unwrap()), "never a secret");
    assert_eq!(told(&audit(&acme, &format!("job_id={job}")).await), expected[1..4]);
    assert_eq!(told(&audit(&acme, "actor=bootstrap").await), expected[..1]);

    // A tenant's key may not read entries about the whole fleet, or of another tenant.
    for path in ["/audit/verify", "/replicas", "/loops", "/locks"] {
        let refused = acme.get(path).await;
        assert_eq!(refused.status, 403, "{path}");
        assert_eq!(refused.body["code"], "missing_scope", "{path}");
        assert_eq!(one.get(path).await.status, 200, "{path}");
    }
    one.post("/keys", &json!({"name": "x", "tenant": "other", "scopes": ["read"]})).await;
    assert_eq!(audit(&acme, "").await.len(), 6);
    assert_eq!(acme.get("/audit?tenant=other").await.status, 422);
    assert_eq!(audit(&one, "").await.len(), 7);
    assert_eq!(audit(&one, "tenant=other").await.len(), 1);
    assert_eq!(audit(&one.for_tenant("acme"), "").await.len(), 6);
    assert_eq!(one.get("/audit?cursor=x").await.status, 422);
    let verdict = is_valid(&one).await;
    assert_eq!((&verdict["checked"], &verdict["last"]), (&json!(7), &json!(7)));

    exported_whoever_died(&stack, &one, &asleep).await;
    tampered(&stack, &one).await;
}

/// A gateway died after it had published an entry and before it could confirm it; exporters miss nothing.
async fn exported_whoever_died(stack: &Stack, gateway: &Probe, died: &std::path::Path) {
    std::fs::remove_file(died).unwrap();
    let made = gateway.post("/keys", &json!({"name": "y", "tenant": "other", "scopes": ["read"]})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let bus = bus_of(stack, "exporter").await;
    let consumer = bus.consumer(ConsumerSpec::audit_exporters()).await.unwrap();
    let mut got = BTreeMap::new();
    until(LONG, "every entry to be exported, and a relay to have died", async || {
        for delivery in consumer.fetch(100, Duration::from_secs(1)).await.unwrap_or_default() {
            let Body::Audit(entry) = &delivery.body else { panic!("something else on the subject") };
            got.insert(entry.number, entry.clone());
            delivery.receipt.ack().await;
        }
        (got.len() == 8 && died.exists()).then_some(())
    })
    .await;
    until(SOON, "the gateway to be up again", async || {
        let answer = gateway.send(Method::GET, "/readyz", &[], None).await.ok()?;
        (answer.status == 200 && !answer.text.contains("degraded")).then_some(())
    })
    .await;
    for entry in audit(gateway, "").await {
        let copy = &got[&entry["number"].as_u64().unwrap()];
        assert_eq!(
            (copy.id.as_str(), copy.hash.as_str()),
            (entry["id"].as_str().unwrap(), entry["hash"].as_str().unwrap())
        );
        let act: Value = serde_json::from_str(&copy.body).unwrap();
        assert_eq!(act["action"], entry["action"]);
    }
    let groups = || redis(stack, &["XPENDING", "muster:audit", "export"]);
    until(SOON, "all to be confirmed", async || groups().await.starts_with('0').then_some(())).await;
}

/// Changes history: one word of the fourth entry.
async fn tampered(stack: &Stack, gateway: &Probe) {
    let cli = async |args: &[&str]| {
        let stack = stack.folder().join("stack.json");
        Command::new(bin("muster")).arg("--state-file").arg(stack).args(args).output().await.unwrap()
    };
    let before = cli(&["audit", "verify"]).await;
    assert!(before.status.success(), "{before:?}");
    let listed = cli(&["audit", "list", "--action", "key_create", "-o", "json"]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
    let script = "local all = redis.call('XRANGE', KEYS[1], '-', '+') redis.call('XTRIM', KEYS[1], 'MAXLEN', 0) \
        for n, e in ipairs(all) do if n == 4 then e[2][10] = string.gsub(e[2][10], 'job_delete', 'job_cancel') end \
        redis.call('XADD', KEYS[1], '*', unpack(e[2])) end return #all";
    assert_eq!(redis(stack, &["EVAL", script, "1", "muster:audit"]).await, "8");
    let verdict = gateway.get("/audit/verify").await.body;
    assert_eq!((&verdict["valid"], &verdict["broken"]["number"]), (&json!(false), &json!(4)), "{verdict}");
    assert!(verdict["broken"]["reason"].as_str().unwrap().contains("changed"), "{verdict}");
    let after = cli(&["audit", "verify"]).await;
    let said = String::from_utf8_lossy(&after.stderr).into_owned();
    assert_eq!(after.status.code(), Some(1), "{said}");
    assert!(said.contains("number 4") && said.contains(verdict["broken"]["id"].as_str().unwrap()), "{said}");
}

/// Routes that change something and write no entry, and why.
const UNTOLD: [(&str, &str); 10] = [
    ("post /api/v1/jobs", "a job's own record says who submitted it and when"),
    ("post /api/v1/jobs/batch", "the same"),
    ("post /api/v1/worker/lease", "the job's history tells what its worker does"),
    ("post /api/v1/worker/extend", "the same"),
    ("post /api/v1/worker/complete", "the same"),
    ("post /api/v1/worker/fail", "the same"),
    ("post /api/v1/worker/release", "the same"),
    ("post /api/v1/workflows/validate", "it stores nothing"),
    ("post /api/v1/workflows/{name}/runs", "the run itself says who started it and when"),
    ("post /api/v1/runs/{id}/signals/{name}", "the timeline of the run says it"),
];

#[tokio::test]
async fn every_route_that_changes_something_leaves_an_entry() {
    let stack = Stack::start().await;
    let (gateway, runs) = (stack.gateway(1), Executions::default());
    let _worker = runs.echo(&stack, "w1", "told");
    let document = gateway.send(Method::GET, "/openapi.json", &[], None).await.unwrap().body;
    let routes = document["paths"].as_object().unwrap().iter().flat_map(|(path, ways)| {
        let ways = ways.as_object().unwrap().keys().filter(|way| *way != "get");
        ways.map(move |way| format!("{way} {path}"))
    });
    let routes: BTreeSet<String> = routes.collect();
    assert!(UNTOLD.iter().all(|(route, _)| routes.contains(*route)), "each exception is a route");
    until(SOON, "the worker to be seen", async || gateway.get("/workers").await.text.contains("\"w1\"").then_some(()))
        .await;

    // Objects for each of the routes to act on.
    let later = json!({"topic": "told", "delay_ms": 3_600_000});
    let over = async || {
        let id = gateway.submit(json!({"topic": "told", "payload": 1})).await;
        gateway.ended(&id, SOON).await;
        id
    };
    let message = async || {
        let (id, at) = ("1800000000000000000-7".to_owned(), Time(1_800_000_000_000_000));
        let original = vec![1].into();
        let message = DeadMessage { id: id.clone(), subject: "s".into(), reason: "odd".into(), original, at };
        stack.store().await.add_dead_message(&message).await.unwrap();
        id
    };
    let key = async || gateway.post("/keys", &json!({"name": "k", "scopes": ["read"]})).await.id();
    let none = Value::Null;
    let workflow = json!({"steps": [{"id": "a", "job": {"topic": "told"}}]});
    let put_workflow = async |name: &str| {
        let body = Some(workflow.to_string().into_bytes());
        let answer = gateway.send(Method::PUT, &format!("/api/v1/workflows/{name}"), &[], body).await.unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text);
    };
    // A run that waits for a signal, with a step before it that can be undone.
    let run = async || {
        let undo = json!({"job": {"topic": "told"}});
        let steps = json!([
            {"id": "a", "job": {"topic": "told"}, "compensate": undo},
            {"id": "w", "needs": ["a"], "wait_signal": {"name": "go"}},
        ]);
        let body = Some(json!({"steps": steps}).to_string().into_bytes());
        let put = gateway.send(Method::PUT, "/api/v1/workflows/waits", &[], body).await.unwrap();
        assert!(put.status.is_success(), "{}", put.text);
        let id = gateway.post("/workflows/waits/runs", &json!({})).await.id();
        until(SOON, "the run to wait", async || {
            let run = gateway.get(&format!("/runs/{id}")).await.body;
            (run["steps"][1]["state"] == "running").then_some(())
        })
        .await;
        id
    };
    let ended_run = async || {
        let id = run().await;
        let asked = gateway.post(&format!("/runs/{id}/cancel"), &json!({"compensate": false})).await;
        assert_eq!(asked.status, 200, "{}", asked.text);
        assert_eq!(gateway.get(&format!("/runs/{id}?wait_ms=30000")).await.body["state"], "cancelled");
        id
    };
    let slow = {
        gateway.submit_many(300, &json!({"topic": "slow", "delay_ms": 3_600_000})).await;
        let asked = json!({"action": "cancel", "filter": {"topic": "slow"}, "rate_per_s": 1});
        gateway.post("/jobs/bulk", &asked).await.id()
    };
    let ended = over().await;
    for route in routes.iter().filter(|route| UNTOLD.iter().all(|(untold, _)| untold != route)) {
        let (id, body, action) = match route.as_str() {
            "post /api/v1/jobs/{id}/cancel" => (gateway.submit(later.clone()).await, json!({}), "job_cancel"),
            "post /api/v1/jobs/{id}/retry" => (over().await, json!({}), "job_retry_by_hand"),
            "delete /api/v1/jobs/{id}" => (over().await, none.clone(), "job_delete"),
            "post /api/v1/jobs/bulk" => {
                (String::new(), json!({"action": "cancel", "filter": {"topic": "nobody"}}), "bulk_start")
            }
            "post /api/v1/operations/{id}/cancel" => (slow.clone(), json!({}), "bulk_cancel"),
            "delete /api/v1/dlq/messages/{id}" => (message().await, none.clone(), "message_delete"),
            "put /api/v1/topics/{topic}" => ("told".into(), json!({"max_backlog": 9}), "topic_set"),
            "post /api/v1/topics/{topic}/pause" => ("told".into(), json!({}), "topic_pause"),
            "post /api/v1/topics/{topic}/resume" => ("told".into(), none.clone(), "topic_resume"),
            "post /api/v1/workers/{id}/drain" => ("w1".into(), none.clone(), "worker_drain"),
            "put /api/v1/workflows/{name}" => ("order".into(), workflow.clone(), "workflow_set"),
            "delete /api/v1/workflows/{name}" => {
                put_workflow("letter").await;
                ("letter".into(), none.clone(), "workflow_delete")
            }
            "post /api/v1/runs/bulk" => {
                (String::new(), json!({"action": "pause", "filter": {"workflow": "nobody"}}), "bulk_start")
            }
            "post /api/v1/runs/{id}/cancel" => (run().await, json!({}), "run_cancel"),
            "post /api/v1/runs/{id}/pause" => (run().await, none.clone(), "run_pause"),
            "post /api/v1/runs/{id}/resume" => {
                let id = run().await;
                assert_eq!(gateway.post(&format!("/runs/{id}/pause"), &json!({})).await.status, 200);
                (id, none.clone(), "run_resume")
            }
            "post /api/v1/runs/{id}/steps/{step}/complete" => (run().await, json!({}), "run_step_complete"),
            "post /api/v1/runs/{id}/steps/{step}/skip" => (run().await, json!({}), "run_step_skip"),
            "post /api/v1/runs/{id}/compensate" => (ended_run().await, none.clone(), "run_compensate"),
            "post /api/v1/runs/{id}/rerun" => (ended_run().await, json!({"from": "w"}), "run_rerun"),
            "put /api/v1/config" => (String::new(), json!({}), "config_set"),
            "post /api/v1/keys" => (String::new(), json!({"name": "k", "scopes": ["read"]}), "key_create"),
            "delete /api/v1/keys/{id}" => (key().await, none.clone(), "key_delete"),
            "post /api/v1/keys/{id}/rotate" => (key().await, json!({}), "key_rotate"),
            other => panic!("{other} changes something: which entry does it leave? Or say why none, in UNTOLD"),
        };
        let (way, path) = route.split_once(' ').unwrap();
        let path = path.replace("{id}", &id).replace("{topic}", &id).replace("{name}", &id).replace("{step}", "w");
        // Only entries about this object: the slow operation keeps writing entries of its own.
        let told = async || {
            let mut entries = audit(&gateway, &format!("action={action}")).await;
            entries.retain(|entry| {
                let names = [entry["job_id"].as_str(), entry["target"].as_str()];
                names.iter().flatten().any(|name| name.contains(&id))
            });
            entries
        };
        let before = told().await.len();
        let body = (!body.is_null()).then(|| body.to_string().into_bytes());
        let way = Method::from_bytes(way.to_uppercase().as_bytes()).unwrap();
        let answer = gateway.send(way, &path, &[], body).await.unwrap();
        assert!(answer.status.is_success(), "{route}: {}", answer.text);
        let entries = told().await;
        assert_eq!(entries.len(), before + 1, "{route} leaves one entry that says to what");
        let entry = &entries[0];
        assert_eq!((&entry["actor"], &entry["actor_type"]), (&json!("bootstrap"), &json!("key")), "{entry}");
    }
    until(SOON, "the slow operation to stop", async || {
        (gateway.get(&format!("/operations/{slow}")).await.body["done"] == json!(true)).then_some(())
    })
    .await;

    // A refused act was not carried out, and has no entry.
    let all = audit(&gateway, "").await.len();
    let made = gateway.post("/keys", &json!({"scopes": ["submit", "read", "control"], "topics": ["told"]})).await;
    let narrow = gateway.with_key(made.body["key"].as_str());
    let elsewhere = narrow.post(&format!("/jobs/{ended}/retry"), &json!({"topic": "other"})).await;
    assert_eq!(elsewhere.status, 403, "{}", elsewhere.text);
    let told = json!({"schema": {"type": "string"}});
    for (path, seen, status) in
        [("topics/strict", "\"0\"", 200), ("topics/strict", "\"0\"", 412), ("config", "\"x\"", 412)]
    {
        let body = if path == "config" { json!({}) } else { told.clone() };
        let body = Some(body.to_string().into_bytes());
        let answer = gateway.send(Method::PUT, &format!("/api/v1/{path}"), &[("If-Match", seen)], body).await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text);
    }
    let unfit = until(SOON, "the schema to be known", async || {
        let unfit = json!({"topic": "strict", "payload": 1});
        (gateway.post("/jobs", &unfit).await.status == 422).then_some(unfit)
    })
    .await;
    assert_eq!(gateway.post(&format!("/jobs/{ended}/retry"), &unfit).await.status, 422);
    assert_eq!(audit(&gateway, "").await.len(), all + 2, "the key and the schema");
    is_valid(&gateway).await;
}
