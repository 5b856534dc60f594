//! The protocol of jobs and runs as models that `stateright` explores completely.
//!
//! There are thirteen models, because exploring one model of everything would never end:
//!
//! | model | subject | time |
//! |---|---|---|
//! | [`life`] | one job from submit to the effects of its end: two schedulers with every loop on both, two workers, a gateway and a client that repeats its request | none |
//! | [`batches`] | two jobs in the same messages: both schedulers with batches, looks and cancels, two workers with both jobs | none |
//! | [`pair`] | two jobs that share their messages, one of them out of reach for a while: the rules of silence and of lost offers | ages of offers |
//! | [`homes`] | the score of a home: set, forward, re-score | yes |
//! | [`backlog`] | a queued job's entry: claim, dispatch, offer, forward, remove | near and far looks |
//! | [`rounds`] | two jobs in one backlog: held, pending in the backlog, offered without a change of the record, released together, taken back | near and far looks |
//! | [`slots`] | two jobs under a limit of one: admitted, given back, handed over, reclaimed | looks and leases |
//! | [`submits`] | two gateways with the same submit, and orphans | yes |
//! | [`runs::keep`] | a run of job steps: save, outbox, look, cancel against submit | near and far looks |
//! | [`runs::items`] | a for-each: cursors, absence, retention, join | none |
//! | [`runs::signals`] | start, early signals, pause | none |
//! | [`runs::children`] | a sub-run, and the cancel of its parent | none |
//! | [`runs::stops`] | steps that end others, a time-out, compensations | order of ends |
//!
//! They share [`record`], which moves a job by the real table and calls the real `look`. Steps have the names of the
//! functions that they stand for ([`names`] has the list), and come in the order of the code. Change the order of
//! writes here before changing it in the code.
//!
//! A model that holds has been explored completely: every law is true in every state, and from every state an end can
//! be reached by steps that are not faults. A number limits how many faults may happen; they may be of any kind, at
//! any moment. The flaws in [`flaws`] are wrong on purpose: each must break the law that it is meant to
//! break, or the model proves nothing. `cargo test -p muster-model -- --nocapture` prints the number of states, and
//! the shortest path to each flaw.

#[path = "model/backlog.rs"]
mod backlog;
#[path = "model/batches.rs"]
mod batches;
#[path = "model/explore.rs"]
mod explore;
#[path = "model/flaws.rs"]
mod flaws;
#[path = "model/homes.rs"]
mod homes;
#[path = "model/life.rs"]
mod life;
#[path = "model/names.rs"]
mod names;
#[path = "model/pair.rs"]
mod pair;
#[path = "model/record.rs"]
mod record;
#[path = "model/rounds.rs"]
mod rounds;
#[path = "model/runs.rs"]
mod runs;
#[path = "model/slots.rs"]
mod slots;
#[path = "model/submits.rs"]
mod submits;

use backlog::Backlog;
use batches::Batches;
use explore::holds;
use homes::Homes;
use life::{Fault, Life};
use muster_domain::State;
use pair::Pair;
use rounds::Rounds;
use runs::{
    children::{self, Children},
    items::{self, Items},
    keep::{self, Keep},
    signals::{self, Signals},
    stops::{self, Stops},
};
use slots::Slots;
use submits::Submits;

const ALL_BUT_LOST_HOMES: &[Fault] = &[
    Fault::Crash,
    Fault::LostReply,
    Fault::Redelivery,
    Fault::Wipe,
    Fault::Expiry,
    Fault::Haste,
    Fault::Repeat,
    Fault::Cancel,
    Fault::Drain,
];

fn life(faults: u8, kinds: &'static [Fault], sights: &'static [State]) -> Life {
    Life { faults, kinds, flaw: None, keep_stale: false, sights }
}

#[test]
fn any_two_faults_lose_no_job_and_end_none_twice() {
    let ends = &[State::Succeeded, State::Failed, State::Quarantined, State::Cancelled, State::Scheduled];
    holds("life, any two faults", life(2, ALL_BUT_LOST_HOMES, ends));
}

