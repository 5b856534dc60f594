//! The faults that a drill causes in its stack: it signals processes, cuts and opens network lines, and stops, empties
//! and fails over stores. Each function returns when the fault is done. This module does not know jobs.

use std::{cell::RefCell, collections::BTreeMap, fs, rc::Rc, time::Duration};

use anyhow::Context;
use muster_domain::time::wall_clock;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    sync::{Mutex, mpsc, watch},
    time::{Instant, sleep},
};

use super::{
    attached::Attached,
    bus,
    places::{Death, Places},
    plan::Store,
    proxy::{Line, Lines, Proxy},
    reported::Scope,
};
use crate::{
    commands::dev::{nats::Nats, probe, redis::Redis, services},
    programs,
    stack::Process,
};

/// The interval of polling for something that should happen soon.
const GLANCE: Duration = Duration::from_millis(20);
/// The limit for a process to die or come back, and for a replica to take over.
const SOON: Duration = Duration::from_secs(30);

/// An order to the supervisor of the processes.
pub(super) enum Order {
    /// Do not restart this process when it dies.
    Hold(String),
    /// Restart this process again.
    LetGo(String),
}

/// The stores of the stack.
pub(super) struct Stores {
    pub(super) redis: Redis,
    pub(super) nats: Nats,
    pub(super) clustered: bool,
    /// The primaries that the drill has killed.
    pub(super) deaths: RefCell<Vec<Death>>,
    /// Only one fault of the stores at a time: its function holds this.
    pub(super) turn: Mutex<()>,
}

/// The handle of a drill on its stack. Clones act on the same stack.
#[derive(Clone)]
pub(super) struct Hands {
    pub(super) processes: watch::Receiver<Vec<Process>>,
    pub(super) order: mpsc::UnboundedSender<Order>,
    /// The lines of every service and worker to the stores; none on a compose stack.
    pub(super) lines: Rc<BTreeMap<String, Lines>>,
    /// The stores, if the stack belongs to the drill.
    pub(super) stores: Option<Rc<Stores>>,
    /// The compose stack that the drill runs on.
    pub(super) attached: Option<Rc<Attached>>,
}

impl Hands {
    /// The running process of this name.
    pub(super) fn find(&self, name: &str) -> Option<Process> {
        self.processes.borrow().iter().find(|process| process.name == name).cloned()
    }

    /// The names of a service's running processes.
    pub(super) fn of(&self, service: &str) -> Vec<String> {
        let processes = self.processes.borrow();
        processes.iter().filter(|process| process.service == service).map(|process| process.name.clone()).collect()
    }

    /// Which jobs the drill judges.
    pub(super) fn scope(&self) -> Scope {
        if self.attached.is_some() { Scope::Ours } else { Scope::Whole }
    }

    /// The stores; an error if the stack does not belong to the drill.
    fn own_stores(&self) -> anyhow::Result<&Stores> {
        self.stores.as_deref().context("a drill does not change the stores of a stack that is in use")
    }

    /// The primaries that the drill has killed.
    pub(super) fn deaths(&self) -> Vec<Death> {
        self.stores.as_ref().map(|stores| stores.deaths.borrow().clone()).unwrap_or_default()
    }

    /// The number of running processes.
    pub(super) fn count(&self) -> usize {
        self.processes.borrow().len()
    }

    /// Sends a signal to a process and returns its pid; `None` if the process is down.
    pub(super) fn signal(&self, name: &str, signal: Signal) -> Option<u32> {
        let pid = self.find(name)?.pid;
        let _ = kill(Pid::from_raw(i32::try_from(pid).ok()?), signal);
        Some(pid)
    }

    /// Waits until a new process has this name.
    pub(super) async fn replaced(&self, name: &str, old: Option<u32>) -> anyhow::Result<Process> {
        let limit = Instant::now() + SOON;
        loop {
            match self.find(name) {
                Some(process) if Some(process.pid) != old => return Ok(process),
                _ => anyhow::ensure!(Instant::now() < limit, "{name} did not come back within {SOON:?}"),
            }
            sleep(GLANCE).await;
        }
    }

    /// Waits until every process with an admin port reports that it is ready.
    pub(super) async fn all_ready(&self) -> anyhow::Result<()> {
        for name in self.lines.keys() {
            self.replaced(name, None).await?;
        }
        let processes = self.processes.borrow().clone();
        services::ready(&processes).await
    }

    /// Changes the lines between a process and a store.
    pub(super) fn line(&self, name: &str, store: Store, line: Line) {
        let Some(lines) = self.lines.get(name) else { return };
        let drawn = match store {
            Store::Redis => &lines.redis,
            Store::Nats => &lines.nats,
        };
        drawn.iter().for_each(|proxy| proxy.set(line));
    }

