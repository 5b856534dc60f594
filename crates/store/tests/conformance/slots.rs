//! Slots of a concurrency limit: never more than there are, first in line first, removed by compare.

use std::time::Duration;

use futures_util::future::join_all;
use muster_domain::{
    Event, JobId, Priority, Time,
    slot::{Limit, SLOT_LOOK},
};
use muster_store::{Fields, SlotAsk, SlotRef, SlotTaken, Step};

use crate::bench::{Bench, new_job, spec, tenant};

fn ask(slot: &SlotRef, max: u32, priority: Priority, since: u64) -> SlotAsk {
    SlotAsk { slot: slot.clone(), max, priority, since: Time(since) }
}

pub(crate) async fn no_more_hold_a_slot_than_there_are(bench: &Bench) {
    let tenant = tenant();
    let limit = Limit::Key("customer:17".into());
    let slot = |version| SlotRef { tenant: tenant.clone(), limit: limit.clone(), job: JobId::mint(1), version };
    let slots: Vec<SlotRef> = (1..=32).map(slot).collect();
    // From two replicas at once, and each asked twice.
    let replica = bench.replica().await;
    let asks: Vec<SlotAsk> =
        slots.iter().map(|slot| ask(slot, 3, Priority::Normal, 1_000 + u64::from(slot.version))).collect();
    let (one, two) = tokio::join!(bench.store.take_slots(&asks), replica.take_slots(&asks));
    let admitted =
        |taken: &[Result<SlotTaken, _>]| taken.iter().filter(|t| matches!(t, Ok(SlotTaken::Admitted))).count();
    assert_eq!(admitted(&one) + admitted(&two), 3);
    let (holders, held, waiting) = bench.store.read_slots(&tenant, &limit).await.unwrap();
    assert_eq!((holders.len(), held, waiting), (3, 3, 29));

    // Who is asked again and has it hears so; who has none hears who has.
    let again = bench.store.take_slots(&[ask(&holders[0].slot, 3, Priority::Normal, 1)]).await;
    assert!(matches!(&again[0], Ok(SlotTaken::Before(by, _)) if *by == [holders[0].clone()]), "{again:?}");
    let late = SlotRef { job: JobId::mint(2), ..slots[0].clone() };
    let refused = bench.store.take_slots(&[ask(&late, 3, Priority::Critical, 9_000)]).await;
    let Ok(SlotTaken::Full(by, now)) = &refused[0] else { panic!("{refused:?}") };
    assert_eq!(*by, holders);
    assert!(by.iter().all(|held| held.look > *now && held.look <= *now + SLOT_LOOK));

    // Removal compares what was read; who is first in line is the most urgent, then the oldest.
    let other = Some(Time(holders[0].look.0 + 1));
    assert_eq!(bench.store.free_slot(&holders[0].slot, other).await.unwrap(), Some(late.clone()));
    assert_eq!(bench.store.read_slots(&tenant, &limit).await.unwrap().1, 3, "not that one");
    bench.store.keep_slot(&holders[0], Duration::from_secs(600)).await.unwrap();
    let old = bench.store.free_slot(&holders[0].slot, Some(holders[0].look)).await.unwrap();
    assert_eq!((old, bench.store.read_slots(&tenant, &limit).await.unwrap().1), (Some(late.clone()), 3), "kept since");
    bench.store.free_slot(&holders[0].slot, None).await.unwrap();
    assert!(matches!(
        bench.store.take_slots(&[ask(&late, 3, Priority::Critical, 9_000)]).await[0],
        Ok(SlotTaken::Admitted)
    ));
    let next = bench.store.free_slot(&late, None).await.unwrap().unwrap();
    let oldest = slots.iter().find(|slot| !holders.iter().any(|held| held.slot == **slot));
    assert_eq!(Some(&next), oldest);
    join_all(slots.iter().map(|slot| bench.store.free_slot(slot, None))).await;
    assert_eq!(bench.store.read_slots(&tenant, &limit).await.unwrap(), (vec![], 0, 0));
}

pub(crate) async fn a_dispatch_under_a_slot_is_named_by_the_record(bench: &Bench) {
    let mut job = new_job(spec(&tenant()));
    job.spec.concurrency_key = "k".into();
    bench.store.submit(std::slice::from_ref(&job)).await.pop().unwrap().unwrap();
    let step = |event, seen, slot| Step { slot, ..Step::new(job.id, event, seen) };
    bench.store.apply_one(step(Event::Hold, 1, false)).await.unwrap();
    let record = async || bench.store.read_one(job.id, Fields::NONE).await.unwrap().unwrap();
    assert_eq!((record().await.slot, SlotRef::of(&record().await)), (None, vec![]));
    bench.store.apply_one(step(Event::Dispatch, 2, true)).await.unwrap();
    let slots = SlotRef::of(&record().await);
    assert_eq!(
        slots.iter().map(|slot| (&slot.limit, slot.version)).collect::<Vec<_>>(),
        [(&Limit::Key("k".into()), 2)]
    );
    bench.store.apply_one(step(Event::Reoffer, 3, false)).await.unwrap();
    assert_eq!(record().await.slot, Some(2), "an offer made again is under the same slot");
}

