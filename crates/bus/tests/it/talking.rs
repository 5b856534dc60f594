//! Plain subscriptions and requests.

use std::time::Duration;

use muster_bus::{Bus, BusError, BusSettings, Question, Subscription, subjects};
use muster_domain::WorkerId;
use muster_testkit::{NatsServer, until};
use muster_wire::{
    Body,
    v1::{StartAnswer, StartAsk, StartReply, StartRequest, start_answer::Verdict},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::fixture::{SOON, bus, loose_bus, number, numbered, plain};

const LIMIT: Duration = SOON;

/// Answers every request with its number plus `mark`, until it hears that all were sent; returns how many. Messages of
/// one connection arrive on another in order, so no request comes after that.
async fn answer(mut questions: Subscription, mut all_asked: Subscription, mark: u64) -> usize {
    let mut answered = 0;
    loop {
        let question = tokio::select! {
            biased;
            question = questions.next() => question.unwrap(),
            _ = all_asked.next() => return answered,
        };
        assert!(question.wants_answer());
        question.respond(numbered(number(&question.body) + mark)).await.unwrap();
        answered += 1;
    }
}

#[tokio::test]
async fn a_request_reaches_exactly_one_of_a_queue_group() {
    let server = NatsServer::start().await;
    let asking = bus(&server).await;
    let mut group = JoinSet::new();
    for mark in [1_000, 2_000, 3_000] {
        let replica = loose_bus(&server.url()).await;
        let questions = replica.subscribe(&subjects::start(), Some(subjects::SCHEDULERS)).await.unwrap();
        let all_asked = replica.subscribe(&subjects::wake(), None).await.unwrap();
        replica.flush(LIMIT).await;
        group.spawn(answer(questions, all_asked, mark));
    }
    until(SOON, "somebody who answers", async || asking.request(&subjects::start(), numbered(0), LIMIT).await.ok())
        .await;
    for n in 1..60 {
        let heard = number(&asking.request(&subjects::start(), numbered(n), LIMIT).await.unwrap());
        assert_eq!(heard % 1_000, n, "its own answer");
    }
    asking.broadcast(&subjects::wake(), numbered(60)).await.unwrap();
    assert_eq!(group.join_all().await.into_iter().sum::<usize>(), 60, "each question was answered once");
}

#[tokio::test]
async fn a_question_that_nobody_hears_is_answered_at_once() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let began = Instant::now();
    let fault = bus.request(&subjects::extend(), numbered(1), 3 * SOON).await.unwrap_err();
    assert!(matches!(fault, BusError::NoResponders { .. }), "{fault:?}");
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn a_question_that_nobody_answers_ends_within_its_limit() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let _silent = bus.subscribe(&subjects::extend(), None).await.unwrap();
    let began = Instant::now();
    let fault = bus.request(&subjects::extend(), numbered(1), Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(fault, BusError::Timeout { .. }), "{fault:?}");
    assert!(began.elapsed() < SOON);
}

#[tokio::test]
async fn a_broadcast_reaches_everybody_and_a_worker_hears_only_its_own_notices() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let (one, two) = (WorkerId::parse("one").unwrap(), WorkerId::parse("two").unwrap());
    let mut all = [
        bus.subscribe(&subjects::heartbeat(), None).await.unwrap(),
        bus.subscribe(&subjects::heartbeat(), None).await.unwrap(),
    ];
    let mut own = bus.subscribe(&subjects::worker_ctl(&one), None).await.unwrap();
    bus.broadcast(&subjects::heartbeat(), numbered(1)).await.unwrap();
    bus.broadcast(&subjects::worker_ctl(&two), numbered(2)).await.unwrap();
    bus.broadcast(&subjects::worker_ctl(&one), numbered(3)).await.unwrap();
    for listener in &mut all {
        assert_eq!(heard(listener).await, 1);
    }
    assert_eq!(heard(&mut own).await, 3);
}

#[tokio::test]
async fn what_cannot_be_read_is_skipped() {
    let server = NatsServer::start().await;
    let (bus, client) = (bus(&server).await, plain(&server).await);
    let mut listener = bus.subscribe(&subjects::wake(), None).await.unwrap();
    bus.flush(LIMIT).await;
    // A round trip, so that the server knows the subscription before the other client publishes.
    bus.ensure_streams().await.unwrap();
    client.publish("sys.loop.wake", "nonsense".into()).await.unwrap();
    client.flush().await.unwrap();
    bus.broadcast(&subjects::wake(), numbered(4)).await.unwrap();
    assert_eq!(heard(&mut listener).await, 4);
}

