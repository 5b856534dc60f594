//! A decider outside Muster that takes long to answer: scenario 53. The decider of this test knows only the subject,
//! and speaks the NATS protocol directly.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use muster_domain::{JobId, State};
use muster_testkit::{NatsServer, until};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::watch,
    task::JoinSet,
};

use crate::{
    stack::{SOON, Scheduler, Stack, job},
    worker::Worker,
};

const S: Duration = Duration::from_secs(1);
/// Longer than a lock lasts without a renewal.
const STALL: Duration = Duration::from_secs(35);

/// Answers every question on `sys.job.decide`, once the test has set the answer.
struct Outsider {
    asked: Arc<AtomicUsize>,
    says: watch::Sender<Option<&'static str>>,
    _running: JoinSet<()>,
}

impl Outsider {
    async fn on(nats: &NatsServer) -> Outsider {
        let stream = TcpStream::connect(("127.0.0.1", nats.port())).await.unwrap();
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        write.write_all(b"CONNECT {\"verbose\":false}\r\nSUB sys.job.decide deciders 1\r\nPING\r\n").await.unwrap();
        let mut line = String::new();
        while line != "PONG\r\n" {
            line.clear();
            assert!(read.read_line(&mut line).await.unwrap() > 0, "nats closed the connection");
        }
        let (asked, says) = (Arc::new(AtomicUsize::new(0)), watch::Sender::<Option<&'static str>>::new(None));
        let (count, heard) = (asked.clone(), says.subscribe());
        let mut running = JoinSet::new();
        running.spawn(async move {
            let (mut waiting, mut heard) = (Vec::new(), heard);
            let mut line = String::new();
            loop {
                line.clear();
                tokio::select! {
                    n = read.read_line(&mut line) => if n.unwrap_or(0) == 0 { return },
                    _ = heard.changed() => {}
                }
                let words: Vec<&str> = line.split_whitespace().collect();
                match words.as_slice() {
                    ["MSG", _, _, reply, size] => {
                        let mut body = vec![0; size.parse::<usize>().unwrap() + 2];
                        read.read_exact(&mut body).await.unwrap();
                        let text = String::from_utf8(body).unwrap();
                        assert!(text.contains("\"topic\":\"asked\"") && text.contains("\"job_id\""), "{text}");
                        count.fetch_add(1, Ordering::SeqCst);
                        waiting.push((*reply).to_owned());
                    }
                    ["PING"] => write.write_all(b"PONG\r\n").await.unwrap(),
                    _ => {}
                }
                let Some(says) = *heard.borrow() else { continue };
                for reply in waiting.drain(..) {
                    let answer = format!("PUB {reply} {}\r\n{says}\r\n", says.len());
                    write.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        });
        Outsider { asked, says, _running: running }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn say(&self, answer: &'static str) {
        self.says.send_replace(Some(answer));
    }
}

/// Two schedulers that must ask about the topic `asked`.
async fn stack() -> (Stack, Scheduler, Scheduler) {
    let stack = Stack::without_scheduler().await;
    let more = [("--decide-topics", "asked")];
    let (one, two) = tokio::join!(stack.scheduler_with("s1", &more), stack.scheduler_with("s2", &more));
    (stack, one, two)
}

async fn lock(stack: &Stack, id: JobId) -> (String, i64) {
    let key = format!("muster:scheduler:job:{id}");
    let left = stack.redis.cli(&["PTTL", &key]).await.trim().parse().unwrap();
    (stack.redis.cli(&["GET", &key]).await.trim().to_owned(), left)
}

/// The holder of the lock, once a scheduler asks.
async fn holder(stack: &Stack, id: JobId) -> String {
    until(SOON, "the lock", async || {
        let (value, _) = lock(stack, id).await;
        value.split_once('~').map(|(name, _)| name.to_owned())
    })
    .await
}

async fn runs_once(stack: &Stack, id: JobId) {
    let worker = Worker::on(stack, "w1", "asked").await;
    let attempt = worker.start_next(SOON).await;
    assert_eq!((attempt.job, attempt.number), (id, 1));
    worker.succeed(&attempt, "1").await;
    let record = stack.ends(id, State::Succeeded, SOON).await;
    let story: Vec<State> = record.history.iter().map(|line| line.to).collect();
    assert_eq!(story, [State::Pending, State::Dispatched, State::Running, State::Succeeded], "decided and run once");
    assert!(worker.try_offered(S).await.is_none(), "nothing more is offered");
}

#[tokio::test]
async fn a_question_that_stalls_is_asked_once_under_a_lock_that_is_renewed() {
    let (stack, _one, _two) = stack().await;
    let outsider = Outsider::on(&stack.nats).await;
    let id = stack.submit(job("asked")).await;
    let plain = stack.submit(job("plain")).await;
    stack.reaches(plain, State::Dispatched, SOON).await;
    assert_eq!(lock(&stack, plain).await.1, -2, "what nobody has a say in needs no lock, and does not wait");

    let (begun, held_by) = (Instant::now(), holder(&stack, id).await);
    let value = lock(&stack, id).await.0;
    let (mut renewals, mut last) = (0, lock(&stack, id).await.1);
    until(STALL + SOON, "the stall to be over", async || {
        let (now, left) = lock(&stack, id).await;
        assert_eq!(now, value, "{held_by} holds it without a break");
        assert!(left > 10_000, "it is renewed at a third of its 30 s, long before its end; {left} ms are left");
        renewals += usize::from(left > last + 5_000);
        last = left;
        (begun.elapsed() > STALL && renewals >= 3).then_some(())
    })
    .await;
    assert_eq!(stack.state(id).await, State::Pending);
    // The submit was published again meanwhile, and no scheduler asked a second time.
    assert_eq!(outsider.asked(), 1);

    outsider.say(r#"{"decision":"allow"}"#);
    runs_once(&stack, id).await;
    assert_eq!(lock(&stack, id).await.1, -2, "let go");
    assert_eq!(outsider.asked(), 1);
}

#[tokio::test]
async fn a_lock_that_is_deleted_meanwhile_does_not_run_the_job_twice() {
    let (stack, _one, _two) = stack().await;
    let outsider = Outsider::on(&stack.nats).await;
    let id = stack.submit(job("asked")).await;
    let key = format!("muster:scheduler:job:{id}");
    let begun = Instant::now();
    holder(&stack, id).await;
    // Deleted again and again, so that the other scheduler can take it whenever the submit is delivered again.
    until(STALL + SOON, "the stall to be over", async || {
        stack.redis.cli(&["DEL", &key]).await;
        (begun.elapsed() > STALL && outsider.asked() > 0).then_some(())
    })
    .await;
    outsider.say(r#"{"decision":"allow"}"#);
    runs_once(&stack, id).await;
}

#[tokio::test]
async fn a_no_ends_the_job_with_its_reason() {
    let (stack, _one, _two) = stack().await;
    let outsider = Outsider::on(&stack.nats).await;
    outsider.say(r#"{"decision":"deny","reason":"not on a Friday"}"#);
    let id = stack.submit(job("asked")).await;
    let record = stack.ends(id, State::Denied, SOON).await;
    let error = record.error.unwrap();
    assert_eq!((error.code.as_str(), error.message.as_str()), ("denied", "not on a Friday"));
    assert!(stack.is_dead_letter(id).await);
}

#[tokio::test]
async fn a_scheduler_that_stops_leaves_its_questions_to_the_other_within_a_second() {
    let (stack, one, two) = stack().await;
    let outsider = Outsider::on(&stack.nats).await;
    let id = stack.submit(job("asked")).await;
    let first = holder(&stack, id).await;
    let (stopped, other) = if first == "s1" { (one, "s2") } else { (two, "s1") };
    stopped.chassis.stop.request();
    let asked = Instant::now();
    until(SOON, "the other to hold the lock", async || (holder(&stack, id).await == other).then_some(())).await;
    // Without the handover the lock would last at least twenty seconds more; a busy machine takes longer than one.
    assert!(asked.elapsed() < 8 * S, "took {:?}", asked.elapsed());
    outsider.say(r#"{"decision":"allow"}"#);
    runs_once(&stack, id).await;
}

#[tokio::test]
async fn nobody_there_to_answer_is_not_a_yes_and_is_asked_again() {
    let (stack, _one, _two) = stack().await;
    let id = stack.submit(job("asked")).await;
    holder(&stack, id).await;
    let outsider = Outsider::on(&stack.nats).await;
    outsider.say("perhaps");
    until(SOON, "the question", async || (outsider.asked() > 0).then_some(())).await;
    assert_eq!(stack.state(id).await, State::Pending, "that was no answer");
    outsider.say(r#"{"decision":"allow"}"#);
    runs_once(&stack, id).await;
}