    /// Opens every line and continues every paused process.
    pub(super) fn heal(&self) {
        let all = self.lines.values().flat_map(|lines| lines.redis.iter().chain(&lines.nats));
        all.for_each(|proxy: &Proxy| proxy.set(Line::Open));
        let names: Vec<String> = self.processes.borrow().iter().map(|process| process.name.clone()).collect();
        for name in names {
            self.signal(&name, Signal::SIGCONT);
        }
    }

    /// Waits until both stores answer.
    pub(super) async fn stores_ready(&self) -> anyhow::Result<()> {
        let Some(stores) = &self.stores else { return Ok(()) };
        tokio::try_join!(stores.redis.ready(), stores.nats.ready()).map(drop)
    }

    /// Signals processes, waits for their death, and keeps them down until [`Hands::let_go`].
    pub(super) async fn take_down(&self, names: &[String], signal: Signal) -> anyhow::Result<()> {
        for name in names {
            match &self.attached {
                Some(attached) if attached.has(name) => attached.hold(name).await?,
                _ => drop(self.order.send(Order::Hold(name.clone()))),
            }
        }
        let pids: Vec<u32> = names.iter().filter_map(|name| self.signal(name, signal)).collect();
        let limit = Instant::now() + SOON;
        while pids.iter().any(|&pid| lives(pid)) {
            anyhow::ensure!(Instant::now() < limit, "{names:?} did not die within {SOON:?}");
            sleep(GLANCE).await;
        }
        Ok(())
    }

    /// Lets the supervisor start these processes again.
    pub(super) async fn let_go(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            match &self.attached {
                Some(attached) if attached.has(name) => attached.let_go(name).await?,
                _ => drop(self.order.send(Order::LetGo(name.clone()))),
            }
        }
        Ok(())
    }

    /// Kills every NATS node, removes what it stored, and starts it again.
    pub(super) async fn wipe_nats(&self) -> anyhow::Result<()> {
        let stores = self.own_stores()?;
        let _turn = stores.turn.lock().await;
        let (names, folders): (Vec<String>, Vec<_>) = stores.nats.stores().into_iter().unzip();
        self.take_down(&names, Signal::SIGKILL).await?;
        for folder in folders.iter().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        self.let_go(&names).await?;
        stores.nats.ready().await
    }

    /// Kills one NATS node; it comes back with what it stored.
    pub(super) async fn kill_nats(&self, node: usize) -> anyhow::Result<()> {
        let stores = self.own_stores()?;
        let _turn = stores.turn.lock().await;
        let names: Vec<String> = stores.nats.stores().into_iter().map(|(name, _)| name).collect();
        let name = &names[node % names.len()];
        let old = self.signal(name, Signal::SIGKILL);
        self.replaced(name, old).await?;
        stores.nats.ready().await
    }

    /// Deletes every stream. Waits until there are streams: the services create them again after a wipe.
    pub(super) async fn drop_streams(&self) -> anyhow::Result<Vec<String>> {
        let stores = self.own_stores()?;
        let _turn = stores.turn.lock().await;
        let addrs = stores.nats.addrs();
        let addr = addrs.first().context("there is no NATS")?;
        let limit = Instant::now() + SOON;
        loop {
            match bus::drop_streams(addr).await {
                Err(_) if Instant::now() < limit => sleep(GLANCE).await,
                dropped => return dropped,
            }
        }
    }

    /// Stops the single Redis in order; it comes back with its data.
    pub(super) async fn restart_redis(&self, away: Duration) -> anyhow::Result<()> {
        let stores = self.own_stores()?;
        let _turn = stores.turn.lock().await;
        let names: Vec<String> = stores.redis.addrs().into_iter().map(|(name, _)| name).collect();
        self.take_down(&names, Signal::SIGTERM).await?;
        sleep(away).await;
        self.let_go(&names).await?;
        stores.redis.ready().await
    }

    /// Makes a replica take over from its primary; returns the replica's name.
    pub(super) async fn hand_over(&self, shard: usize) -> anyhow::Result<String> {
        let stores = self.own_stores()?;
        let _turn = stores.turn.lock().await;
        let nodes = self.cluster_nodes().await?;
        let mut primaries: Vec<&Node> = nodes.iter().filter(|node| node.primary).collect();
        primaries.sort_by(|a, b| a.slots.cmp(&b.slots));
        let primary = primaries.get(shard % primaries.len().max(1)).context("the cluster has no primary")?;
        let follows = |node: &&Node| node.follows == primary.id && node.sound;
        let replica = nodes.iter().find(follows).context("the primary has no replica")?;
        probe::redis_ask(&replica.addr, "CLUSTER FAILOVER").await?;
        self.took_over(&primary.addr).await?;
        Ok(replica.name.clone())
    }

    /// Kills a primary, waits until its replica has taken over, and starts it again as a replica; returns its name.
    pub(super) async fn kill_primary(&self, shard: usize) -> anyhow::Result<String> {
        let stores = self.own_stores()?;
        let _turn = stores.turn.lock().await;
        let nodes = self.cluster_nodes().await?;
        let mut primaries: Vec<&Node> = nodes.iter().filter(|node| node.primary).collect();
        primaries.sort_by(|a, b| a.slots.cmp(&b.slots));
        let primary = primaries.get(shard % primaries.len().max(1)).context("the cluster has no primary")?;
        let (names, alive) = ([primary.name.clone()], wall_clock());
        let dead = self.take_down(&names, Signal::SIGKILL).await;
        stores.deaths.borrow_mut().push(Death::of(&primary.slots, (alive, wall_clock())));
        dead?;
        let taken = self.took_over(&primary.addr).await;
        self.let_go(&names).await?;
        taken?;
        stores.redis.ready().await?;
        Ok(primary.name.clone())
    }

    /// Where the cluster keeps jobs and the audit log. Finds the keys by an existing job.
    pub(super) async fn places(&self, job: &str) -> anyhow::Result<Places> {
        let nodes = self.cluster_nodes().await?;
        let primaries = nodes.into_iter().filter(|node| node.primary && node.sound);
        let addrs: Vec<String> = primaries.map(|node| node.addr).collect();
        Places::ask(&programs::server("redis-cli", "redis-tools")?, &addrs, job).await
    }

    /// Waits until the cluster has three primaries, without this one.
    async fn took_over(&self, old: &str) -> anyhow::Result<()> {
        let limit = Instant::now() + SOON;
        loop {
            let nodes = self.cluster_nodes().await.unwrap_or_default();
            let primaries = nodes.iter().filter(|node| node.primary && node.sound && !node.slots.is_empty());
            let (mut served, mut leads) = (0, false);
            for node in primaries {
                served += 1;
                leads |= node.addr == old;
            }
            if served == 3 && !leads {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < limit, "no replica took over from {old} within {SOON:?}");
            sleep(GLANCE).await;
        }
    }

    /// The nodes, as reported by the first node that answers.
    async fn cluster_nodes(&self) -> anyhow::Result<Vec<Node>> {
        let stores = self.own_stores()?;
        anyhow::ensure!(stores.clustered, "this Redis is not a cluster");
        let known = stores.redis.addrs();
        for (name, addr) in &known {
            if self.find(name).is_none() {
                continue;
            }
            if let Ok(answer) = probe::redis_ask(addr, "CLUSTER NODES").await {
                return Ok(answer.lines().filter_map(|line| Node::parse(line, &known)).collect());
            }
        }
        anyhow::bail!("no node of the cluster answers")
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    id: String,
    name: String,
    addr: String,
    primary: bool,
    /// The cluster sees no failure of the node.
    sound: bool,
    /// The id of its primary.
    follows: String,
    slots: String,
}