pub(crate) async fn a_topic_has_no_more_places_than_it_was_told_and_nobody_waits_in_line(bench: &Bench) {
    let (tenant, topic) = (tenant(), spec(&tenant()).topic);
    let limit = Limit::Topic(topic.clone());
    let place = |n: u32| SlotRef { tenant: tenant.clone(), limit: limit.clone(), job: JobId::mint(1), version: n };
    let places: Vec<SlotRef> = (1..=20).map(place).collect();
    let replica = bench.replica().await;
    let asks: Vec<SlotAsk> = places.iter().map(|place| ask(place, 3, Priority::Normal, 1_000)).collect();
    let (one, two) = tokio::join!(bench.store.take_slots(&asks), replica.take_slots(&asks));
    let admitted =
        |taken: &[Result<SlotTaken, _>]| taken.iter().filter(|t| matches!(t, Ok(SlotTaken::Admitted))).count();
    assert_eq!(admitted(&one) + admitted(&two), 3);
    let (holders, held, waiting) = bench.store.read_slots(&tenant, &limit).await.unwrap();
    assert_eq!((holders.len(), held, waiting), (3, 3, 0), "who is next is said by the backlog");

    // A key of the same name as the topic is another limit.
    let key = Limit::Key(topic.to_string());
    assert_eq!(bench.store.read_slots(&tenant, &key).await.unwrap(), (vec![], 0, 0));
    let keyed = SlotRef { limit: key, ..places[0].clone() };
    assert!(matches!(bench.store.take_slots(&[ask(&keyed, 1, Priority::Normal, 1)]).await[0], Ok(SlotTaken::Admitted)));
    bench.store.free_slot(&keyed, None).await.unwrap();

    // Told fewer, nobody gets one until fewer hold one; told more, somebody does.
    let late = place(99);
    let take = async |max| bench.store.take_slots(&[ask(&late, max, Priority::Normal, 1)]).await.pop().unwrap();
    assert!(matches!(take(2).await, Ok(SlotTaken::Full(..))));
    let freed = bench.store.free_slots(&[holders[0].slot.clone(), holders[1].slot.clone()]).await;
    assert!(freed.into_iter().all(|next| next.unwrap().is_none()));
    assert!(matches!(take(1).await, Ok(SlotTaken::Full(..))));
    assert!(matches!(take(2).await, Ok(SlotTaken::Admitted)));
}

pub(crate) async fn a_dispatch_at_a_place_is_named_by_the_record_until_one_without(bench: &Bench) {
    for key in ["", "k"] {
        let mut job = new_job(spec(&tenant()));
        job.spec.concurrency_key = key.into();
        bench.store.submit(std::slice::from_ref(&job)).await.pop().unwrap().unwrap();
        let step = |event, seen, slot| Step { slot, place: slot, ..Step::new(job.id, event, seen) };
        let record = async || bench.store.read_one(job.id, Fields::NONE).await.unwrap().unwrap();
        bench.store.apply_one(step(Event::Hold, 1, false)).await.unwrap();
        bench.store.apply_one(step(Event::Dispatch, 2, true)).await.unwrap();
        let read = record().await;
        let slots = SlotRef::of(&read);
        let limits: Vec<&Limit> = slots.iter().map(|slot| &slot.limit).collect();
        let (topic, named) = (Limit::Topic(job.spec.topic.clone()), Limit::Key(key.into()));
        assert_eq!(limits, if key.is_empty() { vec![&topic] } else { vec![&named, &topic] });
        assert!(slots.iter().all(|slot| slot.version == 2), "{slots:?}");
        assert_eq!((read.slot, read.placed), (Some(2), true));

        // Taken back, and offered again when its topic has no limit any more.
        bench.store.apply_one(step(Event::Recall, 3, false)).await.unwrap();
        assert_eq!((record().await.slot, record().await.placed), (Some(2), true), "until it is offered again");
        bench.store.apply_one(step(Event::Dispatch, 4, false)).await.unwrap();
        let read = record().await;
        assert_eq!((read.slot, read.placed, SlotRef::of(&read)), (None, false, vec![]));
    }
}
