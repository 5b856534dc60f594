//! The flaws that are introduced on purpose, and the law that each one breaks.

use super::{
    backlog::{self, Backlog},
    batches::{self, Batches},
    explore::{NO_DEAD_END, breaks},
    homes::{self, Homes},
    life::{self, Fault, Flaw, Life},
    pair::{self, Pair},
    rounds::{self, Rounds},
    runs::{
        children::{self, Children},
        items::{self, Items},
        keep::{self, Keep},
        signals::{self, Signals},
        stops::{self, Stops},
    },
    slots::{self, Slots},
    submits::{self, Submits},
};

/// A test per flaw: its name, the law that must be found broken, and the protocol.
macro_rules! flaws {
    ($($name:ident: $law:expr, $protocol:expr;)*) => {
        $(#[test]
        fn $name() {
            breaks(stringify!($name), $protocol, $law);
        })*
    };
}

fn life(flaw: Flaw, faults: u8, kinds: &'static [Fault]) -> Life {
    Life { faults, kinds, flaw: Some(flaw), keep_stale: false, sights: &[] }
}

fn homes(flaw: homes::Flaw) -> Homes {
    Homes { transitions: 2, extensions: 1, repeats: 1, crashes: 0, flaw: Some(flaw) }
}

fn backlog(flaw: backlog::Flaw) -> Backlog {
    Backlog { faults: 2, flaw: Some(flaw) }
}

fn submits(flaw: submits::Flaw) -> Submits {
    Submits { crashes: 1, jumps: 0, waits_after_a_jump: true, flaw: Some(flaw) }
}

fn pair(flaw: pair::Flaw) -> Pair {
    Pair { faults: 2, kinds: &[pair::Fault::Crash, pair::Fault::Away, pair::Fault::Wipe], flaw: Some(flaw) }
}

fn batches(flaw: batches::Flaw, kinds: &'static [batches::Fault]) -> Batches {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    Batches { faults, kinds, flaw: Some(flaw) }
}

fn rounds(flaw: rounds::Flaw, kinds: &'static [rounds::Fault]) -> Rounds {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    Rounds { faults, kinds, flaw: Some(flaw) }
}

fn slots(flaw: slots::Flaw, kinds: &'static [slots::Fault]) -> Slots {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    Slots { limits: &[slots::Limit::Key], faults, kinds, flaw: Some(flaw) }
}

fn keep(flaw: keep::Flaw, kinds: &'static [keep::Fault]) -> Keep {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    // A failover shows all its harm in one step.
    let steps = if kinds.contains(&keep::Fault::Failover) { 1 } else { 2 };
    Keep { steps, faults, kinds, flaw: Some(flaw) }
}

fn items(flaw: items::Flaw, kinds: &'static [items::Fault]) -> Items {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    Items { parallel: if flaw == items::Flaw::CountsEnds { 2 } else { 1 }, faults, kinds, flaw: Some(flaw) }
}

fn signals(flaw: signals::Flaw, signals: u8, kinds: &'static [signals::Fault]) -> Signals {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    let fresh = matches!(flaw, signals::Flaw::UnpublishedStart | signals::Flaw::MissedAtOnce);
    Signals { fresh, signals, faults, kinds, flaw: Some(flaw) }
}

fn children(flaw: children::Flaw, kinds: &'static [children::Fault]) -> Children {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    Children { faults, kinds, flaw: Some(flaw) }
}

fn stops(flaw: stops::Flaw, rule: stops::Rule, kinds: &'static [stops::Fault]) -> Stops {
    let faults = u8::try_from(kinds.len()).unwrap_or(u8::MAX);
    Stops { rule, faults, kinds, flaw: Some(flaw) }
}