#[test]
fn three_crashes_losses_and_expiries_lose_no_job_and_end_none_twice() {
    let kinds = &[Fault::Crash, Fault::LostReply, Fault::Redelivery, Fault::Wipe, Fault::Expiry];
    holds("life, three faults", life(3, kinds, &[State::Succeeded, State::Failed, State::Quarantined]));
}

#[test]
fn what_is_stale_harms_nobody_until_it_is_dealt_with() {
    let life = life(1, ALL_BUT_LOST_HOMES, &[State::Succeeded, State::Failed]);
    holds("life with everything stale", Life { keep_stale: true, ..life });
}

#[test]
fn a_lost_home_is_put_back_and_every_end_has_its_effects() {
    let kinds = &[Fault::LostHome, Fault::Crash, Fault::LostReply, Fault::Wipe, Fault::Cancel, Fault::Expiry];
    holds("life with lost homes", life(2, kinds, &[State::Succeeded, State::Cancelled]));
}

#[test]
fn no_attempt_is_lost_while_its_worker_lives() {
    let kinds =
        &[Fault::LostReply, Fault::Redelivery, Fault::Wipe, Fault::Haste, Fault::Repeat, Fault::Cancel, Fault::Drain];
    holds("life of living workers", life(3, kinds, &[State::Succeeded, State::Scheduled]));
}

#[test]
fn two_jobs_in_one_message_do_not_harm_each_other() {
    let pair = Pair { faults: 2, kinds: &[pair::Fault::Crash, pair::Fault::Away, pair::Fault::Wipe], flaw: None };
    holds("pair, any two faults", pair);
    holds(
        "pair, three crashes and losses",
        Pair { faults: 3, kinds: &[pair::Fault::Crash, pair::Fault::Wipe], ..pair },
    );
}

const IN_BATCHES: &[batches::Fault] = &[
    batches::Fault::Crash,
    batches::Fault::LostReply,
    batches::Fault::Refused,
    batches::Fault::Redelivery,
    batches::Fault::Wipe,
    batches::Fault::Expiry,
    batches::Fault::Haste,
    batches::Fault::Failure,
    batches::Fault::Cancel,
];

#[test]
fn any_two_faults_in_a_batch_of_two_lose_neither_and_end_neither_twice() {
    let batches = Batches { faults: 2, kinds: IN_BATCHES, flaw: None };
    holds("batches, any two faults", batches);
    let kinds = &[batches::Fault::Crash, batches::Fault::Refused, batches::Fault::Failure];
    holds("batches, three deaths, refusals and failures", Batches { faults: 3, kinds, ..batches });
}

const IN_ROUNDS: &[rounds::Fault] = &[
    rounds::Fault::Crash,
    rounds::Fault::LostReply,
    rounds::Fault::Refused,
    rounds::Fault::Wipe,
    rounds::Fault::Failure,
    rounds::Fault::Cancel,
    rounds::Fault::Pause,
];

#[test]
fn a_round_of_two_forgets_neither() {
    let rounds = Rounds { faults: 1, kinds: IN_ROUNDS, flaw: None };
    holds("rounds, any fault", rounds);
    let kinds = &[rounds::Fault::Crash, rounds::Fault::LostReply, rounds::Fault::Pause];
    holds("rounds, two deaths, lost answers and pauses", Rounds { faults: 2, kinds, ..rounds });
}

const AMONG_SLOTS: &[slots::Fault] = &[
    slots::Fault::Crash,
    slots::Fault::LostReply,
    slots::Fault::Redelivery,
    slots::Fault::Wipe,
    slots::Fault::Expiry,
    slots::Fault::Slow,
    slots::Fault::Failure,
    slots::Fault::Cancel,
    slots::Fault::Pause,
];

#[test]
fn two_jobs_of_one_key_never_run_at_the_same_time() {
    let slots = Slots { limits: &[slots::Limit::Key], faults: 1, kinds: AMONG_SLOTS, flaw: None };
    holds("slots of a key, any fault", slots);
    let kinds = &[slots::Fault::Crash, slots::Fault::Slow, slots::Fault::Failure, slots::Fault::Cancel];
    holds("slots of a key, two that move a slot", Slots { faults: 2, kinds, ..slots });
}

