//! Listings: every match exactly once, whatever is added meanwhile.

use std::{cell::Cell, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{Event, JobError, JobId, JobSpec, Labels, State, Tenant, Time, WorkerId};
use muster_store::{
    Deleted, Fields, ListError, ListFilter, NewJob, PAGE_BYTES, Page, Record, Step, StoredResult, Submitted,
};

use crate::bench::{Bench, Job, job_key, new_job, spec, tenant, topic};

async fn page(bench: &Bench, tenant: &Tenant, cursor: Option<&str>, limit: usize, filter: &ListFilter) -> Page {
    let page = bench.store.list(tenant, cursor, limit, filter, Fields::NONE).await.expect("a page");
    assert!(page.items.len() <= limit);
    page
}

/// Walks from the newest to the end; `between` runs after every page.
async fn walk(
    bench: &Bench,
    tenant: &Tenant,
    limit: usize,
    filter: &ListFilter,
    mut between: impl AsyncFnMut(),
) -> Vec<JobId> {
    let mut shown = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = page(bench, tenant, cursor.as_deref(), limit, filter).await;
        shown.extend(page.items.iter().map(|job: &Record| job.id));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return shown;
        }
        between().await;
    }
}

async fn all(bench: &Bench, tenant: &Tenant, filter: &ListFilter) -> Vec<JobId> {
    walk(bench, tenant, 3, filter, async || {}).await
}

/// Some jobs of a tenant, submitted and listed under the given moments.
async fn listed(bench: &Bench, tenant: &Tenant, created: &[Time]) -> Vec<JobId> {
    let jobs = bench.submit_many(vec![spec(tenant); created.len()]).await;
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let entries: Vec<_> = ids.iter().copied().zip(created.iter().copied()).collect();
    bench.store.index_jobs(tenant, &entries).await.unwrap();
    ids
}

pub(crate) async fn every_job_is_shown_exactly_once_while_others_are_added(bench: &Bench) {
    const TEN_MINUTES: Duration = Duration::from_secs(600);
    let tenant = tenant();
    let now = bench.submit(spec(&tenant)).await.head.created_at;
    // A thousand over three buckets, listed oldest first as they are in life.
    let mut first = Vec::new();
    for (bucket, count) in [(2, 300), (1, 1), (0, 699)] {
        for done in (0..count).step_by(100) {
            let created = vec![now.before(bucket * TEN_MINUTES); 100.min(count - done)];
            first.extend(listed(bench, &tenant, &created).await);
        }
    }
    assert_eq!(first.len(), 1000);
    let newest_first: Vec<JobId> = first.iter().rev().copied().collect();

    // Several clients walk at once; after each of their pages a few more jobs are added, some of
    // them late, to a bucket that is no longer the newest.
    let added = Cell::new(0_usize);
    let add = async || {
        if added.get() < 500 {
            added.set(added.get() + 4);
            listed(bench, &tenant, &[now, now + TEN_MINUTES, now.before(TEN_MINUTES), now]).await;
        }
    };
    let filter = ListFilter::default();
    let walks = [7, 20, 51, 333, 499, 500].map(|limit| walk(bench, &tenant, limit, &filter, &add));
    for shown in join_all(walks).await {
        let mut unique = shown.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), shown.len(), "nothing is shown twice");
        let old: Vec<JobId> = shown.into_iter().filter(|id| first.contains(id)).collect();
        assert_eq!(old, newest_first, "every one of the first thousand, newest first");
    }
    assert!(added.get() >= 500, "{} were added meanwhile", added.get());
    assert_eq!(walk(bench, &tenant, 500, &filter, async || {}).await.len(), 1000 + added.get());

    // A reply that was lost has the entries written once more: a page shows each once.
    let few = listed(bench, &tenant, &[now + 2 * TEN_MINUTES; 3]).await;
    let entries: Vec<_> = few.iter().map(|id| (*id, now + 2 * TEN_MINUTES)).collect();
    bench.store.index_jobs(&tenant, &entries).await.unwrap();
    let shown = page(bench, &tenant, None, 100, &filter).await;
    assert_eq!(shown.items.iter().filter(|job| few.contains(&job.id)).count(), 3);
}

