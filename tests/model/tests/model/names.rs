//! Which function each step of the models stands for. These tests fail if one of these functions is renamed or
//! removed, or if a step is named after no function.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// How the name of a step begins, and what it stands for: a file, and a function in it. The longest match wins.
const DEEDS: &[(&str, &str, &str)] = &[
    ("acks the delivery", "services/scheduler/src/intake.rs", "see_through"),
    ("acks the news", "services/workflow/src/news.rs", "handle"),
    ("acks the offer and begins", "sdk/rust/src/worker/turn.rs", "begin"),
    ("acks the submit", "services/scheduler/src/intake.rs", "see_through"),
    ("admit_anew", "services/scheduler/src/slots.rs", "admit_anew"),
    ("announce", "crates/flow/src/submit.rs", "announce"),
    ("answers", "crates/flow/src/submit.rs", "submit"),
    ("applies what is in reach", "services/scheduler/src/dispatch.rs", "apply"),
    ("apply", "crates/store/src/jobs.rs", "apply"),
    ("apply(dispatch)", "services/scheduler/src/dispatch.rs", "apply"),
    ("apply(hold)", "services/scheduler/src/dispatch.rs", "hold"),
    ("apply(recall)", "services/scheduler/src/start/recall.rs", "take_back"),
    ("apply(reoffer)", "services/scheduler/src/loops/reconciler/acts.rs", "offer_again"),
    ("apply(report)", "services/scheduler/src/settle.rs", "apply"),
    ("apply(rescue, abandon, poison)", "services/scheduler/src/loops/reconciler/acts.rs", "end_attempts"),
    ("apply(start)", "services/scheduler/src/start.rs", "answer"),
    ("apply(wake)", "services/scheduler/src/loops/reconciler/acts.rs", "awaken"),
    ("cancel", "crates/flow/src/cancel.rs", "cancel"),
    ("cancel_child", "services/workflow/src/carry/sub_runs.rs", "cancel_run"),
    ("cancel_run", "crates/runs/src/operate.rs", "operate"),
    ("claim_queued", "crates/store/src/queues.rs", "claim_queued"),
    ("decides to offer it as it is", "services/scheduler/src/dispatch.rs", "offer_as_it_is"),
    ("drains: releases", "sdk/rust/src/worker/turn.rs", "release"),
    ("drop_orphan_home", "crates/store/src/homes.rs", "drop_orphan_home"),
    ("drops the home", "crates/store/src/homes.rs", "drop_homes"),
    ("ends the job, finish", "crates/flow/src/effects.rs", "finish"),
    ("enqueue", "crates/store/src/queues.rs", "enqueue"),
    ("extend", "crates/store/src/jobs.rs", "extend"),
    ("extends, is told to stop", "sdk/rust/src/worker/turn.rs", "extended"),
    ("finish", "crates/flow/src/effects.rs", "finish"),
    ("finish: drop_homes", "crates/store/src/homes.rs", "drop_homes"),
    ("forward_homes", "crates/store/src/homes.rs", "forward_homes"),
    ("free_slot", "crates/store/src/slots.rs", "free_slot"),
    ("gives the delivery back", "services/scheduler/src/intake.rs", "see_through"),
    ("hand_over", "services/scheduler/src/slots.rs", "hand_over"),
    ("hears gone", "sdk/rust/src/worker/starts.rs", "decided"),
    ("hears settled", "sdk/rust/src/worker/results.rs", "confirm"),
    ("holds_op", "crates/runs/src/kept.rs", "publish_operations"),
    ("look", "crates/domain/src/job/look.rs", "look"),
    ("look: a job has ended", "services/workflow/src/turn.rs", "happened"),
    ("look: a step goes on", "services/workflow/src/turn.rs", "happened"),
    ("look: carries out", "services/workflow/src/turn.rs", "carry_out"),
    ("look: put_back", "services/scheduler/src/loops/reconciler/acts.rs", "put_back"),
    ("look: something has ended", "services/workflow/src/turn.rs", "happened"),
    ("look: the child has ended", "crates/runs/src/ends.rs", "sub_run_ends"),
    ("look: waits", "crates/runs/src/kept.rs", "next_look"),
    ("offer", "crates/flow/src/offer.rs", "offer"),
    ("offer (again)", "services/scheduler/src/loops/reconciler/acts.rs", "offer_again"),
    ("offer (as it is)", "services/scheduler/src/dispatch.rs", "offer_as_it_is"),
    ("pause_run", "crates/runs/src/operate.rs", "operate"),
    ("prepare", "crates/store/src/jobs.rs", "prepare"),
    ("publish_op", "crates/runs/src/kept.rs", "publish_operation"),
    ("publish_submits", "crates/flow/src/submit.rs", "publish_submits"),
    ("publishes what failed", "services/scheduler/src/intake.rs", "one_by_one"),
    ("pulls an offer", "sdk/rust/src/worker/turn.rs", "pulled"),
    ("puts the home back", "crates/store/src/scrub/entries.rs", "put_entries_back"),
    ("reads that it stands as it was", "services/scheduler/src/loops/reconciler/acts.rs", "as_planned"),
    ("reclaim", "services/scheduler/src/slots.rs", "reclaim"),
    ("remove_queued", "crates/store/src/queues.rs", "remove_queued"),
    ("reports", "sdk/rust/src/worker/turn.rs", "report"),
    ("reread", "services/scheduler/src/loops/reread.rs", "handle"),
    ("rescore_homes", "crates/store/src/homes.rs", "rescore_homes"),
    ("results_mark", "crates/bus/src/inspect.rs", "results_mark"),
    ("resume_run", "crates/runs/src/operate.rs", "operate"),
    ("save", "crates/store/src/runs.rs", "save_run"),
    ("scrub", "crates/store/src/scrub.rs", "scrub"),
    ("signal_run", "crates/runs/src/operate.rs", "operate"),
    ("stands in line", "services/scheduler/src/dispatch.rs", "may_stay_pending"),
    ("start_child", "services/workflow/src/carry/sub_runs.rs", "start_run"),
    ("start_run", "crates/runs/src/start.rs", "start"),
    ("submit", "crates/store/src/jobs.rs", "submit"),
    ("submit_step", "services/workflow/src/carry.rs", "submit_job"),
    ("take_keys", "services/scheduler/src/slots.rs", "take_keys"),
    ("take_slots", "crates/store/src/slots.rs", "take_slots"),
    ("takes a result", "services/scheduler/src/intake.rs", "batches"),
    ("takes a submit", "services/scheduler/src/intake.rs", "batches"),
    ("takes the news", "services/workflow/src/news.rs", "handle"),
    ("tell_end", "services/workflow/src/carry.rs", "one"),
    ("tells settled", "services/scheduler/src/settle.rs", "notify"),
];

