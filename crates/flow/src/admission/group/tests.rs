use muster_domain::{Tenant, Topic};
use tokio::sync::Semaphore;

use super::*;

fn item(bytes: usize) -> Item {
    let spec = JobSpec::new(Tenant::default(), Topic::parse("t").unwrap());
    Item { id: None, spec, payload: Bytes::from(vec![b'1'; bytes]), hash: None, paid: false }
}

/// An entry of one item, for the answer of which a client waits. It is in time however long the test is held up.
fn entry(bytes: usize) -> Entry {
    let (entry, answer) = Entry::new(vec![item(bytes)]);
    std::mem::forget(answer);
    Entry { since: Instant::now() + Duration::from_secs(3_600), ..entry }
}

fn late(entry: Entry) -> Entry {
    Entry { since: Instant::now() - TAKEN_UP_WITHIN - Duration::from_millis(1), ..entry }
}

/// Runs one committer over a queue; each commit needs a permit and reports its group's size.
async fn committed(queued_before: usize, queued_during: usize) -> Vec<usize> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (sizes, mut seen) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(0));
    for _ in 0..queued_before {
        sender.try_send(entry(1)).ok().unwrap();
    }
    let receiver = Mutex::new(receiver);
    let under_way = UnderWay::new(BESIDE_AFTER);
    let committer = serve(&receiver, &under_way, std::future::pending(), |group| {
        let (sizes, permits) = (sizes.clone(), permits.clone());
        async move {
            sizes.send(group.len()).unwrap();
            permits.acquire().await.unwrap().forget();
        }
    });
    let script = async {
        let first = seen.recv().await.unwrap();
        for _ in 0..queued_during {
            sender.try_send(entry(1)).ok().unwrap();
        }
        permits.add_permits(usize::from(u16::MAX));
        drop(sender);
        let mut groups = vec![first];
        while groups.iter().sum::<usize>() < queued_before + queued_during {
            groups.push(seen.recv().await.unwrap());
        }
        groups
    };
    tokio::join!(committer, script).1
}

#[tokio::test]
async fn what_arrives_during_a_commit_is_the_next_group() {
    assert_eq!(committed(1, 3).await, [1, 3]);
    assert_eq!(committed(2, 40).await, [2, 40]);
}

/// Runs two committers over one queue; the first commit takes `stuck`. Returns the sizes of the groups in the order
/// in which their commits begin.
async fn by_two(stuck: Duration, wait: Duration) -> Vec<usize> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (receiver, under_way) = (Mutex::new(receiver), UnderWay::new(BESIDE_AFTER));
    let sizes = std::cell::RefCell::new(Vec::new());
    let commit = |group: Vec<Entry>| {
        sizes.borrow_mut().push(group.len());
        let first = sizes.borrow().len() == 1;
        async move { tokio::time::sleep(if first { stuck } else { Duration::ZERO }).await }
    };
    let one = serve(&receiver, &under_way, std::future::pending(), commit);
    let other = serve(&receiver, &under_way, std::future::pending(), commit);
    let script = async {
        sender.try_send(entry(1)).ok().unwrap();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            sender.try_send(entry(1)).ok().unwrap();
        }
        tokio::time::sleep(wait).await;
    };
    tokio::select! {
        _ = futures_util::future::join(one, other) => {}
        () = script => {}
    }
    sizes.into_inner()
}

#[tokio::test(start_paused = true)]
async fn an_idle_committer_does_not_cut_a_group_in_two_and_passes_a_stuck_commit() {
    let soon = Duration::from_millis(8);
    assert_eq!(by_two(soon, soon).await, [1, 3], "together, when the commit is over");
    assert_eq!(by_two(Duration::from_secs(9), BESIDE_AFTER / 2).await, [1], "not yet");
    assert_eq!(by_two(Duration::from_secs(9), BESIDE_AFTER * 2).await, [1, 3], "beside it");
}

#[tokio::test]
async fn groups_are_bounded_by_count() {
    assert_eq!(committed(1, 600).await, [1, 256, 256, 88]);
}

#[tokio::test]
async fn groups_are_bounded_by_bytes() {
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    for _ in 0..20 {
        sender.try_send(entry(500 * 1024)).ok().unwrap();
    }
    let first = receiver.recv().await.unwrap();
    assert_eq!(gather(first, &mut receiver).await.len(), 5);
}

#[tokio::test]
async fn a_stop_leaves_nobody_in_the_queue() {
    let (sender, receiver) = mpsc::channel(QUEUE);
    for _ in 0..300 {
        sender.try_send(entry(1)).ok().unwrap();
    }
    let receiver = Mutex::new(receiver);
    let mut done = 0;
    serve(&receiver, &UnderWay::new(BESIDE_AFTER), std::future::ready(()), |group| {
        done += group.len();
        std::future::ready(())
    })
    .await;
    assert_eq!(done, 300);
}

#[test]
fn a_submit_that_waited_too_long_is_answered_that_nothing_was_stored() {
    let (both, mut answer) = Entry::new(vec![item(1), item(1)]);
    assert!(late(both).in_time().is_none());
    let answers = answer.try_recv().unwrap();
    assert!(answers.iter().all(|a| matches!(a, Err(NotCommitted::Refused(Refusal::QueueFull)))));
    assert_eq!(answers.len(), 2);
    let (unheard, answer) = Entry::new(vec![item(1)]);
    drop(answer);
    // In time, so that only the client's absence can be the reason.
    let unheard = Entry { since: entry(1).since, ..unheard };
    assert!(unheard.in_time().is_none(), "its client has left");
    assert!(entry(1).in_time().is_some(), "one in time that is waited for is taken up");
}

#[tokio::test]
async fn late_submits_take_no_room_in_a_group() {
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    for n in 0..1_000 {
        sender.try_send(if n < 700 { late(entry(1)) } else { entry(1) }).ok().unwrap();
    }
    let first = receiver.recv().await.unwrap();
    assert_eq!(gather(first, &mut receiver).await.len(), GROUP_ITEMS);
}

#[test]
fn a_batch_is_cut_into_groups_in_its_order() {
    let sizes = |chunks: Vec<Vec<Item>>| chunks.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(sizes(chunks((0..600).map(|_| item(1)).collect())), [256, 256, 88]);
    assert_eq!(sizes(chunks((0..6).map(|_| item(500 * 1024)).collect())), [4, 2]);
    let mut mixed: Vec<Item> = (0..3).map(|_| item(1)).collect();
    mixed[1].spec.durability = Durability::Replicated;
    assert_eq!(sizes(chunks(mixed)), [1, 1, 1]);
    assert!(chunks(Vec::new()).is_empty());
}