/// Moves some jobs to a list of their own, as if that of their ten minutes had been away. Entries of
/// theirs stay on the first, and some of others stand on the second.
async fn moved_to_a_second_list(bench: &Bench, tenant: &Tenant, span: u64, ids: &[JobId], others: &[JobId]) {
    const CHOICE: u64 = 2 << 24;
    let number = (CHOICE + span).to_string();
    let buckets = format!("muster:idx:{tenant}:buckets");
    bench.command("ZADD", &buckets, &[span.to_string().as_bytes(), number.as_bytes()]).await;
    for (position, id) in others.iter().chain(ids).enumerate() {
        bench.command("RPUSH", &format!("muster:idx:{tenant}:{number}"), &[id.as_bytes()]).await;
        if ids.contains(id) {
            let place = (CHOICE + span) << 32 | position as u64;
            bench.command("HSET", &job_key(*id), &[b"l", &place.to_be_bytes()]).await;
        }
    }
}

pub(crate) async fn a_second_list_of_the_same_ten_minutes_is_walked_behind_the_first(bench: &Bench) {
    const TEN_MINUTES: u64 = 600_000_000;
    let tenant = tenant();
    let span = bench.store.ping().await.unwrap().0 / TEN_MINUTES;
    let mut jobs: Vec<NewJob> = (0..16).map(|_| new_job(spec(&tenant))).collect();
    let at = |n: usize| Time((span - u64::from(n < 4)) * TEN_MINUTES);
    let entries: Vec<_> = jobs.iter().enumerate().map(|(n, job)| (job.id, at(n))).collect();
    let places = bench.store.index_jobs(&tenant, &entries).await.unwrap();
    jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
    assert!(bench.store.submit(&jobs).await.iter().all(Result::is_ok));
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    moved_to_a_second_list(bench, &tenant, span, &ids[7..11], &ids[12..14]).await;

    let newest_first = |range: std::ops::Range<usize>| range.rev().map(|n| ids[n]);
    let first = newest_first(11..16).chain(newest_first(4..7));
    let wanted: Vec<JobId> = first.chain(newest_first(7..11)).chain(newest_first(0..4)).collect();
    let records = bench.store.read(&ids, Fields::NONE).await;
    let created = records.into_iter().map(|record| record.unwrap().unwrap().head.created_at).min();
    for limit in [1, 3, 7, 500] {
        assert_eq!(walk(bench, &tenant, limit, &ListFilter::default(), async || {}).await, wanted, "pages of {limit}");
        let filter = ListFilter { created_after: created, ..ListFilter::default() };
        assert_eq!(walk(bench, &tenant, limit, &filter, async || {}).await, wanted, "pages of {limit}");
    }
}

/// Jobs with large payloads, of two topics by turns; the even ones succeed with a large result, the odd ones fail.
async fn large(bench: &Bench, tenant: &Tenant) -> Vec<Record> {
    let text = |n: usize, size: usize| Bytes::from(format!("\"{n}{}\"", "x".repeat(size)));
    let job = |n: usize| {
        let topic = topic(if n % 4 < 2 { "asked" } else { "other" });
        NewJob { payload: text(n, 300_000), ..new_job(JobSpec { topic, ..spec(tenant) }) }
    };
    let mut jobs: Vec<NewJob> = (0..60).map(job).collect();
    let now = bench.store.ping().await.unwrap();
    let entries: Vec<_> = jobs.iter().map(|job| (job.id, now)).collect();
    let places = bench.store.index_jobs(tenant, &entries).await.unwrap();
    jobs.iter_mut().zip(places).for_each(|(job, place)| job.place = Some(place));
    let made = bench.store.submit(&jobs).await;
    let mut dead = Vec::new();
    for (n, (job, made)) in jobs.iter().zip(made).enumerate() {
        let Ok(Submitted::Created(head)) = made else { panic!("{made:?}") };
        let mut job = Job { id: job.id, head };
        for event in [Event::Dispatch, Event::Start, if n % 2 == 0 { Event::Succeed } else { Event::Fail }] {
            let mut step = job.step(event);
            if event == Event::Succeed {
                step.result = Some(StoredResult { json: text(n, 200_000), ..StoredResult::default() });
            } else if event == Event::Fail {
                step = step.with_error(JobError::new("boom", "text", false));
            }
            job = bench.go(&job, step).await;
        }
        if n % 2 == 1 {
            dead.push((tenant.clone(), job.id, now + Duration::from_micros(n as u64)));
        }
    }
    bench.store.add_dead_letters(&dead).await.unwrap();
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    bench.store.read(&ids, Fields::ALL).await.into_iter().map(|record| record.unwrap().unwrap()).collect()
}

