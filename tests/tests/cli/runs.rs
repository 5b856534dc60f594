//! Workflows and runs from the command line: a tour with an order, from its definition to a rerun.

use std::{fs, path::PathBuf};

use muster_sdk::{Client, ClientError, RerunRequest, RunFilter, StartOptions};
use muster_testkit::until;
use muster_tests::{Options, Stack, WorkerProcess};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{NOBODY, SOON, Said, Shell};

const ORDER: &str = r#"description: an order, from stock to receipt
input:
  type: object
  required: [order, lines]
  properties: {order: {type: string}, lines: {type: array}}
steps:
  - id: checked
    set: "order ${{ input.order }}"
  - id: reserve
    for_each: {items: input.lines, as: line, max_parallel: 2}
    job: {topic: stock, payload: {sku: "${{ line }}"}}
    compensate: {job: {topic: release, payload: {sku: "${{ line }}"}}}
  - id: pack
    needs: [reserve]
    parallel:
      branches:
        box: [{id: box, job: {topic: stock, payload: box}}]
        label: [{id: label, delay: {ms: 50}}]
  - id: paid
    needs: [pack]
    wait_signal: {name: paid, timeout_ms: 600000}
  - id: charge
    needs: [paid, checked]
    job: {topic: pay, payload: {for: "${{ steps.checked.result }}", by: "${{ steps.paid.result.by }}"}}
output: {receipt: "${{ steps.charge.result }}"}
"#;
const INPUT: &str = r#"{"order":"4711","lines":["a","b","c"]}"#;

/// The workers of an order, and what steers them.
struct Shop {
    _workers: [WorkerProcess; 3],
    /// While this file exists, payments are declined.
    declines: PathBuf,
    /// Has a line for each item that was released.
    released: PathBuf,
}

impl Shop {
    fn open(stack: &Stack, shell: &Shell) -> Shop {
        let (declines, released) = (shell.folder.path().join("declines"), shell.folder.path().join("released"));
        let pay = format!("test -e {} && {{ echo no funds >&2; exit 65; }}; cat", declines.display());
        let counts = released.display().to_string();
        let workers = [
            WorkerProcess::start(stack, &["--topic", "stock", "--builtin", "echo"]),
            WorkerProcess::start(stack, &["--topic", "release", "--builtin", "count", "--count-file", &counts]),
            WorkerProcess::start(stack, &["--topic", "pay", "--exec", &pay]),
        ];
        Shop { _workers: workers, declines, released }
    }

    fn released(&self) -> usize {
        fs::read_to_string(&self.released).unwrap_or_default().lines().count()
    }
}

impl Shell {
    /// A folder with `order.yaml`, which is stored as `order`.
    async fn with_order(stack: &Stack) -> Shell {
        let shell = Shell::of(stack);
        fs::write(shell.folder.path().join("order.yaml"), ORDER).expect("a file");
        shell.muster("workflow apply -f order.yaml").await.ends(0);
        shell
    }

    async fn start_order(&self, more: &[&str]) -> Said {
        self.fed(&[&["run", "start", "order", "--input", INPUT, "-o", "json"], more].concat(), "").await
    }

    /// Waits until the run waits for its signal, as `explain` tells it.
    async fn waits_for_payment(&self, id: &str) {
        until(SOON, "the run to wait for its signal", async || {
            let told = self.muster(&format!("run explain {id} -o json")).await.ends(0).json();
            told["waits_for"].as_array()?.iter().any(|wait| wait["for"] == "signal").then_some(())
        })
        .await;
    }
}

#[derive(Serialize)]
struct Order {
    order: &'static str,
    lines: Vec<u32>,
}

#[derive(Serialize)]
struct Payment {
    by: &'static str,
}

#[derive(Debug, Deserialize)]
struct Bill {
    receipt: Value,
}

