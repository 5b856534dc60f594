//! The first replica of each service lives five minutes ahead, the second one five minutes behind, by
//! libfaketime. Delays, back-offs, leases and deadlines must be as with exact clocks.

use std::{path::PathBuf, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{Scenery, until};
use crate::{
    commands::{drill::rig::Setting, worker::drilled::Part},
    outcome::Failure,
};

/// Where distributions keep the library.
const HOMES: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
/// How much later than exact something may be: a look, a dispatch, a loaded machine.
const SLACK: Duration = Duration::from_secs(15);

/// Which process lives when.
pub(super) fn env() -> anyhow::Result<Vec<Setting>> {
    let library = HOMES
        .iter()
        .map(|home| PathBuf::from(home).join("faketime/libfaketime.so.1"))
        .find(|path| path.exists())
        .ok_or_else(|| {
            Failure::new("this drill needs libfaketime, which is not installed")
                .hint("sudo apt-get install libfaketime")
        })?;
    let shifted = ["scheduler", "workflow", "gateway"]
        .map(|service| [("1", "+5m"), ("2", "-5m")].map(|(n, shift)| (format!("{service}-{n}"), shift)));
    let settings = |(process, shift): (String, &str)| {
        let set = |name, value: String| Setting { process: process.clone(), name, value };
        [
            set("LD_PRELOAD", library.display().to_string()),
            set("FAKETIME", shift.to_owned()),
            // Time-outs measure spans, and those are the same on every clock.
            set("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    };
    Ok(shifted.into_iter().flatten().flat_map(settings).collect())
}

pub(super) async fn play(scenery: &Scenery<'_>) -> anyhow::Result<()> {
    scenery.tell(
        "the clocks of scheduler-1, workflow-1 and gateway-1 are five minutes ahead, those of scheduler-2, \
                  workflow-2 and gateway-2 five minutes behind",
    );
    let short = Part::default();
    // Whoever is late may not be late because workers are still coming up.
    let first = scenery.submit("drill.short", &short, json!({})).await?;
    until(Duration::from_secs(60), "a first job's end", async || {
        Ok((scenery.job(&first).await?["done"] == true).then_some(()))
    })
    .await?;
    let failing = Part { failures: 2, ..Part::default() };
    let long = Part { ms: 8_000, ..Part::default() };
    let backoff =
        json!({ "retry": { "max_attempts": 3, "backoff": { "initial_ms": 2_000, "factor": 1, "jitter": 0 } } });
    let begun = Instant::now();
    let cases = [
        ("a delay of 3 s", "drill.short", &short, json!({ "delay_ms": 3_000 }), "succeeded", 3_000),
        ("two back-offs of 2 s", "drill.flaky", &failing, backoff, "succeeded", 4_000),
        ("8 s on a lease of 5 s", "drill.long", &long, json!({ "retry": { "max_attempts": 1 } }), "succeeded", 8_000),
        ("a deadline after 5 s", "drill.long", &long, json!({ "expire_in_ms": 5_000 }), "timed_out", 5_000),
    ];
    let mut ids = Vec::new();
    for (what, topic, part, extra, end, ms) in &cases {
        let id = scenery.submit(topic, part, extra.clone()).await?;
        ids.push((*what, id, *end, Duration::from_millis(*ms)));
    }
    let mut pending = ids;
    pending.sort_by_key(|(.., due)| *due);
    for (what, id, end, due) in pending {
        let job = until(Duration::from_secs(60), what, async || {
            let job = scenery.job(&id).await?;
            Ok((job["done"] == true).then_some(job))
        })
        .await?;
        let took = begun.elapsed();
        scenery.expect(job["state"] == end, format_args!("{what} ended {}", job["state"]));
        scenery.expect(took + Duration::from_millis(50) >= due, format_args!("{what} ended too early, after {took:?}"));
        scenery.measured(what, took, due + SLACK);
    }
    Ok(())
}
