//! One conformance suite for the store. The same tests run on a standalone Redis and on a real
//! cluster of six nodes: what holds on one holds on the other. Tests share one server of each
//! kind, so each uses jobs, tenants, locks and home shards of its own.

#[path = "conformance/audit.rs"]
mod audit;
#[path = "conformance/away.rs"]
mod away;
#[path = "conformance/bench.rs"]
mod bench;
#[path = "conformance/bounded.rs"]
mod bounded;
#[path = "conformance/claims.rs"]
mod claims;
#[path = "conformance/definitions.rs"]
mod definitions;
#[path = "conformance/failover.rs"]
mod failover;
#[path = "conformance/forestalled.rs"]
mod forestalled;
#[path = "conformance/full.rs"]
mod full;
#[path = "conformance/homes.rs"]
mod homes;
#[path = "conformance/leases.rs"]
mod leases;
#[path = "conformance/limits.rs"]
mod limits;
#[path = "conformance/lines.rs"]
mod lines;
#[path = "conformance/lists.rs"]
mod lists;
#[path = "conformance/looks.rs"]
mod looks;
#[path = "conformance/lost_replies.rs"]
mod lost_replies;
#[path = "conformance/one_key.rs"]
mod one_key;
#[path = "conformance/operations.rs"]
mod operations;
#[path = "conformance/papers.rs"]
mod papers;
#[path = "conformance/queues.rs"]
mod queues;
#[path = "conformance/repeats.rs"]
mod repeats;
#[path = "conformance/replicas.rs"]
mod replicas;
#[path = "conformance/reread.rs"]
mod reread;
#[path = "conformance/retention.rs"]
mod retention;
#[path = "conformance/runs.rs"]
mod runs;
#[path = "conformance/scrub.rs"]
mod scrub;
#[path = "conformance/settings.rs"]
mod settings;
#[path = "conformance/slots.rs"]
mod slots;
#[path = "conformance/stories.rs"]
mod stories;
#[path = "conformance/transitions.rs"]
mod transitions;
#[path = "conformance/unreadable.rs"]
mod unreadable;
#[path = "conformance/vitals.rs"]
mod vitals;
#[path = "conformance/whole.rs"]
mod whole;

/// Makes two tests of every function: one per kind of Redis.
macro_rules! on_both {
    ($($module:ident::$test:ident,)*) => {
        mod standalone {
            $(#[tokio::test]
            async fn $test() {
                super::$module::$test(&super::bench::Bench::standalone().await).await;
            })*
        }
        mod cluster {
            $(#[tokio::test]
            async fn $test() {
                super::$module::$test(&super::bench::Bench::cluster().await).await;
            })*
        }
    };
}