#[tokio::test]
async fn a_program_does_the_same_with_typed_handles() {
    let stack = Stack::start().await;
    let shell = Shell::with_order(&stack).await;
    let shop = Shop::open(&stack, &shell);
    let client = Client::new([stack.process("gateway-1").http.expect("an address")], stack.state().api_key);
    let client = client.expect("a client");
    let orders = client.workflow::<Order, Bill>("order");
    let run = orders.start(&Order { order: "12", lines: vec![1, 2] }).await.expect("a run");
    run.signal("paid", &Payment { by: "sdk" }).await.expect("a signal");
    let bill = run.result_within(SOON).await.expect("an output");
    assert_eq!(bill.receipt, json!({"for": "order 12", "by": "sdk"}));
    assert_eq!(run.state().await.expect("a run"), "succeeded");
    let items = client.run_items(run.id(), "reserve", 0, 10).await.expect("items");
    assert_eq!((items.total, items.items[1].state.as_str()), (2, "succeeded"));

    fs::write(&shop.declines, "").expect("a file");
    let options = StartOptions::new().label("kind", "declined").idempotency_key("d1");
    let failing = orders.start_with(&Order { order: "13", lines: Vec::new() }, options).await.expect("a run");
    failing.signal("paid", &Payment { by: "sdk" }).await.expect("a signal");
    let ended = failing.result_within(SOON).await.unwrap_err();
    assert!(matches!(&ended, ClientError::RunEnded { state, .. } if state == "failed"), "{ended}");
    let plan = client.plan_rerun(failing.id(), &RerunRequest::from_step("charge")).await.expect("a plan");
    assert!(plan.again.contains(&"charge".to_owned()) && plan.taken.contains(&"paid".to_owned()), "{plan:?}");
    fs::remove_file(&shop.declines).expect("a file");
    let again = client.rerun_run(failing.id(), &RerunRequest::from_step("charge")).await.expect("a run");
    let again = client.wait_run(again.run.id, SOON).await.expect("an end");
    assert!(again.succeeded() && again.rerun_of == Some(failing.id()), "{again:?}");
    assert!(client.run_timeline(again.id).await.expect("a timeline").items.iter().any(|entry| entry.step == "charge"));
    let listed = client.list_runs(RunFilter::new().workflow("order").state("failed").label("kind", "declined"));
    let listed: Vec<_> = listed.all().await.expect("runs").into_iter().map(|run| run.id).collect();
    assert_eq!(listed, [failing.id()]);
}