impl Node {
    fn parse(line: &str, known: &[(String, String)]) -> Option<Node> {
        let words: Vec<&str> = line.trim().split(' ').collect();
        let [id, addr, flags, follows, _, _, _, link, slots @ ..] = words.as_slice() else { return None };
        let addr = addr.split('@').next()?.to_owned();
        let name = known.iter().find(|(_, a)| *a == addr)?.0.clone();
        let has = |flag: &str| flags.split(',').any(|f| f == flag);
        Some(Node {
            id: (*id).to_owned(),
            name,
            primary: has("master"),
            sound: !has("fail") && !has("fail?") && (has("myself") || *link == "connected"),
            follows: (*follows).to_owned(),
            slots: slots.join(" "),
            addr,
        })
    }
}

fn lives(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_parsed_from_cluster_nodes() {
        let known = [("redis-1".to_owned(), "127.0.0.1:7000".to_owned())];
        let answer = "07c3 127.0.0.1:7000@17000 myself,master - 0 1 1 connected 0-5460";
        let node = Node::parse(answer, &known).unwrap();
        assert_eq!(
            (node.name.as_str(), node.primary, node.sound, node.slots.as_str()),
            ("redis-1", true, true, "0-5460")
        );
        let answer = "07c3 127.0.0.1:7000@17000 slave,fail 11ab 0 1 1 disconnected";
        let node = Node::parse(answer, &known).unwrap();
        assert_eq!((node.primary, node.sound, node.follows.as_str()), (false, false, "11ab"));
        assert_eq!(Node::parse("$1234", &known), None);
    }
}