on_both! {
    transitions::every_pair_of_state_and_event_does_what_the_table_says,
    transitions::a_wrong_version_or_fence_is_stale_and_changes_nothing,
    transitions::an_event_before_its_moment_is_early_and_changes_nothing,
    transitions::a_job_that_is_not_there_is_missing_and_stays_so,
    transitions::a_scheduled_job_wakes_at_its_time_and_not_before,
    transitions::start_by_ends_only_what_never_started,
    transitions::an_offer_is_started_only_under_its_own_version,
    transitions::a_late_worker_changes_nothing,
    transitions::the_short_ways_lead_where_the_long_one_does,
    claims::of_64_dispatchers_one_dispatches_and_all_know_the_offer,
    claims::of_64_workers_one_starts_and_hears_go_again,
    claims::fences_grow_over_ten_thousand_rescues,
    claims::a_fence_grows_even_when_the_clock_was_set_back,
    looks::the_script_forwards_exactly_when_the_rules_say_so,
    looks::a_home_is_forwarded_when_the_next_look_comes_nearer,
    looks::an_old_pending_job_may_be_due_late,
    repeats::a_submit_sent_twice_creates_once,
    repeats::a_submit_is_prepared_by_a_home_and_a_place,
    repeats::an_extension_sent_twice_is_one_lease,
    repeats::a_release_sent_twice_gives_one_attempt_back,
    repeats::a_delete_sent_twice_deletes_once,
    repeats::a_deleted_job_keeps_its_idempotency_key,
    whole::every_event_makes_of_it_what_it_makes_of_one_by_the_script,
    whole::it_keeps_what_was_asked_for,
    whole::large_ones_late_ones_and_those_with_moments_are_written_by_the_script,
    whole::one_that_is_deleted_leaves_a_stub_without_its_payload,
    whole::its_place_is_the_one_that_was_noted_last,
    whole::one_that_is_cut_short_is_unreadable,
    reread::a_forgotten_job_is_made_again_as_old_as_it_was,
    reread::what_is_there_or_was_deleted_is_not_made_again,
    reread::a_stub_stays_as_long_as_a_submit_may_be_read_again,
    repeats::a_retry_mark_sent_twice_is_one_mark,
    repeats::every_submit_keeps_what_was_asked_for,
    repeats::a_replicated_submit_says_how_many_replicas_have_it,
    stories::a_story_keeps_its_first_and_last_63_lines,
    stories::texts_are_cut_on_a_character_boundary,
    stories::moments_of_a_life_are_those_of_its_transitions,
    stories::what_an_attempt_left_is_read_back,
    stories::progress_of_an_earlier_attempt_is_gone,
    stories::a_lease_that_was_cut_short_is_remembered,
    homes::a_home_is_set_whatever_stood_there,
    homes::a_rescore_loses_against_a_forward_in_between,
    homes::a_forward_always_changes_the_score,
    homes::an_orphan_is_dropped_only_if_due_and_untouched,
    homes::homes_are_due_in_order_and_the_next_is_known,
    homes::homes_of_runs_and_schedules_stand_apart_from_those_of_jobs,
    queues::priority_goes_first_then_age,
    queues::a_claimed_entry_is_not_claimed_twice,
    queues::a_lapsed_claim_comes_first_again,
    queues::an_entry_may_be_claimed_from_its_first_moment_on,
    queues::a_claim_from_a_clock_that_ran_ahead_is_over,
    queues::who_goes_before_a_kept_one_is_claimed_alone,
    queues::a_late_removal_does_not_hit_the_new_entry,
    queues::an_entry_that_is_there_stays_as_it_is,
    queues::a_place_counts_everybody_who_goes_before,
    limits::of_100_at_once_exactly_the_burst_is_granted,
    limits::part_of_what_is_wanted_or_all_of_it,
    limits::a_limit_refills_at_its_rate,
    leases::of_two_keepers_one_holds_and_notices_when_it_does_not,
    leases::a_release_lets_the_other_in_at_once,
    leases::one_piece_of_work_is_done_under_a_lock_by_one_of_many,
    leases::a_dead_holders_lock_is_taken_when_it_runs_out,
    leases::what_was_granted_unheard_is_let_go_as_well,
    leases::a_lease_that_is_lost_or_another_locks_writes_nothing,
    slots::no_more_hold_a_slot_than_there_are,
    slots::a_dispatch_under_a_slot_is_named_by_the_record,
    slots::a_topic_has_no_more_places_than_it_was_told_and_nobody_waits_in_line,
    slots::a_dispatch_at_a_place_is_named_by_the_record_until_one_without,
    lines::a_line_that_was_noted_is_found_with_what_its_jobs_require,
    lines::an_old_name_is_dropped_unless_it_was_noted_meanwhile,
    lines::no_more_lines_are_told_of_than_there_may_be,
    lists::every_job_is_shown_exactly_once_while_others_are_added,
    lists::a_second_list_of_the_same_ten_minutes_is_walked_behind_the_first,
    lists::a_page_of_large_jobs_ends_at_its_bound_and_each_is_shown_once,
    lists::filters_show_what_was_asked_for,
    lists::bad_ends_are_walked_along_the_dead_letters,
    lists::cursors_of_others_are_refused,
    lists::deleted_jobs_and_other_tenants_are_not_shown,
    operations::an_operation_has_one_carrier_and_the_next_goes_on_where_it_stopped,
    operations::a_cancelled_operation_counts_what_it_did_and_does_not_go_on,
    operations::operations_are_listed_by_tenant_newest_first,
    forestalled::an_absent_job_is_created_by_the_events_of_the_table_and_by_no_other,
    forestalled::a_job_that_was_cancelled_before_its_submit_is_like_one_cancelled_right_after_it,
    forestalled::a_job_that_exists_is_not_created_by_a_cancel,
    definitions::content_equal_to_the_latest_makes_no_new_version,
    definitions::of_many_writers_of_a_definition_who_saw_the_same_one_wins,
    definitions::a_deleted_definition_is_hidden_and_its_numbers_are_not_used_again,
    definitions::definitions_are_listed_by_name,
    runs::a_run_is_created_once_and_a_repeat_is_the_same_creation,
    runs::a_save_writes_what_changed_under_the_version_that_was_read,
    runs::a_save_compares_counter_and_nonce,
    runs::a_large_run_is_saved_and_read_whole,
    runs::a_run_is_deleted_as_it_was_read_with_its_timeline,
    runs::a_timeline_keeps_its_first_and_last_entries,
    runs::an_ended_run_leaves_unless_it_has_a_home_or_another_run_needs_it,
    runs::a_run_without_a_home_is_found_on_whatever_node_it_is,
    runs::runs_are_listed_newest_first_and_each_once,
    papers::the_first_note_wins_and_never_changes,
    papers::an_api_key_is_found_listed_and_deleted,
    papers::a_dead_message_is_read_back_as_it_came,
    replicas::a_snapshot_is_read_as_written_and_runs_out,
    replicas::a_replica_is_known_while_it_speaks,
    replicas::every_lock_is_shown_with_its_holder,
    settings::of_64_writers_who_saw_the_same_version_one_wins,
    settings::settings_and_a_pause_are_written_apart,
    settings::what_changed_since_is_found_and_so_is_everything,
    settings::the_clusters_settings_are_replaced_as_a_whole,
    settings::the_first_to_come_notes_the_format_of_the_data,
}