pub(crate) async fn a_page_of_large_jobs_ends_at_its_bound_and_each_is_shown_once(bench: &Bench) {
    let tenant = tenant();
    let jobs = large(bench, &tenant).await;
    let bytes = |job: &Record| {
        job.payload.as_ref().map_or(0, Bytes::len) + job.result.as_ref().map_or(0, |result| result.json.len())
    };
    let asked = ListFilter { topic: Some(topic("asked")), ..ListFilter::default() };
    let bad = ListFilter { states: vec![State::Failed], ..ListFilter::default() };
    for (filter, fields) in [(&asked, Fields::ALL), (&asked, Fields::PAYLOAD), (&bad, Fields::ALL)] {
        let wanted: Vec<&Record> = jobs.iter().rev().filter(|job| filter.admits(job)).collect();
        for limit in [3, 500] {
            let (mut shown, mut pages, mut cursor) = (Vec::new(), 0, None);
            loop {
                let page = bench.store.list(&tenant, cursor.as_deref(), limit, filter, fields).await.unwrap();
                let held: usize = page.items.iter().map(bytes).sum();
                assert!(held < PAGE_BYTES + 600_000 && page.items.len() <= limit, "{held} bytes");
                pages += 1;
                shown.extend(page.items);
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            let ids = |jobs: &mut dyn Iterator<Item = &Record>| jobs.map(|job| job.id).collect::<Vec<_>>();
            assert_eq!(ids(&mut shown.iter()), ids(&mut wanted.iter().copied()), "newest first, each once");
            for (shown, whole) in shown.iter().zip(&wanted) {
                assert!(shown.payload == whole.payload && (!fields.result || shown.result == whole.result));
            }
            assert!(pages >= 3, "{pages} pages");
        }
    }
}

/// Jobs of every kind, in the order of their creation, as they are stored.
async fn a_mixture(bench: &Bench, tenant: &Tenant) -> Vec<Record> {
    let ends: [&[Event]; 6] = [
        &[],
        &[Event::Dispatch],
        &[Event::Dispatch, Event::Start],
        &[Event::Dispatch, Event::Start, Event::Succeed],
        &[Event::Dispatch, Event::Start, Event::Fail],
        &[Event::Cancel],
    ];
    let mut ids = Vec::new();
    for n in 0..30_usize {
        let topic = topic(if n % 2 == 0 { "even" } else { "odd" });
        let labels: Labels = [("third", n % 3), ("fifth", n % 5)].map(|(k, v)| (k.to_owned(), v.to_string())).into();
        let mut job = bench.submit(JobSpec { topic, labels, ..spec(tenant) }).await;
        bench.store.index_jobs(tenant, &[(job.id, job.head.created_at)]).await.unwrap();
        for event in ends[n / 5 % ends.len()] {
            let mut step = job.step(*event);
            step.worker = Some(WorkerId::http(tenant, &WorkerId::parse(&format!("w{}", n % 4)).unwrap()));
            if *event == Event::Fail {
                step = step.with_error(JobError::new(if n % 2 == 0 { "boom" } else { "bang" }, "text", false));
            }
            job = bench.go(&job, step).await;
        }
        ids.push(job.id);
    }
    bench.store.read(&ids, Fields::NONE).await.into_iter().map(|record| record.unwrap().unwrap()).collect()
}

pub(crate) async fn filters_show_what_was_asked_for(bench: &Bench) {
    let tenant = tenant();
    let jobs = a_mixture(bench, &tenant).await;
    let none = ListFilter::default;
    let (early, late) = (jobs[7].head.created_at, jobs[22].head.created_at);
    let finished: Vec<Time> = jobs.iter().filter_map(|job| job.head.finished_at()).collect();
    let label = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    type Wanted = Box<dyn Fn(&Record) -> bool>;
    let state = |job: &Record| job.head.state();
    let code = |job: &Record| job.error.as_ref().map(|error| error.code.clone());
    let (third, fourth) = (finished[3], finished[9]);
    let cases: Vec<(ListFilter, Wanted)> = vec![
        (none(), Box::new(|_| true)),
        (ListFilter { states: vec![State::Running], ..none() }, Box::new(move |j| state(j) == State::Running)),
        (
            ListFilter { states: vec![State::Pending, State::Failed], ..none() },
            Box::new(move |j| matches!(state(j), State::Pending | State::Failed)),
        ),
        (ListFilter { topic: Some(topic("odd")), ..none() }, Box::new(|j| j.spec.topic == topic("odd"))),
        (ListFilter { topic: Some(topic("od")), ..none() }, Box::new(|_| false)),
        (ListFilter { labels: [label("third", "1")].into(), ..none() }, Box::new(|j| j.spec.labels["third"] == "1")),
        (
            ListFilter { labels: [label("third", "1"), label("fifth", "2")].into(), ..none() },
            Box::new(|j| j.spec.labels["third"] == "1" && j.spec.labels["fifth"] == "2"),
        ),
        (ListFilter { labels: [label("sixth", "1")].into(), ..none() }, Box::new(|_| false)),
        (
            ListFilter { error_code: Some("boom".into()), ..none() },
            Box::new(move |j| code(j).as_deref() == Some("boom")),
        ),
        (
            ListFilter { worker: Some("w1".into()), ..none() },
            Box::new(|j| j.head.last_worker.as_ref().is_some_and(|w| w.own_name() == "w1")),
        ),
        (ListFilter { created_after: Some(early), ..none() }, Box::new(move |j| j.head.created_at >= early)),
        (ListFilter { created_before: Some(late), ..none() }, Box::new(move |j| j.head.created_at < late)),
        (
            ListFilter { created_after: Some(early), created_before: Some(late), ..none() },
            Box::new(move |j| (early..late).contains(&j.head.created_at)),
        ),
        (
            ListFilter { finished_after: Some(third), finished_before: Some(fourth), ..none() },
            Box::new(move |j| j.head.finished_at().is_some_and(|t| (third..fourth).contains(&t))),
        ),
        (
            ListFilter { states: vec![State::Succeeded], topic: Some(topic("even")), ..none() },
            Box::new(move |j| state(j) == State::Succeeded && j.spec.topic == topic("even")),
        ),
    ];
    for (filter, wanted) in cases {
        let expected: Vec<JobId> = jobs.iter().rev().filter(|job| wanted(job)).map(|job| job.id).collect();
        assert!(expected.len() < jobs.len() || filter == none());
        assert_eq!(all(bench, &tenant, &filter).await, expected, "{filter:?}");
    }
}

/// Jobs that failed, with the moments of their ends made up.
async fn failed(bench: &Bench, tenant: &Tenant, ends: &[Time]) -> Vec<(Tenant, JobId, Time)> {
    let mut jobs: Vec<Job> = bench.submit_many(vec![spec(tenant); ends.len()]).await;
    for event in [Event::Dispatch, Event::Reject] {
        let error = JobError::new("undecodable", "cannot be read", false);
        let steps: Vec<Step> = jobs.iter().map(|job| job.step(event).with_error(error.clone())).collect();
        let moved = bench.store.apply(steps).await;
        jobs = jobs.iter().zip(moved).map(|(job, moved)| crate::bench::moved_on(job, event, &moved.unwrap())).collect();
    }
    jobs.iter().zip(ends).map(|(job, end)| (tenant.clone(), job.id, *end)).collect()
}

pub(crate) async fn bad_ends_are_walked_along_the_dead_letters(bench: &Bench) {
    let tenant = tenant();
    let base = bench.submit(spec(&tenant)).await.head.created_at;
    // Twenty in each microsecond.
    let ends: Vec<Time> = (0..300).map(|n| base + Duration::from_micros(n / 20)).collect();
    let mut dead = failed(bench, &tenant, &ends).await;
    bench.store.add_dead_letters(&dead).await.unwrap();
    bench.store.add_dead_letters(&dead[100..200]).await.unwrap();
    let dropped = dead.remove(150).1;
    for _ in 0..2 {
        bench.store.drop_dead_letter(&tenant, dropped).await.unwrap();
    }
    dead.sort_by_key(|(_, id, at)| std::cmp::Reverse((*at, id.to_string())));
    let newest_first: Vec<JobId> = dead.iter().map(|(_, id, _)| *id).collect();

    let more = Cell::new(0_u64);
    let add = async || {
        more.set(more.get() + 1);
        let newer = failed(bench, &tenant, &[base + Duration::from_secs(more.get())]).await;
        bench.store.add_dead_letters(&newer).await.unwrap();
    };
    let filter = ListFilter { states: vec![State::Failed, State::Denied], ..ListFilter::default() };
    for shown in join_all([7, 50, 64].map(|limit| walk(bench, &tenant, limit, &filter, &add))).await {
        let old: Vec<JobId> = shown.iter().filter(|id| newest_first.contains(id)).copied().collect();
        assert_eq!(old, newest_first);
        assert_eq!(shown.iter().collect::<std::collections::HashSet<_>>().len(), shown.len());
    }
    assert!(more.get() > 40);
    // Filters hold here too, and other ends are not found among the dead letters.
    let filter = ListFilter { error_code: Some("undecodable".into()), ..filter };
    assert_eq!(all(bench, &tenant, &filter).await.len(), 299 + usize::try_from(more.get()).unwrap());
    assert!(all(bench, &tenant, &ListFilter { error_code: Some("other".into()), ..filter }).await.is_empty());
    let denied = ListFilter { states: vec![State::Denied], ..ListFilter::default() };
    assert!(all(bench, &tenant, &denied).await.is_empty());
}

pub(crate) async fn cursors_of_others_are_refused(bench: &Bench) {
    let tenant = tenant();
    let now = bench.submit(spec(&tenant)).await.head.created_at;
    listed(bench, &tenant, &[now; 3]).await;
    bench.store.add_dead_letters(&failed(bench, &tenant, &[now; 3]).await).await.unwrap();
    let plain = ListFilter::default();
    let dead = ListFilter { states: vec![State::Failed], ..ListFilter::default() };
    let of_plain = page(bench, &tenant, None, 1, &plain).await.next_cursor.unwrap();
    let of_dead = page(bench, &tenant, None, 1, &dead).await.next_cursor.unwrap();
    let ask = async |cursor: &str, filter| {
        bench.store.list(&tenant, Some(cursor), 1, filter, Fields::NONE).await.map(|page| page.items.len())
    };
    assert_eq!((ask(&of_plain, &plain).await, ask(&of_dead, &dead).await), (Ok(1), Ok(1)));
    let foreign = [(of_plain.as_str(), &dead), (of_dead.as_str(), &plain)];
    let garbage = ["", "b", "b.1", "b..", "b.1.2.3", "b.-1.2", "d.1.x", "x.1.2", "\0", "ü", "b.1e9.2", "99"];
    let garbage = garbage.iter().flat_map(|text| [(*text, &plain), (*text, &dead)]);
    for (cursor, filter) in foreign.into_iter().chain(garbage) {
        assert_eq!(ask(cursor, filter).await, Err(ListError::BadCursor), "{cursor:?}");
    }
    // Numbers that no list gave are harmless: they lead to what is there.
    for cursor in ["b.0.0", "b.18446744073709551615.18446744073709551615", "b.3.99999999999"] {
        assert!(ask(cursor, &plain).await.is_ok(), "{cursor}");
    }
}

pub(crate) async fn deleted_jobs_and_other_tenants_are_not_shown(bench: &Bench) {
    let (ours, theirs) = (tenant(), tenant());
    let now = bench.submit(spec(&ours)).await.head.created_at;
    let ids = listed(bench, &ours, &[now; 5]).await;
    let keyed = NewJob { body_hash: Some([1; 16]), ..new_job(spec(&ours)) };
    bench.store.submit(std::slice::from_ref(&keyed)).await.remove(0).unwrap();
    bench.store.index_jobs(&ours, &[(keyed.id, now)]).await.unwrap();
    for id in [ids[1], keyed.id] {
        bench.apply(Step::new(id, Event::Cancel, 0)).await;
        assert!(all(bench, &ours, &ListFilter::default()).await.contains(&id));
        assert_eq!(bench.store.delete_ended(id).await, Ok(Deleted::Deleted));
    }
    assert_eq!(all(bench, &ours, &ListFilter::default()).await, [ids[4], ids[3], ids[2], ids[0]]);
    let cancelled = ListFilter { states: vec![State::Cancelled], ..ListFilter::default() };
    assert!(all(bench, &ours, &cancelled).await.is_empty());
    // Even an entry in the wrong list shows nobody another tenant's job.
    assert!(all(bench, &theirs, &ListFilter::default()).await.is_empty());
    bench.store.index_jobs(&theirs, &[(ids[0], now)]).await.unwrap();
    bench.store.add_dead_letters(&[(theirs.clone(), ids[0], now)]).await.unwrap();
    for states in [vec![], vec![State::Failed]] {
        assert!(all(bench, &theirs, &ListFilter { states, ..ListFilter::default() }).await.is_empty());
    }
}
