//! What is wrong on purpose, and which law says so.

use super::{
    backlog::{self, Backlog},
    explore::{NO_DEAD_END, breaks},
    homes::{self, Homes},
    life::{self, Fault, Flaw, Life},
    pair::{self, Pair},
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
    Pair { faults: 2, flaw: Some(flaw) }
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
}
