//! Watching from the command line: until the job ends, with its exit code, whatever happens to a gateway.

use muster_testkit::until;
use muster_tests::{Options, Stack, WorkerProcess};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{NOBODY, SOON, Shell};

#[tokio::test]
async fn a_job_is_watched_to_its_end_though_the_gateway_dies() {
    let stack = Stack::with(Options::two()).await;
    let shell = Shell::of(&stack);
    let id = shell.muster("job submit --topic t -o json").await.ends(0).id();
    let line = format!("job watch {id} -o json");
    let watches = shell.muster(&line);
    let ends = async {
        let watched = async || (stack.metric("gateway", "muster_event_streams").await > 0.0).then_some(());
        until(SOON, "somebody to watch", watched).await;
        let name = if is_watched(&stack, "gateway-1").await { "gateway-1" } else { "gateway-2" };
        let died = stack.kill9(name);
        stack.replaced(name, died).await;
        until(SOON, "it to be watched again", watched).await;
        WorkerProcess::start(&stack, &["--topic", "t", "--builtin", "echo"])
    };
    let (said, _worker) = tokio::join!(watches, ends);
    let said = said.ends(0);
    let events: Vec<Value> = said.out.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let mut types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    // The events of the submit and the offer are published a moment after the answer, so the watch may see them.
    types.retain(|kind| !["muster.job.pending", "muster.job.dispatched"].contains(kind));
    assert_eq!(types, ["muster.job.running", "muster.job.succeeded"], "what happened since");
    assert!(events.iter().all(|event| event["subject"] == id.as_str()));

    // A watch of an ended job returns at once. It reports a bad end, and a job that does not exist.
    let said = shell.muster(&format!("job watch {id}")).await.ends(0);
    assert!(said.out.contains("succeeded"), "{said:?}");
    let failed = shell.fed(&["job", "submit", "--topic", "f", "-o", "json"], "").await.ends(0).id();
    let line = format!("job watch {failed}");
    let cancels = async {
        until(SOON, "somebody to watch", async || {
            (stack.metric("gateway", "muster_event_streams").await > 0.0).then_some(())
        })
        .await;
        shell.muster(&format!("job cancel {failed}")).await.ends(0);
    };
    let (said, ()) = tokio::join!(shell.muster(&line), cancels);
    let said = said.ends(4);
    assert!(said.out.contains("cancelled") && said.err.contains("the job ended as cancelled"), "{said:?}");
    shell.muster(&format!("job watch {NOBODY}")).await.ends(3);
    shell.muster("job watch nonsense").await.ends(2);
    shell.muster(&format!("job watch {id} --topic t")).await.ends(2);
    shell.muster("job watch --type muster.job.exploded").await.ends(1);
}

#[tokio::test]
async fn a_gateway_that_has_no_room_or_does_not_answer_is_left_for_the_next() {
    let stack = Stack::with(Options::two().env("MUSTER_EVENT_STREAMS", "1")).await;
    let (shell, other) = (Shell::of(&stack), stack.gateway(2));
    let watched_at_the_other = async || {
        let id = other.submit(json!({"topic": "t"})).await;
        let line = format!("job watch {id}");
        let cancels = async {
            until(SOON, "the other to be watched", async || is_watched(&stack, "gateway-2").await.then_some(())).await;
            assert_eq!(other.post(&format!("/jobs/{id}/cancel"), &json!({})).await.status, 200);
        };
        let (said, ()) = tokio::join!(shell.muster(&line), cancels);
        let said = said.ends(4);
        assert!(said.out.contains("cancelled"), "{said:?}");
        until(SOON, "it to have left", async || (!is_watched(&stack, "gateway-2").await).then_some(())).await;
    };
    let seat = stack.gateway(1).watch("", None).await;
    watched_at_the_other().await;
    drop(seat);
    stack.signal("gateway-1", Signal::SIGSTOP);
    watched_at_the_other().await;
    stack.signal("gateway-1", Signal::SIGCONT);
}

/// Whether a client watches events at this gateway.
async fn is_watched(stack: &Stack, name: &str) -> bool {
    let admin = stack.process(name).admin.expect("an admin port");
    let probe = muster_tests::Probe::new(admin, String::new());
    let scrape = probe.send(reqwest::Method::GET, "/metrics", &[], None).await.expect("an answer").text;
    muster_tests::metric_sum(&scrape, "muster_event_streams") > 0.0
}
