//! Replies that are really lost: a proxy lets the call through and breaks the connection instead of
//! answering; on a cluster there is one before each node. The router sends it again, and the state has changed once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use muster_domain::{Event, JobId, Outcome, State};
use muster_store::{Deleted, Extension, Put, SeenVersion, Submitted};
use muster_testkit::{RedisCluster, RedisServer, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::bench::{Bench, HOUR, new_job, spec, tenant};

/// Proxies that swallow the reply to one script when told to.
struct Deaf {
    ports: Vec<u16>,
    lose: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Deaf {
    /// One before each of these ports.
    async fn start(targets: &[u16]) -> Deaf {
        let (mut ports, mut tasks, lose) = (Vec::new(), JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for &target in targets {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            ports.push(listener.local_addr().unwrap().port());
            let told = Arc::clone(&lose);
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    connections.spawn(forward(client, target, Arc::clone(&told)));
                }
            });
        }
        Deaf { ports, lose, _tasks: tasks }
    }

    fn url(&self) -> String {
        self.ports.iter().map(|port| format!("redis://127.0.0.1:{port}")).collect::<Vec<_>>().join(",")
    }

    /// Loses the reply to the next script.
    fn lose_one(&self) {
        self.lose.store(true, Ordering::SeqCst);
    }

    fn has_lost(&self) -> bool {
        !self.lose.load(Ordering::SeqCst)
    }
}

async fn forward(client: TcpStream, target: u16, lose: Arc<AtomicBool>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    // Replicas and questions about the cluster come this way too, and are let alone.
    let asked = AtomicBool::new(false);
    let there = async {
        let mut chunk = vec![0; 65_536];
        while let Ok(count @ 1..) = from_client.read(&mut chunk).await {
            if chunk[..count].windows(7).any(|word| word == b"EVALSHA") {
                asked.store(lose.swap(false, Ordering::SeqCst), Ordering::SeqCst);
            }
            if to_server.write_all(&chunk[..count]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut chunk = vec![0; 65_536];
        while let Ok(count @ 1..) = from_server.read(&mut chunk).await {
            if asked.load(Ordering::SeqCst) || to_client.write_all(&chunk[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! { () = back => {}, () = there => {} }
}

#[tokio::test]
async fn a_reply_that_is_lost_changes_the_state_once() {
    let redis = RedisServer::start().await;
    let proxy = Deaf::start(&[redis.port()]).await;
    let direct = Bench::at(redis.url()).await;
    changes_the_state_once(&proxy, &direct, &Bench::at(proxy.url()).await).await;
}

#[tokio::test]
async fn on_a_cluster_too_a_reply_that_is_lost_changes_the_state_once() {
    let cluster = RedisCluster::start_steady().await;
    let ports: Vec<u16> = cluster.nodes.iter().map(RedisServer::port).collect();
    let proxy = Deaf::start(&ports).await;
    let direct = Bench::at(cluster.url()).await;
    // Who asks the cluster where a key is, is sent to the proxies from now on.
    for (node, port) in proxy.ports.iter().enumerate() {
        assert_eq!(cluster.cli(node, &["CONFIG", "SET", "cluster-announce-port", &port.to_string()]).await, "OK");
    }
    until(Duration::from_secs(30), "the proxies to be known everywhere", async || {
        for node in 0..cluster.nodes.len() {
            let known = cluster.cli(node, &["CLUSTER", "NODES"]).await;
            if !proxy.ports.iter().all(|port| known.contains(&format!("127.0.0.1:{port}@"))) {
                return None;
            }
        }
        Some(())
    })
    .await;
    changes_the_state_once(&proxy, &direct, &Bench::at(proxy.url()).await).await;
}

async fn changes_the_state_once(proxy: &Deaf, direct: &Bench, deaf: &Bench) {
    // Every node knows all scripts by now, so that the reply that is lost is that of the call itself.
    for _ in 0..40 {
        let known = direct.calm(State::Succeeded).await;
        direct.store.delete_ended(known.id).await.unwrap();
        let running = direct.calm(State::Running).await;
        let extension = Extension { job: running.id, fence: running.head.fence, lease: HOUR, progress: None };
        direct.store.extend(vec![extension]).await.remove(0).unwrap();
    }
    direct.store.forward_homes(&[(JobId::mint(0), HOUR)]).await.unwrap();

    let job = new_job(spec(&tenant()));
    proxy.lose_one();
    let submitted = deaf.store.submit(std::slice::from_ref(&job)).await.remove(0).unwrap();
    assert!(proxy.has_lost());
    let Submitted::Exists(head) = submitted else { panic!("{submitted:?}") };
    let mut job = crate::bench::Job { id: job.id, head };

    for event in [Event::Dispatch, Event::Start, Event::Retry, Event::Wake, Event::Dispatch, Event::Start] {
        let step = job.step(event);
        proxy.lose_one();
        let moved = deaf.apply(step).await;
        assert!(proxy.has_lost());
        assert_eq!(moved.outcome, Outcome::Already, "{event}");
        let record = direct.record(job.id).await;
        assert_eq!(Some(&record.head), moved.head.as_ref());
        assert_eq!(record.head.version, job.head.version + 1, "{event} moved it once");
        job.head = record.head;
    }
    assert_eq!((job.head.attempt, direct.record(job.id).await.history.len()), (2, 7));

    proxy.lose_one();
    let extension = Extension { job: job.id, fence: job.head.fence, lease: 2 * HOUR, progress: None };
    assert!(deaf.store.extend(vec![extension]).await.remove(0).unwrap().held && proxy.has_lost());
    proxy.lose_one();
    let ended = deaf.apply(job.step(Event::Succeed)).await;
    assert_eq!((ended.outcome, ended.head.unwrap().version), (Outcome::Already, job.head.version + 1));
    proxy.lose_one();
    assert_eq!(deaf.store.delete_ended(job.id).await, Ok(Deleted::Missing));
    assert!(proxy.has_lost() && direct.record(job.id).await.deleted);

    // A home that was forwarded twice is nearer by one microsecond more, and never later.
    let id = JobId::mint(0);
    direct.store.set_homes(&[id], HOUR).await.unwrap();
    let before = direct.store.home_of(id).await.unwrap().unwrap();
    proxy.lose_one();
    deaf.store.forward_homes(&[(id, 2 * HOUR)]).await.unwrap();
    assert!(proxy.has_lost());
    assert_eq!(direct.store.home_of(id).await.unwrap().unwrap(), before.before(Duration::from_micros(2)));

    // Settings: whoever wins hears so, though its first answer was lost.
    direct.store.put_config(SeenVersion::Any, &Default::default()).await.unwrap();
    let seen = SeenVersion::Exactly(direct.store.read_config().await.unwrap().version);
    proxy.lose_one();
    let put = deaf.store.put_config(seen, &[("a".to_owned(), "1".to_owned())].into()).await.unwrap();
    assert!(proxy.has_lost());
    assert_eq!(put, Put::Stored(direct.store.read_config().await.unwrap()));
}
