//! Which lines a topic has: noted, told of newest first, dropped when old.

use std::time::Duration;

use muster_domain::{Labels, Line, Tenant, Time, Topic};
use muster_store::{LeaderLock, MOST_LINES, TopicLine, router::Command};

use crate::bench::{Bench, tenant, topic};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn lines(bench: &Bench, tenant: &Tenant, topic: &Topic) -> Vec<TopicLine> {
    let mut told = bench.store.lines_of(&[(tenant.clone(), topic.clone())]).await.unwrap();
    let lines = told.pop().unwrap();
    assert_eq!((lines[0].line.clone(), lines[0].noted), (Line::from(topic), None), "the plain one comes first");
    lines[1..].to_vec()
}

/// A moment after all that was noted so far.
async fn later(bench: &Bench) -> Time {
    bench.store.ping().await.unwrap() + Duration::from_secs(60)
}

pub(crate) async fn a_line_that_was_noted_is_found_with_what_its_jobs_require(bench: &Bench) {
    let (mine, theirs, render, mail) = (tenant(), tenant(), topic("render.video"), topic("mail"));
    assert!(lines(bench, &mine, &render).await.is_empty());
    let gpu = labels(&[("gpu", "a100"), ("zone", "eu")]);
    let odd = labels(&[("disk/kind", "\"nvme\" {0}: größer, 10 µs")]);
    bench.store.note_lines(&[(&mine, &render, &gpu), (&mine, &mail, &gpu), (&theirs, &render, &odd)]).await.unwrap();
    bench.store.note_lines(&[(&mine, &render, &odd), (&mine, &render, &Labels::new())]).await.unwrap();
    let requires = async |tenant: &Tenant, topic: &Topic| -> Vec<Labels> {
        let told = lines(bench, tenant, topic).await;
        assert!(told.iter().all(|line| line.line == Line::of(topic, &line.requires)), "{told:?}");
        told.into_iter().map(|line| line.requires).collect()
    };
    assert_eq!(
        requires(&mine, &render).await,
        [odd.clone(), gpu.clone()],
        "the last one first; a plain one is not noted"
    );
    assert_eq!(requires(&mine, &mail).await, std::slice::from_ref(&gpu));
    assert_eq!(requires(&theirs, &render).await, std::slice::from_ref(&odd));
    bench.store.note_lines(&[(&mine, &render, &gpu)]).await.unwrap();
    assert_eq!(requires(&mine, &render).await, [gpu, odd], "noted again, not twice");
    let both = bench.store.lines_of(&[(theirs, render), (mine, mail)]).await.unwrap();
    assert_eq!(both.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2], "each topic for itself");
}

pub(crate) async fn an_old_name_is_dropped_unless_it_was_noted_meanwhile(bench: &Bench) {
    let (tenant, topic, lease) = (tenant(), topic("render"), bench.leads(LeaderLock::Snapshot).await);
    let (gpu, cpu) = (labels(&[("gpu", "a100")]), labels(&[("cpu", "arm")]));
    let before = bench.store.ping().await.unwrap().before(Duration::from_secs(60));
    bench.store.note_lines(&[(&tenant, &topic, &gpu)]).await.unwrap();
    bench.store.note_lines(&[(&tenant, &topic, &cpu)]).await.unwrap();
    assert!(bench.store.lines_before(&tenant, &topic, before, 10).await.unwrap().is_empty(), "none is old");
    let until = later(bench).await;
    let old = bench.store.lines_before(&tenant, &topic, until, 10).await.unwrap();
    let names: Vec<&Labels> = old.iter().map(|line| &line.requires).collect();
    assert_eq!(names, [&gpu, &cpu], "the oldest first");
    assert_eq!(bench.store.lines_before(&tenant, &topic, until, 1).await.unwrap(), old[..1]);

    bench.store.note_lines(&[(&tenant, &topic, &gpu)]).await.unwrap();
    assert!(!bench.store.drop_line(&lease, &tenant, &old[0]).await.unwrap(), "somebody uses it again");
    assert!(bench.store.drop_line(&lease, &tenant, &old[1]).await.unwrap());
    assert!(!bench.store.drop_line(&lease, &tenant, &old[1]).await.unwrap(), "it is gone already");
    let left = lines(bench, &tenant, &topic).await;
    assert_eq!(left.iter().map(|line| &line.requires).collect::<Vec<_>>(), [&gpu]);

    // Names that nobody notes any more do not stay for ever.
    let mut ask = redis::cmd("PTTL");
    ask.arg(format!("muster:lines:{tenant}:{topic}"));
    let left = bench.store.router().call(Command::plain(ask)).await.unwrap();
    let left = redis::from_redis_value::<i64>(left).unwrap();
    assert!((1..=24 * 3_600_000).contains(&left), "{left} ms");
}

pub(crate) async fn no_more_lines_are_told_of_than_there_may_be(bench: &Bench) {
    let (tenant, topic) = (tenant(), topic("render"));
    let first = labels(&[("worker", "first")]);
    bench.store.note_lines(&[(&tenant, &topic, &first)]).await.unwrap();
    let many: Vec<Labels> = (0..MOST_LINES).map(|n| labels(&[("worker", &format!("w{n}"))])).collect();
    let noted: Vec<_> = many.iter().map(|requires| (&tenant, &topic, requires)).collect();
    bench.store.note_lines(&noted).await.unwrap();
    let told = lines(bench, &tenant, &topic).await;
    assert_eq!(told.len(), MOST_LINES);
    assert!(told.iter().all(|line| line.requires != first), "those that were noted last");
    let old = bench.store.lines_before(&tenant, &topic, later(bench).await, 1).await.unwrap();
    assert_eq!(old[0].requires, first, "the others are still found by whoever drops them");
}