/// Steps that no function takes: they just happen.
const WORLD: &[&str] = &[
    "a claim lapses",
    "applies, no answer",
    "begins, its ack is lost",
    "crashes",
    "deletes an ended job",
    "ends a compensation",
    "ends the job",
    "fails the job",
    "fails over",
    "fails, the job is pending again",
    "goes on",
    "has the news again",
    "has the second job",
    "hears no answer",
    "hears the client again",
    "home set",
    "is fast enough",
    "jumps ahead",
    "loses every",
    "passes",
    "succeeds",
    "the wait is over",
];

/// Files of the models that take no steps.
const NO_STEPS: &[&str] = &["explore.rs", "names.rs", "record.rs"];

/// The actors of the steps in the models.
const ACTORS: &[&str] = &[
    "NATS",
    "Redis",
    "S1",
    "S2",
    "W1",
    "W2",
    "a dead gateway's",
    "caller",
    "child",
    "gateway",
    "reader",
    "retention",
    "scheduler",
    "time",
    "worker",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of all steps of the models, taken from the source: the string arguments of these calls.
fn steps() -> BTreeSet<String> {
    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if !NO_STEPS.iter().any(|file| path.ends_with(file)) {
                let text = fs::read_to_string(&path).expect("a file");
                for call in ["push(", "fault(", "unless(", "moves(", "save("] {
                    for rest in text.split(call).skip(1) {
                        let words = rest.split(';').next().unwrap_or_default().split('"').skip(1).step_by(2);
                        found.extend(words.map(str::to_owned));
                    }
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model"), &mut found);
    found.retain(|words| !ACTORS.contains(&words.as_str()));
    found
}

fn deed_of(step: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    DEEDS.iter().filter(|(begin, _, _)| step.starts_with(begin)).max_by_key(|(begin, _, _)| begin.len())
}

#[test]
fn every_step_is_named_after_what_the_code_does_or_happens_by_itself() {
    let steps = steps();
    assert!(steps.len() > 80, "they could be read: {steps:?}");
    let nameless = |step: &&String| {
        let happens = WORLD.iter().any(|begin| step.starts_with(begin));
        !happens && deed_of(step).is_none()
    };
    let nameless: Vec<&String> = steps.iter().filter(nameless).collect();
    assert!(nameless.is_empty(), "no function is named for {nameless:?}");
    let idle: Vec<&str> = DEEDS
        .iter()
        .map(|deed| deed.0)
        .filter(|begin| !steps.iter().any(|step| deed_of(step).is_some_and(|deed| deed.0 == *begin)))
        .collect();
    assert!(idle.is_empty(), "no step is named {idle:?}");
}

#[test]
fn every_function_that_a_step_stands_for_is_there() {
    for (step, file, function) in DEEDS {
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{step}: {file}: {error}"));
        let there = [format!("fn {function}("), format!("fn {function}<")].iter().any(|head| text.contains(head));
        assert!(there, "{step}: {file} has no fn {function}");
    }
}
