use std::time::{Duration, Instant};
use muster_bus::*;
use muster_wire::{Body, v1};
fn main() {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let server = muster_testkit::NatsServer::start().await;
        let bus = Bus::connect(BusSettings::new(server.url(), "x")).await.unwrap();
        bus.connected().await; bus.ensure_streams().await.unwrap();
        let s = subjects::submit();
        let body = || Body::Submit(v1::SubmitGroup { items: vec![v1::Submit { payload: vec![1; 300].into(), ..Default::default() }] });
        // one by one
        let t = Instant::now(); for _ in 0..2000 { bus.publish(&s, None, None, body()).await.unwrap(); }
        eprintln!("one by one {:.0}/s", 2000.0 / t.elapsed().as_secs_f64());
        let t = Instant::now();
        for _ in 0..20 { let all = (0..1000).map(|_| bus.publish(&s, None, None, body())); futures_util::future::join_all(all).await; }
        eprintln!("1000 in flight {:.0}/s", 20000.0 / t.elapsed().as_secs_f64());
        // grouped
        let set = std::sync::Mutex::new(tokio::task::JoinSet::new());
        for n in [1, 4] {
            let g = GroupPublisher::with(bus.clone(), s.clone(), &|f| { set.lock().unwrap().spawn(f); }, |items| Body::Submit(v1::SubmitGroup { items }), |i: &v1::Submit| muster_wire::encoded_len(i), GroupSettings { in_flight: n, ..GroupSettings::bound(4096) });
            let t = Instant::now();
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..256 { let g = g.clone(); callers.spawn(async move { for _ in 0..400 { g.publish(v1::Submit { payload: vec![1; 300].into(), ..Default::default() }).await.unwrap(); } }); }
            callers.join_all().await;
            eprintln!("grouped, 256 callers, {n} in flight: {:.0} items/s", 102400.0 / t.elapsed().as_secs_f64());
        }
        let c = bus.consumer(ConsumerSpec::scheduler(s.clone())).await.unwrap();
        let (t, mut n) = (Instant::now(), 0);
        loop { let got = c.fetch(64, Duration::from_millis(200)).await.unwrap(); if got.is_empty() { break; } for d in &got { d.ack().await; } n += got.len(); }
        eprintln!("prefetch pull+ack {:.0} msgs/s of {n}", n as f64 / (t.elapsed().as_secs_f64() - 0.2));
        // offers exact
        let (te, to) = (muster_domain::Tenant::parse("a").unwrap(), muster_domain::Topic::parse("t").unwrap());
        let o = subjects::offer(&te, &to);
        for _ in 0..20 { let all = (0..500).map(|_| bus.publish(&o, None, None, body())); futures_util::future::join_all(all).await; }
        let c = bus.consumer(ConsumerSpec::offers(&te, &to)).await.unwrap();
        for max in [64, 8] {
            let (t, mut n) = (Instant::now(), 0);
            while n < 5000 { let got = c.fetch(max, Duration::from_millis(200)).await.unwrap(); for d in &got { d.ack().await; } n += got.len(); }
            eprintln!("exact pull({max})+ack {:.0} msgs/s", n as f64 / t.elapsed().as_secs_f64());
        }
        while !c.fetch(100, Duration::from_millis(300)).await.unwrap().iter().map(|d| d.receipt.clone()).collect::<Vec<_>>().is_empty() {}
        // latency publish -> fetch, idle
        for (subj, c) in [(o.clone(), c), (s.clone(), bus.consumer(ConsumerSpec::scheduler(s.clone())).await.unwrap())] {
            let mut l = vec![];
            for _ in 0..200 {
                let (got, sent) = tokio::join!(c.fetch(8, Duration::from_secs(2)), async { tokio::time::sleep(Duration::from_millis(5)).await; let t = Instant::now(); bus.publish(&subj, None, None, body()).await.unwrap(); t });
                l.push(sent.elapsed()); for d in got.unwrap() { d.ack().await; }
            }
            l.sort(); eprintln!("{subj}: publish+fetch p50 {:?} p99 {:?}", l[100], l[197]);
        }
    });
}