#[test]
fn two_jobs_of_a_topic_with_one_place_never_run_at_the_same_time() {
    let places = Slots { limits: &[slots::Limit::Topic], faults: 1, kinds: AMONG_SLOTS, flaw: None };
    holds("places of a topic, any fault", places);
    let both = &[slots::Limit::Topic, slots::Limit::Key];
    holds("places and slots, any fault", Slots { limits: both, ..places });
}

#[test]
fn nobody_is_looked_at_too_late() {
    let homes = Homes { transitions: 2, extensions: 1, repeats: 0, crashes: 0, flaw: None };
    holds("homes, two transitions", homes);
    holds("homes, three transitions", Homes { transitions: 3, extensions: 0, ..homes });
    holds("homes, a repeated submit", Homes { transitions: 1, repeats: 1, ..homes });
    holds("homes, a crash", Homes { extensions: 0, crashes: 1, ..homes });
}

#[test]
fn a_queued_job_is_released_once_and_never_forgotten() {
    holds("backlog", Backlog { faults: 3, flaw: None });
}

#[test]
fn what_two_gateways_answer_is_stored_and_has_a_home() {
    let submits = Submits { crashes: 2, jumps: 0, waits_after_a_jump: true, flaw: None };
    holds("submits, two crashes", submits);
    holds("submits, a jump of the clock", Submits { crashes: 0, jumps: 1, ..submits });
}

const KEPT: &[keep::Fault] = &[
    keep::Fault::Crash,
    keep::Fault::LostNews,
    keep::Fault::Redelivery,
    keep::Fault::Wipe,
    keep::Fault::Failover,
    keep::Fault::Cancel,
];

#[test]
fn a_run_that_two_replicas_keep_ends_once() {
    let keep = Keep { steps: 1, faults: 2, kinds: KEPT, flaw: None };
    holds("a run of one step, any two faults", keep);
    holds("a run of two steps, any fault", Keep { steps: 2, faults: 1, ..keep });
    let kinds = &[keep::Fault::Crash, keep::Fault::LostNews, keep::Fault::Cancel];
    holds("a run of two steps, two deaths, lost news and cancels", Keep { steps: 2, kinds, ..keep });
}

#[test]
fn each_item_has_one_job_and_the_join_waits_for_all() {
    let kinds = &[
        items::Fault::Crash,
        items::Fault::LostNews,
        items::Fault::Redelivery,
        items::Fault::Wipe,
        items::Fault::Failover,
        items::Fault::Silence,
    ];
    let items = Items { parallel: 1, faults: 2, kinds, flaw: None };
    holds("items one by one, any two faults", items);
    holds("items together, any two faults", Items { parallel: 2, ..items });
}

#[test]
fn no_answered_signal_is_lost() {
    let kinds = &[
        signals::Fault::Crash,
        signals::Fault::Repeat,
        signals::Fault::Wipe,
        signals::Fault::Failover,
        signals::Fault::Pause,
    ];
    let signals = Signals { fresh: true, signals: 1, faults: 2, kinds, flaw: None };
    holds("a start and a signal, any two faults", signals);
    holds("two signals, any fault", Signals { fresh: false, signals: 2, faults: 1, ..signals });
}

#[test]
fn parent_and_child_end_together() {
    let kinds = &[
        children::Fault::Crash,
        children::Fault::LostNews,
        children::Fault::Redelivery,
        children::Fault::Wipe,
        children::Fault::Failover,
        children::Fault::Cancel,
    ];
    holds("a sub-run, any two faults", Children { faults: 2, kinds, flaw: None });
}

#[test]
fn what_succeeded_is_compensated_in_reverse_order_and_nothing_else() {
    let kinds = &[stops::Fault::LostNews, stops::Fault::Failover, stops::Fault::Failure, stops::Fault::TimeOut];
    let stops = Stops { rule: stops::Rule::All, faults: 2, kinds, flaw: None };
    holds("compensations, any two faults", stops);
    holds("the first of two, any three faults", Stops { rule: stops::Rule::First, faults: 3, ..stops });
}