flaws! {
    a_reader_that_drops_instead_of_rescoring:
        life::HAS_HOME, life(Flaw::DropsInsteadOfRescoring, 0, &[]);
    a_record_before_its_home:
        life::STORED_HOMED, life(Flaw::RecordBeforeHome, 1, &[Fault::Crash]);
    effects_not_repeated_on_already:
        life::EFFECTS_FIRST, life(Flaw::EffectsOnce, 1, &[Fault::Crash]);
    effects_not_repeated_after_a_lost_reply:
        life::EFFECTS_FIRST, life(Flaw::EffectsOnce, 1, &[Fault::LostReply]);
    a_home_removed_before_the_effects:
        life::HAS_HOME, life(Flaw::HomeBeforeEffects, 1, &[Fault::Crash]);
    an_orphan_removed_without_comparing:
        life::HAS_HOME, life(Flaw::UncomparedRemoval, 0, &[]);
    a_slow_gateway_that_does_not_write_its_home_again:
        life::HAS_HOME, life(Flaw::NoRewrite, 0, &[]);
    a_start_heard_by_worker_and_not_by_start_id:
        life::ONE_HOLDER, life(Flaw::StartByWorker, 1, &[Fault::Redelivery]);
    a_start_id_given_up_after_a_lost_reply:
        life::NONE_LOST, life(Flaw::GivesUpAsking, 1, &[Fault::LostReply]);
    a_result_forgotten_once_the_stream_has_it:
        life::NONE_LOST, life(Flaw::ForgetsResults, 1, &[Fault::Wipe]);
    a_release_that_is_not_awaited:
        life::NONE_LOST, life(Flaw::LeavesAfterRelease, 2, &[Fault::Wipe, Fault::Drain]);
    a_release_after_a_result:
        life::FIRST_WORD, life(Flaw::ReleasesAfterResult, 1, &[Fault::Drain]);
    silence_without_the_ack_floor:
        life::FIRST_WORD, life(Flaw::NoAckFloor, 1, &[Fault::Crash]);
    nobody_scrubs:
        NO_DEAD_END, life(Flaw::NoScrub, 1, &[Fault::LostHome]);
    a_scrub_that_passes_ended_jobs_over:
        NO_DEAD_END, life(Flaw::ScrubOnlyLiving, 3, &[Fault::LostHome, Fault::Crash, Fault::Cancel]);

    a_rescore_without_comparing:
        homes::IN_TIME, homes(homes::Flaw::BlindRescore);
    a_forward_that_leaves_the_score_alone:
        homes::IN_TIME, homes(homes::Flaw::ForwardOnlyIfLess);
    a_repeated_submit_that_does_not_forward:
        homes::IN_TIME, homes(homes::Flaw::NoForwardAfterSet);
    a_look_put_off_for_a_lease:
        homes::IN_TIME, homes(homes::Flaw::LongDeferral);

    a_queue_member_without_a_version:
        backlog::QUEUED_FOUND, backlog(backlog::Flaw::NoVersion);
    an_entry_removed_by_who_lost_the_dispatch:
        backlog::OFFER_FOUND, backlog(backlog::Flaw::LoserRemoves);
    an_entry_removed_before_the_home_is_forwarded:
        backlog::OFFER_FOUND, backlog(backlog::Flaw::RemovesBeforeForward);
    an_entry_popped_instead_of_claimed:
        backlog::QUEUED_FOUND, backlog(backlog::Flaw::Pops);
    an_entry_removed_though_its_job_is_queued_under_another_version:
        backlog::QUEUED_FOUND, backlog(backlog::Flaw::DropsOlder);

    a_home_set_only_if_it_is_earlier:
        submits::ANSWERED_HOMED, submits(submits::Flaw::SetOnlyIfLess);
    a_slow_submit_that_is_not_written_again:
        submits::ANSWERED_HOMED, submits(submits::Flaw::NoRewrite);
    an_orphan_of_two_gateways_removed_without_comparing:
        submits::ANSWERED_HOMED, submits(submits::Flaw::UncomparedRemoval);
    orphans_removed_right_after_a_jump_of_the_clock:
        submits::ANSWERED_HOMED, Submits { crashes: 0, jumps: 1, waits_after_a_jump: false, flaw: None };

    silence_proven_though_a_record_was_out_of_reach:
        pair::HEARD, pair(pair::Flaw::ProbeMisses);
    a_delivery_acked_though_an_item_failed:
        pair::HEARD, pair(pair::Flaw::AcksDespiteFailure);

    a_slot_given_back_under_whoever_was_admitted:
        slots::WITHIN_LIMIT, slots(slots::Flaw::FreesAdmitting, &[slots::Fault::Slow]);
    a_slot_given_back_by_who_lost_the_dispatch:
        slots::WITHIN_LIMIT, slots(slots::Flaw::LoserFrees, &[]);
    a_slot_that_ends_by_time_alone:
        slots::WITHIN_LIMIT, slots(slots::Flaw::TimeAlone, &[]);
    a_cancel_that_gives_the_slot_back_at_once:
        slots::WITHIN_LIMIT, slots(slots::Flaw::EndFrees, &[slots::Fault::Cancel]);
    a_hand_over_that_removes_who_holds_the_slot_by_now:
        slots::WITHIN_LIMIT, slots(slots::Flaw::HandOverFrees, &[slots::Fault::Failure]);
    a_slot_without_a_version:
        slots::WITHIN_LIMIT, slots(slots::Flaw::BareMember, &[slots::Fault::Failure, slots::Fault::Redelivery]);
    slots_that_nobody_looks_at:
        NO_DEAD_END, slots(slots::Flaw::NeverReclaims, &[slots::Fault::Crash]);
    an_attempt_that_was_lost_and_is_not_counted:
        slots::STARTS, slots(slots::Flaw::LostIsFree, &[slots::Fault::Crash, slots::Fault::Crash]);

    a_batch_acked_though_an_item_failed:
        batches::FIRST_WORD,
        batches(batches::Flaw::AcksDespiteFailure, &[batches::Fault::Refused, batches::Fault::Crash]);
    what_failed_of_a_batch_and_is_forgotten:
        batches::FIRST_WORD,
        batches(batches::Flaw::ForgetsWhatFailed, &[batches::Fault::Crash, batches::Fault::Refused, batches::Fault::Crash]);
    homes_of_a_whole_batch_that_leave_with_the_first:
        batches::HAS_HOME, batches(batches::Flaw::DropsAllHomes, &[batches::Fault::Failure]);
    effects_of_a_batch_not_repeated_on_already:
        batches::EFFECTS_FIRST, batches(batches::Flaw::EffectsOnce, &[batches::Fault::LostReply]);
    a_start_for_whoever_asks:
        batches::ONE_HOLDER, batches(batches::Flaw::StartForAnybody, &[batches::Fault::Redelivery]);
    a_report_written_over_an_end:
        batches::ONE_END, batches(batches::Flaw::WritesBlindly, &[batches::Fault::Cancel]);
    a_lost_attempt_of_two_jobs_that_is_not_counted:
        batches::STARTS, batches(batches::Flaw::LostIsFree, &[batches::Fault::Crash, batches::Fault::Crash]);
    two_jobs_that_nobody_looks_at:
        NO_DEAD_END, batches(batches::Flaw::NobodyLooks, &[batches::Fault::Wipe]);

    a_round_that_removes_what_it_knows_nothing_about:
        rounds::QUEUED_FOUND, rounds(rounds::Flaw::RemovesUnknown, &[rounds::Fault::Refused]);
    a_round_that_removes_what_the_bus_did_not_take:
        rounds::OFFER_FOUND, rounds(rounds::Flaw::RemovesUnsent, &[rounds::Fault::Refused]);
    a_look_that_takes_who_stands_in_line_for_queued:
        rounds::PENDING_FOUND, rounds(rounds::Flaw::LinedFar, &[]);
    entries_that_nobody_puts_back:
        NO_DEAD_END, rounds(rounds::Flaw::NobodyLooks, &[rounds::Fault::Crash]);

    a_save_that_compares_the_counter_without_the_nonce:
        keep::CANCEL_HELD, keep(keep::Flaw::CounterOnly, &[keep::Fault::Failover, keep::Fault::Cancel]);
    a_save_of_what_was_read_before_a_failover:
        keep::CANCEL_HELD, keep(keep::Flaw::SavesAcross, &[keep::Fault::Failover, keep::Fault::Cancel]);
    an_outbox_cleared_before_it_is_carried_out:
        NO_DEAD_END, keep(keep::Flaw::ClearsFirst, &[keep::Fault::Crash]);
    news_acked_before_the_save:
        keep::FOUND, keep(keep::Flaw::AcksBeforeSave, &[keep::Fault::Crash]);
    news_acked_before_the_home_is_forwarded:
        keep::FOUND, keep(keep::Flaw::AcksBeforeForward, &[keep::Fault::Crash]);
    news_that_were_applied_before_and_are_just_acked:
        keep::FOUND, keep(keep::Flaw::AppliedIsAcked, &[keep::Fault::Crash]);
    a_home_of_a_run_removed_by_who_reads_it:
        keep::HAS_HOME, keep(keep::Flaw::DropsHomeOnRead, &[keep::Fault::Crash]);
    a_home_of_a_run_rescored_without_comparing:
        keep::FOUND, keep(keep::Flaw::BlindRescore, &[keep::Fault::Crash]);
    a_look_that_saves_without_forwarding_first:
        keep::FOUND, keep(keep::Flaw::SavesUntouched, &[keep::Fault::Crash, keep::Fault::LostNews]);
    a_look_that_reads_no_jobs:
        NO_DEAD_END, keep(keep::Flaw::LooksAtOutboxOnly, &[keep::Fault::LostNews]);
    a_cancel_that_ignores_absent_jobs:
        keep::NO_REVIVAL, keep(keep::Flaw::CancelIgnoresAbsent, &[keep::Fault::Cancel]);
    a_job_created_cancelled_that_the_bus_does_not_know:
        keep::NO_REVIVAL, keep(keep::Flaw::UnpublishedCancel, &[keep::Fault::Cancel, keep::Fault::Failover]);
    a_second_submit_under_a_new_id:
        keep::ONE_JOB, keep(keep::Flaw::NewIds, &[keep::Fault::Crash]);
    saves_before_the_bus_was_read_again:
        keep::CANCEL_HELD, keep(keep::Flaw::SavesBeforeReread, &[keep::Fault::Failover, keep::Fault::Cancel]);
    a_cancel_of_a_run_that_is_not_published:
        keep::CANCEL_HELD, keep(keep::Flaw::UnpublishedOperation, &[keep::Fault::Failover, keep::Fault::Cancel]);
    a_cancel_of_a_run_published_after_its_commands:
        keep::ENDS_RIGHT, keep(keep::Flaw::PublishesLast, &[keep::Fault::Failover, keep::Fault::Cancel]);
    commands_of_a_save_that_a_failover_has_lost:
        keep::ENDS_RIGHT, keep(keep::Flaw::Unchecked, &[keep::Fault::Failover, keep::Fault::Cancel]);
    a_cancel_read_again_that_comes_after_every_end:
        keep::ENDS_ONCE, keep(keep::Flaw::IgnoresTimes, &[keep::Fault::Failover, keep::Fault::Cancel]);
    a_cancel_that_does_not_read_the_jobs:
        keep::ENDS_ONCE, keep(keep::Flaw::CancelsUnread, &[keep::Fault::Failover, keep::Fault::Cancel]);

    an_absence_believed_at_once:
        items::LOST_TRUE, items(items::Flaw::AbsentAtOnce, &[items::Fault::Failover]);
    a_confirmed_item_submitted_again:
        items::RUNS_ONCE, items(items::Flaw::AbsentIsSubmitted, &[items::Fault::Silence, items::Fault::Failover, items::Fault::LostNews]);
    an_item_confirmed_before_its_submit:
        items::LOST_TRUE, items(items::Flaw::ConfirmsFirst, &[items::Fault::Crash]);
    a_taken_id_that_fails_its_item:
        items::LOST_TRUE, items(items::Flaw::TakenIsFailure, &[items::Fault::Crash]);
    ends_counted_instead_of_noted:
        items::JOIN, items(items::Flaw::CountsEnds, &[items::Fault::Redelivery]);
    retention_that_ignores_the_run:
        items::LOST_TRUE, items(items::Flaw::RetentionIgnoresRun, &[items::Fault::LostNews]);

    a_signal_saved_under_the_counter_alone:
        signals::KEPT, signals(signals::Flaw::CounterOnly, 2, &[signals::Fault::Failover]);
    a_signal_kept_only_if_its_step_is_open:
        signals::KEPT, signals(signals::Flaw::OnlyOpenSteps, 1, &[]);
    a_signal_forgotten_by_a_paused_run:
        signals::KEPT, signals(signals::Flaw::PausedForgets, 1, &[signals::Fault::Pause]);
    a_key_forgotten_with_its_signal:
        signals::READ_ONCE, signals(signals::Flaw::ForgetsKeys, 2, &[signals::Fault::Repeat]);
    a_signal_that_is_not_published:
        signals::KEPT, signals(signals::Flaw::UnpublishedSignal, 1, &[signals::Fault::Failover]);
    a_start_that_is_not_published:
        signals::FOUND, signals(signals::Flaw::UnpublishedStart, 1, &[signals::Fault::Failover]);
    a_signal_answered_though_its_save_was_lost:
        signals::KEPT, signals(signals::Flaw::Unchecked, 1, &[signals::Fault::Failover]);
    a_run_missed_before_the_bus_was_read_again:
        signals::FOUND, signals(signals::Flaw::MissedAtOnce, 1, &[signals::Fault::Failover]);
    an_end_told_before_what_led_to_it_is_published:
        signals::ENDS_ONCE, signals(signals::Flaw::TellsFirst, 2, &[signals::Fault::Failover]);

    a_cancel_that_ignores_an_absent_child:
        children::NO_REVIVAL, children(children::Flaw::CancelIgnoresAbsent, &[children::Fault::Cancel]);
    a_child_created_cancelled_that_the_bus_does_not_know:
        children::NO_REVIVAL, children(children::Flaw::UnpublishedCancel, &[children::Fault::Cancel, children::Fault::Failover]);
    a_child_whose_start_is_not_published:
        NO_DEAD_END, children(children::Flaw::UnpublishedStart, &[children::Fault::Failover]);
    a_child_whose_start_is_published_and_not_checked:
        NO_DEAD_END, children(children::Flaw::Unchecked, &[children::Fault::Failover]);
    a_childs_end_taken_before_it_is_published:
        children::ENDS_ONCE, children(children::Flaw::UnpublishedEnd, &[children::Fault::Failover, children::Fault::Cancel]);
    a_look_that_reads_no_child:
        NO_DEAD_END, children(children::Flaw::LooksAtOutboxOnly, &[children::Fault::LostNews]);
    a_parent_that_ends_before_its_child:
        children::ENDS_WITH_CHILD, children(children::Flaw::EndsBeforeChild, &[children::Fault::Cancel]);
    a_second_start_under_a_new_id:
        children::ONE_CHILD, children(children::Flaw::NewIds, &[children::Fault::Crash]);

    ends_applied_as_they_arrive:
        stops::ENDS_ONCE, stops(stops::Flaw::OrderOfArrival, stops::Rule::First, &[stops::Fault::Failover]);
    completions_in_the_order_of_arrival:
        stops::REVERSE, stops(stops::Flaw::OrderOfArrival, stops::Rule::All, &[stops::Fault::TimeOut]);
    a_time_out_that_does_not_read_the_jobs:
        stops::ONLY_SUCCEEDED, stops(stops::Flaw::TimesOutUnread, stops::Rule::All, &[stops::Fault::TimeOut, stops::Fault::Failover]);
    compensations_that_do_not_await_what_runs:
        stops::ALL_SUCCEEDED, stops(stops::Flaw::DoesNotAwait, stops::Rule::All, &[stops::Fault::Failure]);
    a_compensation_of_what_failed:
        stops::ONLY_SUCCEEDED, stops(stops::Flaw::UndoesFailed, stops::Rule::All, &[stops::Fault::Failure]);
    compensations_all_at_once:
        stops::REVERSE, stops(stops::Flaw::UndoesAtOnce, stops::Rule::All, &[stops::Fault::TimeOut]);
    a_step_that_does_not_wait_for_all:
        stops::JOIN, stops(stops::Flaw::JoinsEarly, stops::Rule::All, &[]);
}