fn states(run: &Value) -> Vec<(&str, &str)> {
    let steps = run["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().filter_map(|step| Some((step["place"].as_str()?, step["state"].as_str()?))).collect()
}

#[tokio::test]
async fn definitions_are_stored_in_versions_and_shown() {
    let stack = Stack::start().await;
    let shell = Shell::of(&stack);
    assert_eq!(shell.muster("workflow list -o json").await.ends(0).json(), json!({"items": []}));
    shell.muster("workflow list").await.ends(0);
    fs::write(shell.folder.path().join("order.yaml"), ORDER).expect("a file");
    for _ in 0..2 {
        let said = shell.muster("workflow apply -f order.yaml").await.ends(0);
        assert_eq!(said.out, "workflow order is at version 1\n", "the same content makes no new version");
    }
    let other = ORDER.replace("ms: 50", "ms: 60");
    let apply = ["workflow", "apply", "-f", "-", "--name", "order", "-o", "json"];
    assert_eq!(shell.fed(&apply, &other).await.ends(0).json()["version"], 2);
    let said = shell.fed(&[&apply[..], &["--if-version", "1"]].concat(), ORDER).await.ends(1);
    assert!(said.err.contains("412"), "{said:?}");
    shell.fed(&[&apply[..], &["--if-version", "2"]].concat(), ORDER).await.ends(0);

    // What is shown can be applied again, and is the same.
    let shown = shell.muster("workflow get order").await.ends(0).out;
    assert!(shown.starts_with("# order, version 3, stored 2"), "{shown}");
    assert_eq!(shell.muster("workflow get order -o yaml").await.ends(0).out, shown);
    assert_eq!(shell.fed(&apply, &shown).await.ends(0).json()["version"], 3, "{shown}");
    let second = shell.muster("workflow get order --version 2 -o json").await.ends(0).json();
    assert_eq!(
        (&second["version"], &second["definition"]["description"]),
        (&json!(2), &json!("an order, from stock to receipt"))
    );

    let versions = shell.muster("workflow versions order -o json").await.ends(0).json();
    assert_eq!(versions["items"].as_array().map(Vec::len), Some(3), "{versions}");
    let listed = shell.muster("workflow list").await.ends(0).out;
    assert!(listed.contains("order") && listed.contains("from stock to receipt"), "{listed}");
    assert!(shell.muster("workflow graph --name order").await.ends(0).out.starts_with("flowchart TD\n"));
    assert!(shell.muster("workflow graph order").await.ends(0).out.starts_with("flowchart TD\n"));
    assert!(shell.muster("workflow graph order --version 2 --format svg").await.ends(0).out.starts_with("<svg "));
    assert!(shell.muster("workflow graph order.yaml").await.ends(0).out.starts_with("flowchart TD\n"), "a file");

    fs::write(shell.folder.path().join("bad.yaml"), ORDER.replace("needs: [pack]", "needs: [pick]")).expect("a file");
    let said = shell.muster("workflow apply -f bad.yaml").await.ends(1);
    assert!(said.err.contains("bad.yaml:20:13: ") && said.err.contains("pick"), "{said:?}");
    shell.muster("workflow get bad").await.ends(3);
    shell.muster("workflow apply -f -").await.ends(2);
    shell.muster("workflow get order -o yaml --version 9").await.ends(3);
    shell.muster("job list -o yaml").await.ends(2);
    let said = shell.muster("workflow get Nobody").await.ends(2);
    assert!(said.err.contains("hint:"), "{said:?}");
    let said = shell.muster("run start nobody").await.ends(3);
    assert!(said.err.contains("hint:  `muster workflow list`"), "{said:?}");
    shell.muster("workflow delete order").await.ends(0);
    shell.muster("workflow get order").await.ends(3);
}

#[tokio::test]
async fn an_order_is_started_watched_and_looked_into() {
    let stack = Stack::start().await;
    let shell = Shell::with_order(&stack).await;
    let _shop = Shop::open(&stack, &shell);
    let id = shell.start_order(&["--label", "shop=east", "--key", "k1"]).await.ends(0).id();
    assert_eq!(shell.start_order(&["--label", "shop=east", "--key", "k1"]).await.ends(0).id(), id, "one run");

    let again =
        shell.fed(&["run", "start", "order", "--input", INPUT, "--label", "shop=east", "--key", "k1"], "").await;
    assert_eq!(again.ends(0).out.trim_end(), id, "the id alone, for scripts");

    // Watched from two places: by a person and by a program.
    let pays = async {
        shell.waits_for_payment(&id).await;
        let told = shell.muster(&format!("run explain {id}")).await.ends(0).out;
        assert!(told.contains("is running") && told.contains("signal") && told.contains("paid"), "{told}");
        until(SOON, "both to watch", async || {
            (stack.metric("gateway", "muster_event_streams").await > 1.0).then_some(())
        })
        .await;
        let args = ["run", "signal", id.as_str(), "paid", "--data", r#"{"by":"card"}"#];
        shell.fed(&args, "").await.ends(0);
    };
    let (person, program) = (format!("run watch {id}"), format!("run watch {id} -o json"));
    let (person, program, ()) = tokio::join!(shell.muster(&person), shell.muster(&program), pays);
    let lines = person.ends(0).out;
    for words in ["succeeded     reserve  3/3", "succeeded     charge", &format!("succeeded     order {id}")] {
        assert!(lines.contains(words), "{words:?} is not in\n{lines}");
    }
    let events: Vec<Value> =
        program.ends(0).out.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(types.last(), Some(&"muster.run.succeeded"), "{types:?}");
    assert!(events.iter().all(|event| event["subject"] == id.as_str()), "{events:?}");
    assert!(events.iter().any(|event| event["data"]["step"] == "paid" && event["data"]["state"] == "running"));

    let run = shell.muster(&format!("run wait {id} -o json")).await.ends(0).json();
    assert_eq!(run["output"], json!({"receipt": {"for": "order 4711", "by": "card"}}), "{run}");
    assert!(states(&run).iter().all(|(_, state)| *state == "succeeded"), "{run}");
    let table = shell.muster(&format!("run get {id} -o wide")).await.ends(0).out;
    for word in ["order (version 1)", "shop=east", "reserve", "3/3", "wait_signal", "box", "receipt"] {
        assert!(table.contains(word), "{word} is not in\n{table}");
    }
    let story = shell.muster(&format!("run timeline {id}")).await.ends(0).out;
    assert!(story.contains("charge") && story.contains("succeeded"), "{story}");
    let items = shell.muster(&format!("run items {id} reserve --from 1 -o json")).await.ends(0).json();
    let indexes: Vec<u64> = items["items"].as_array().unwrap().iter().filter_map(|i| i["index"].as_u64()).collect();
    assert_eq!((&items["total"], indexes), (&json!(3), vec![1, 2]), "{items}");
    let one = shell.muster(&format!("run items {id} reserve --limit 1")).await.ends(0).out;
    assert!(one.contains("3 items in all; --from 1 shows more"), "{one}");
    let jobs = shell.muster(&format!("job list --run {id} --topic stock -o json")).await.ends(0).json();
    assert_eq!(jobs["items"].as_array().map(Vec::len), Some(4), "three lines and a box: {jobs}");
    assert!(shell.muster(&format!("run graph {id}")).await.ends(0).out.starts_with("flowchart TD\n"));
    let list = "run list --workflow order --state succeeded --label shop=east -o json";
    assert_eq!(shell.muster(list).await.ends(0).json()["items"][0]["id"], id.as_str());
    assert!(shell.muster("run list").await.ends(0).out.contains(&id));
    let none = shell.muster("run list --state failed -o json").await.ends(0).json();
    assert_eq!(none["items"], json!([]));
    // A watch of an ended run returns at once.
    assert!(shell.muster(&format!("run watch {id}")).await.ends(0).out.contains("succeeded"));
}

#[tokio::test]
async fn a_run_is_watched_to_its_end_though_gateways_die() {
    let stack = Stack::with(Options::two()).await;
    let shell = Shell::with_order(&stack).await;
    let _shop = Shop::open(&stack, &shell);
    let id = shell.start_order(&[]).await.ends(0).id();
    shell.waits_for_payment(&id).await;
    let line = format!("run watch {id}");
    let deaths = async {
        for name in ["gateway-1", "gateway-2"] {
            until(SOON, "somebody to watch", async || {
                (stack.metric("gateway", "muster_event_streams").await > 0.0).then_some(())
            })
            .await;
            let died = stack.kill9(name);
            stack.replaced(name, died).await;
            until(SOON, "its successor to answer", async || stack.ready(name).await.then_some(())).await;
        }
        shell.fed(&["run", "signal", &id, "paid", "--data", r#"{"by":"card"}"#], "").await.ends(0);
    };
    let (said, ()) = tokio::join!(shell.muster(&line), deaths);
    let lines = said.ends(0).out;
    let ends = |step: &str| lines.lines().filter(|line| line.contains("succeeded") && line.contains(step)).count();
    assert_eq!((ends("charge"), ends("reserve"), ends(&id)), (1, 1, 1), "nothing is told twice:\n{lines}");
}

#[tokio::test]
async fn a_run_that_failed_is_compensated_and_run_again() {
    let stack = Stack::start().await;
    let shell = Shell::with_order(&stack).await;
    let shop = Shop::open(&stack, &shell);
    fs::write(&shop.declines, "").expect("a file");
    let id = shell.start_order(&[]).await.ends(0).id();
    let early = shell.muster(&format!("run rerun {id} --from charge")).await.ends(1);
    assert!(early.err.contains("run_not_done"), "{early:?}");
    let pay = r#"{"by":"card"}"#;
    shell.fed(&["run", "signal", &id, "paid", "--data", pay], "").await.ends(0);
    let said = shell.muster(&format!("run watch {id}")).await.ends(4);
    assert!(said.err.contains("the run ended as failed") && said.err.contains("charge"), "{said:?}");
    let run = shell.muster(&format!("run wait {id} -o json")).await.ends(4).json();
    assert_eq!((&run["compensation"]["state"], shop.released()), (&json!("done"), 3), "{run}");

    fs::remove_file(&shop.declines).expect("a file");
    let found = shell.muster("run bulk rerun --workflow order --dry-run -o json").await.ends(0).json();
    assert_eq!(found["matched"], 1, "{found}");
    let none = shell.muster("run bulk rerun --workflow other --wait -o json").await.ends(0).json();
    assert_eq!((&none["counts"]["matched"], &none["done"]), (&json!(0), &json!(true)), "{none}");
    let plan = shell.muster(&format!("run rerun {id} --from charge --dry-run -o json")).await.ends(0).json();
    // The items were released, so they are reserved again.
    assert_eq!((&plan["again"], &plan["taken"]), (&json!(["reserve", "pack", "paid", "charge"]), &json!(["checked"])));
    let told = shell.muster(&format!("run rerun {id} --from charge --dry-run")).await.ends(0).out;
    assert!(told.contains("reserve pack paid charge") && told.contains("nothing was started"), "{told}");
    let again = ["run", "rerun", &id, "--from", "charge", "--key", "r1", "-o", "json"];
    let new = shell.fed(&again, "").await.ends(0);
    assert_eq!(new.json()["rerun_of"], id.as_str());
    let new = new.id();
    assert_eq!(shell.fed(&again, "").await.ends(0).id(), new, "one rerun");
    shell.fed(&["run", "signal", &new, "paid", "--data", pay], "").await.ends(0);
    let run = shell.muster(&format!("run wait {new} -o json")).await.ends(0).json();
    assert_eq!(run["output"]["receipt"]["for"], "order 4711", "the step that was taken over is read: {run}");
}

#[tokio::test]
async fn runs_are_paused_cancelled_and_helped_by_hand() {
    let stack = Stack::start().await;
    let shell = Shell::with_order(&stack).await;
    let shop = Shop::open(&stack, &shell);

    // While a run is paused, a signal is kept.
    let id = shell.start_order(&[]).await.ends(0).id();
    shell.waits_for_payment(&id).await;
    assert_eq!(shell.muster(&format!("run pause {id} -o json")).await.ends(0).json()["state"], "paused");
    shell.fed(&["run", "signal", &id, "paid", "--data", r#"{"by":"cash"}"#], "").await.ends(0);
    let waited = shell.muster(&format!("run wait {id} --timeout 500ms")).await.ends(1);
    assert!(waited.err.contains("still paused") && waited.err.contains("muster run explain"), "{waited:?}");
    shell.muster(&format!("run resume {id}")).await.ends(0);
    let run = shell.muster(&format!("run wait {id} -o json")).await.ends(0).json();
    assert_eq!(run["output"]["receipt"]["by"], "cash", "{run}");

    // Cancelled without compensation, which can be made up for.
    let id = shell.start_order(&[]).await.ends(0).id();
    shell.waits_for_payment(&id).await;
    for _ in 0..2 {
        shell.fed(&["run", "cancel", &id, "--no-compensate", "--reason", "a mistake"], "").await.ends(0);
    }
    let said = shell.muster(&format!("run wait {id}")).await.ends(4);
    assert!(said.err.contains("the run ended as cancelled"), "{said:?}");
    assert_eq!(shop.released(), 0);
    let said = shell.muster(&format!("run signal {id} paid")).await.ends(1);
    assert!(said.err.contains("hint:  docs/errors/run_done.md"), "{said:?}");
    shell.muster(&format!("run compensate {id}")).await.ends(0);
    until(SOON, "the compensations", async || {
        let run = shell.muster(&format!("run get {id} -o json")).await.ends(0).json();
        (run["compensation"]["state"] == "done" && run["state"] == "cancelled").then_some(())
    })
    .await;
    assert_eq!(shop.released(), 3);

    // A step that waits forever is ended by hand.
    let id = shell.start_order(&[]).await.ends(0).id();
    shell.waits_for_payment(&id).await;
    let args = ["run", "complete", &id, "paid", "--result", r#"{"by":"hand"}"#, "--reason", "by phone"];
    shell.fed(&args, "").await.ends(0);
    let run = shell.muster(&format!("run wait {id} -o json")).await.ends(0).json();
    assert_eq!(run["output"]["receipt"]["by"], "hand", "{run}");
    shell.muster(&format!("run skip {id} paid")).await.ends(1);
    shell.muster(&format!("run skip {id} nothing")).await.ends(3);

    for what in ["get", "watch", "wait", "explain", "timeline", "graph", "pause", "resume", "cancel", "compensate"] {
        let said = shell.muster(&format!("run {what} {NOBODY}")).await.ends(3);
        assert!(said.err.contains("hint:  `muster run list`"), "{what}: {said:?}");
        shell.muster(&format!("run {what} nonsense")).await.ends(2);
    }
    shell.muster(&format!("run rerun {id}")).await.ends(2);
    shell.muster(&format!("run items {id} paid")).await.ends(3);
    shell.muster("run start order --input nonsense").await.ends(2);
    let said = shell.muster("run start order --input {}").await.ends(1);
    assert!(said.err.contains("order") && said.err.contains("invalid_request"), "{said:?}");
    shell.muster("run list --state dreaming").await.ends(1);

    let open =
        [shell.start_order(&["--label", "of=bulk"]).await.ends(0).id(), shell.start_order(&[]).await.ends(0).id()];
    let done = shell.muster("run bulk cancel --label of=bulk --wait -o json").await.ends(0).json();
    assert_eq!((&done["counts"]["done"], &done["status"]), (&json!(1), &json!("done")), "{done}");
    shell.muster(&format!("run wait {}", open[0])).await.ends(4);
    assert_eq!(shell.muster(&format!("run get {} -o json", open[1])).await.ends(0).json()["done"], json!(false));
    shell.muster("run bulk delete").await.ends(2);
}