#[tokio::test]
async fn subscriptions_survive_a_restart() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let mut listener = bus.subscribe(&subjects::config_changed(), None).await.unwrap();
    server.restart().await;
    // A message sent on a breaking connection is lost: send again, until it is received.
    let telling = async {
        loop {
            let _ = bus.broadcast(&subjects::config_changed(), numbered(8)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let heard = tokio::select! { heard = heard(&mut listener) => heard, () = telling => unreachable!("it goes on") };
    assert_eq!(heard, 8);
}

async fn heard(listener: &mut Subscription) -> u64 {
    let next = tokio::time::timeout(SOON, listener.next()).await.expect("something is heard");
    number(&next.expect("the connection stands").body)
}

/// A scheduler that answers starts in the queue group and by name, each with its own number as the fence. It says "again"
/// or nothing at all while it is told to.
struct Scheduler {
    _bus: Bus,
    mood: watch::Sender<Mood>,
    _answers: JoinSet<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Answers,
    SaysAgain,
    Silent,
}

impl Scheduler {
    async fn start(server: &NatsServer, name: &str, fence: u64) -> Scheduler {
        let bus = Bus::connect(BusSettings::new(server.url(), name)).await.unwrap();
        bus.connected().await;
        let (mood, mut answers) = (watch::Sender::new(Mood::Answers), JoinSet::new());
        let group = bus.subscribe(&Question::Start.group(), Some(subjects::SCHEDULERS)).await.unwrap();
        let own = bus.subscribe(&Question::Start.named(name), None).await.unwrap();
        for mut questions in [group, own] {
            let mood = mood.subscribe();
            answers.spawn(async move {
                while let Some(question) = questions.next().await {
                    let verdict = match *mood.borrow() {
                        Mood::Answers => Verdict::Go,
                        Mood::SaysAgain => Verdict::Retry,
                        Mood::Silent => continue,
                    };
                    let item = StartAnswer { verdict: verdict.into(), fence, ..Default::default() };
                    question.respond(Body::Started(StartReply { items: vec![item] })).await.unwrap();
                }
            });
        }
        bus.flush(LIMIT).await;
        Scheduler { _bus: bus, mood, _answers: answers }
    }
}

/// Asks once, and returns who answered with which verdict.
async fn asks(bus: &Bus, limit: Duration) -> Result<(u64, Verdict), BusError> {
    let ask = Body::Start(StartRequest { worker: "w".into(), items: vec![StartAsk::default()] });
    let Body::Started(reply) = bus.ask_schedulers(Question::Start, ask, limit).await? else { panic!("not an answer") };
    Ok((reply.items[0].fence, reply.items[0].verdict()))
}

#[tokio::test]
async fn a_question_to_a_silent_scheduler_is_answered_by_another_one() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let (one, two) = (Scheduler::start(&server, "s1", 1).await, Scheduler::start(&server, "s2", 2).await);
    let mut heard = Vec::new();
    until(SOON, "both to have answered", async || {
        heard.push(asks(&bus, LIMIT).await.ok()?.0);
        (heard.contains(&1) && heard.contains(&2)).then_some(())
    })
    .await;

    // The first stays a member of the group. Without another question each second one would wait until its limit.
    one.mood.send_replace(Mood::Silent);
    for _ in 0..20 {
        assert_eq!(asks(&bus, LIMIT).await.unwrap(), (2, Verdict::Go));
    }
    // It is known by now whom to ask: the silence costs nothing.
    let began = Instant::now();
    for _ in 0..20 {
        assert_eq!(asks(&bus, LIMIT).await.unwrap(), (2, Verdict::Go));
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());

    // It comes back while the other one falls silent.
    one.mood.send_replace(Mood::Answers);
    two.mood.send_replace(Mood::Silent);
    for _ in 0..20 {
        assert_eq!(asks(&bus, LIMIT).await.unwrap(), (1, Verdict::Go));
    }
    one.mood.send_replace(Mood::Silent);
    let fault = timeout(SOON, asks(&bus, Duration::from_millis(700))).await.unwrap().unwrap_err();
    assert!(matches!(fault, BusError::Timeout { .. }), "{fault:?}");
}

#[tokio::test]
async fn a_scheduler_that_says_again_is_not_the_last_one_asked() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let (one, two) = (Scheduler::start(&server, "s1", 1).await, Scheduler::start(&server, "s2", 2).await);
    let mut heard = Vec::new();
    until(SOON, "both to have answered", async || {
        heard.push(asks(&bus, LIMIT).await.ok()?.0);
        (heard.contains(&1) && heard.contains(&2)).then_some(())
    })
    .await;
    one.mood.send_replace(Mood::SaysAgain);
    for _ in 0..20 {
        assert_eq!(asks(&bus, LIMIT).await.unwrap(), (2, Verdict::Go));
    }
    two.mood.send_replace(Mood::SaysAgain);
    assert_eq!(asks(&bus, LIMIT).await.unwrap().1, Verdict::Retry, "all say so");
}

#[tokio::test]
async fn a_scheduler_that_has_left_is_not_waited_for() {
    let server = NatsServer::start().await;
    let bus = bus(&server).await;
    let (one, two) = (Scheduler::start(&server, "s1", 1).await, Scheduler::start(&server, "s2", 2).await);
    let mut heard = Vec::new();
    until(SOON, "both to have answered", async || {
        heard.push(asks(&bus, LIMIT).await.ok()?.0);
        (heard.contains(&1) && heard.contains(&2)).then_some(())
    })
    .await;
    drop(one);
    until(SOON, "the server to notice", async || {
        let answers = asks(&bus, LIMIT).await;
        (answers.unwrap() == (2, Verdict::Go)).then_some(())
    })
    .await;
    drop(two);
    until(SOON, "nobody to be left", async || {
        matches!(asks(&bus, LIMIT).await, Err(BusError::NoResponders { .. })).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_last_scheduler_that_leaves_without_an_answer_is_not_waited_for_until_the_limit() {
    let server = NatsServer::start().await;
    let (bus, last) = (bus(&server).await, Bus::connect(BusSettings::new(server.url(), "s1")).await.unwrap());
    last.connected().await;
    let mut questions = last.subscribe(&Question::Start.group(), Some(subjects::SCHEDULERS)).await.unwrap();
    last.flush(LIMIT).await;
    let leaves = async {
        questions.next().await.expect("a question");
        drop((questions, last));
    };
    let (answer, ()) = tokio::join!(timeout(SOON, asks(&bus, 2 * SOON)), leaves);
    let fault = answer.expect("an answer before the limit").unwrap_err();
    assert!(matches!(fault, BusError::NoResponders { .. }), "{fault:?}");
}
