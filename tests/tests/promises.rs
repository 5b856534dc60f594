//! What Muster promises when parts of it stop, hang, send wrong data or vanish, shown with real processes: one file
//! for each kind of trouble. All in one program, because these tests wait more than they work.

#[path = "promises/clocks.rs"]
mod clocks;
#[path = "promises/damage.rs"]
mod damage;
#[path = "promises/deciding.rs"]
mod deciding;
#[path = "promises/leaders.rs"]
mod leaders;
#[path = "promises/operators.rs"]
mod operators;
#[path = "promises/repairs.rs"]
mod repairs;
#[path = "promises/restarts.rs"]
mod restarts;
#[path = "promises/sharing.rs"]
mod sharing;

use std::{process::Command, time::Duration};

use muster_tests::{Probe, Stack};
use serde_json::Value;

/// How long anything without a deliberate wait may take on a busy machine.
const SOON: Duration = Duration::from_secs(90);
/// The same if many jobs, or a deliberate wait, are involved.
const LONG: Duration = Duration::from_secs(150);

/// The answer of redis-cli to a command.
fn redis(stack: &Stack, args: &[&str]) -> String {
    let said = Command::new("redis-cli").arg("-u").arg(stack.state().redis_url).args(args).output().expect("redis-cli");
    String::from_utf8(said.stdout).expect("text").trim().to_owned()
}

/// Waits for the end of a job, and checks in its history that it ended exactly once.
async fn one_end(gateway: &Probe, id: &str) -> Value {
    let job = gateway.ended(id, LONG).await;
    let story = gateway.history(id).await;
    let ends = ["succeeded", "failed", "timed_out", "cancelled", "denied", "expired", "quarantined"];
    let states: Vec<&str> =
        story["transitions"].as_array().unwrap().iter().filter_map(|t| t["state"].as_str()).collect();
    let ended = states.iter().filter(|state| ends.contains(state)).count();
    assert_eq!((ended, ends.contains(states.last().unwrap())), (1, true), "{id}: {states:?}");
    job
}

/// Checks that each of these jobs succeeded at its first attempt and ran once.
async fn all_ran_once(gateway: &Probe, runs: &muster_tests::Executions, ids: &[String]) {
    for id in ids {
        let job = one_end(gateway, id).await;
        assert_eq!((job["state"].as_str(), job["attempt"].as_u64()), (Some("succeeded"), Some(1)), "{job}");
    }
    let counts = runs.counts();
    for id in ids {
        assert_eq!(counts.get(id), Some(&1), "{id} ran once");
    }
}
