//! temp
use std::time::{Duration, Instant};
use muster_domain::*;
use muster_store::*;
#[tokio::test]
async fn measure() {
    let server = muster_testkit::RedisServer::start().await;
    let store = Store::connect(RedisSettings::new(server.url())).await.unwrap();
    let t = Tenant::parse("t").unwrap();
    let mut all = vec![];
    for _ in 0..100 {
        let mut jobs: Vec<NewJob> = (0..1000).map(|_| NewJob { id: JobId::mint(fastrand::u8(..)), spec: JobSpec::new(t.clone(), Topic::parse("x").unwrap()), payload: "{}".into(), body_hash: None, place: None }).collect();
        store.prepare(&mut jobs, Duration::from_secs(3600)).await;
        for s in store.submit(&jobs).await { s.unwrap(); }
        all.extend(jobs.iter().map(|j| j.id));
    }
    for what in ["clean", "homes lost", "listing lost"] {
        if what == "homes lost" { store.drop_homes(&all).await.unwrap(); }
        if what == "listing lost" { server.cli(&["EVAL", "for _,k in ipairs(redis.call('KEYS','muster:idx:*')) do redis.call('DEL',k) end", "0"]).await; }
        let cpu0 = server.cli(&["INFO", "cpu"]).await;
        let mut walk = ScrubWalk::new(); let b = Instant::now(); let mut n = 0; let mut steps = 0; let mut worst = Duration::ZERO; let (mut h, mut l) = (0, 0);
        loop { let b1 = Instant::now(); let d = store.scrub(&mut walk, 500).await.unwrap(); worst = worst.max(b1.elapsed()); n += d.scanned; h += d.homes; l += d.listings; steps += 1; if d.passed { break; } }
        let cpu1 = server.cli(&["INFO", "cpu"]).await;
        let f = |s: &str| s.lines().filter_map(|l| l.strip_prefix("used_cpu_user:").or(l.strip_prefix("used_cpu_sys:"))).map(|v| v.trim().parse::<f64>().unwrap()).sum::<f64>();
        eprintln!("{what}: {n} records, {steps} steps in {:?}, worst step {worst:?}, homes {h} listings {l}, redis cpu {:.1} us/record", b.elapsed(), (f(&cpu1) - f(&cpu0)) * 1e6 / n as f64);
    }
    for c in all.chunks(1000) { for m in store.apply(c.iter().map(|id| Step::new(*id, Event::Cancel, 0)).collect()).await { m.unwrap(); } }
    store.drop_homes(&all).await.unwrap();
    let keep = Retention { succeeded: Duration::from_micros(1), failed: Duration::from_micros(1) };
    let (mut w, mut n, b) = (RetentionWalk::new(), 0, Instant::now());
    loop { let d = store.retain(&mut w, &keep, 500).await.unwrap(); n += d.records; if d.passed { break; } }
    eprintln!("retention: {n} records in {:?}", b.elapsed());
}
