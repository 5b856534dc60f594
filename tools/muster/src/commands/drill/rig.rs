//! A stack of the drill's own, out of the same pieces as `muster dev`: stores, two or three of each
//! service, workers, and a line of its own between each process and each store. Its processes come
//! back when they die; `Hands` is how a drill reaches in.
//!
//! Everything runs on the main thread: the processes are bound to it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use anyhow::Context;
use tokio::sync::{Mutex, mpsc, watch};

use super::{
    hands::{Hands, Order, Stores},
    proxy::Proxy,
};
use crate::{
    api::Api,
    commands::dev::{
        fleet::{Fleet, Recipe, Wave},
        folder::Folder,
        nats::Nats,
        ports::Ports,
        redis::Redis,
        services::{self, Surroundings},
    },
    signals::StopSignals,
    stack::{Process, Stack},
    target::Door,
};

/// Leases of the drill's workers: as short as an HTTP worker may have them.
pub(super) const LEASE: &str = "5s";
/// What the drill's workers take.
pub(super) const TOPICS: [&str; 4] = ["drill.short", "drill.long", "drill.flaky", "drill.deadly"];

/// A setting of one process.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) process: String,
    pub(super) name: &'static str,
    pub(super) value: String,
}

/// What kind of stack.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) replicas: u16,
    pub(super) cluster: bool,
    pub(super) nats_workers: u16,
    pub(super) http_workers: u16,
    /// Settings of single processes.
    pub(super) env: Vec<Setting>,
}

impl Shape {
    /// The names of services and workers, in the order in which they start.
    pub(super) fn processes(&self) -> Vec<String> {
        let names = |kind: &str, n: u16| (1..=n).map(|n| format!("{kind}-{n}")).collect::<Vec<_>>();
        [
            names("scheduler", self.replicas),
            names("gateway", self.replicas),
            names("worker", self.nats_workers),
            names("http-worker", self.http_workers),
        ]
        .concat()
    }
}

/// The lines of one process to its stores.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) redis: Vec<Proxy>,
    pub(super) nats: Vec<Proxy>,
}

/// The running stack.
pub(super) struct Rig {
    fleet: Fleet,
    orders: mpsc::UnboundedReceiver<Order>,
    seen: watch::Sender<Vec<Process>>,
    hands: Hands,
    folder: Folder,
    door: Door,
    _ports: Ports,
}

/// How something that was done under supervision ended.
pub(super) enum Ended<T> {
    Done(T),
    /// Somebody pressed Ctrl-C.
    Stopped,
}

impl Rig {
    /// Starts everything and waits until it is ready.
    pub(super) async fn start(shape: &Shape, dir: &Path, stop: &mut StopSignals) -> anyhow::Result<Ended<Rig>> {
        let folder = Folder::take(dir, None).await?;
        let data = folder.data(shape.cluster)?;
        let mut ports = Ports::load(data.join("ports.json"));
        let redis = Redis::plan(&data, shape.cluster, &mut ports)?;
        let nats = Nats::plan(&data, shape.cluster, &mut ports)?;
        let api_key = folder.api_key()?;
        let around = Surroundings {
            redis_url: redis.url(),
            nats_url: nats.url(),
            nats_replicas: nats.replicas(),
            api_key: &api_key,
            dir: folder.path(),
        };
        let stores = [redis.recipes()?, nats.recipes()?].concat();
        let mut recipes = services::recipes(&around, shape.replicas, 0, &mut ports)?;
        let urls: Vec<String> = recipes.iter().filter_map(|recipe| recipe.shown.http.clone()).collect();
        let door = Door { urls, api_key: api_key.clone(), tenant: None };
        for n in 1..=shape.nats_workers {
            recipes.push(worker(&around, &format!("worker-{n}"), None)?);
        }
        for n in 1..=shape.http_workers {
            recipes.push(worker(&around, &format!("http-worker-{n}"), Some(&door))?);
        }
        let mut lines = BTreeMap::new();
        for recipe in &mut recipes {
            let drawn = draw_lines(recipe, shape.cluster, &redis, &nats, &mut ports).await?;
            lines.insert(recipe.shown.name.clone(), drawn);
            let own = shape.env.iter().filter(|setting| setting.process == recipe.shown.name);
            recipe.env.extend(own.map(|setting| (setting.name, setting.value.clone())));
        }

        let (order, orders) = mpsc::unbounded_channel();
        let (seen, processes) = watch::channel(Vec::new());
        let hands = Hands {
            processes,
            order,
            lines: Rc::new(lines),
            stores: Rc::new(Stores {
                redis,
                nats,
                clustered: shape.cluster,
                deaths: RefCell::default(),
                turn: Mutex::new(()),
            }),
        };
        let fleet = Fleet::new(folder.logs()).silent();
        let mut rig = Rig { fleet, orders, seen, hands, folder, door, _ports: ports };
        match rig.come_up(stores, recipes, stop).await {
            Ok(Ended::Done(())) => Ok(Ended::Done(rig)),
            Ok(Ended::Stopped) => {
                rig.stop(stop).await;
                Ok(Ended::Stopped)
            }
            Err(error) => {
                rig.stop(stop).await;
                Err(error)
            }
        }
    }

    async fn come_up(
        &mut self,
        stores: Vec<Recipe>,
        recipes: Vec<Recipe>,
        stop: &mut StopSignals,
    ) -> anyhow::Result<Ended<()>> {
        let hands = self.hands.clone();
        stores.into_iter().try_for_each(|recipe| self.fleet.start(recipe))?;
        if let Ended::Stopped = self.tend(stop, hands.stores_ready()).await? {
            return Ok(Ended::Stopped);
        }
        self.fleet.proven();
        recipes.into_iter().try_for_each(|recipe| self.fleet.start(recipe))?;
        let processes = self.fleet.processes();
        if let Ended::Stopped = self.tend(stop, services::ready(&processes)).await? {
            return Ok(Ended::Stopped);
        }
        self.fleet.proven();
        Ok(Ended::Done(()))
    }

    /// Does something while what dies is started again.
    pub(super) async fn tend<T>(
        &mut self,
        stop: &mut StopSignals,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Ended<T>> {
        let mut work = std::pin::pin!(work);
        self.publish()?;
        loop {
            tokio::select! {
                done = &mut work => return done.map(Ended::Done),
                () = stop.next() => return Ok(Ended::Stopped),
                Some(order) = self.orders.recv() => match order {
                    Order::Hold(name) => self.fleet.hold(&name),
                    Order::LetGo(name) => self.fleet.let_go(&name),
                },
                replaced = self.fleet.next_replaced() => { replaced?; }
            }
            self.publish()?;
        }
    }

    /// Everybody may know who runs: the drill itself, and whoever looks on with another terminal.
    fn publish(&self) -> anyhow::Result<()> {
        let processes = self.fleet.processes();
        if *self.seen.borrow() == processes {
            return Ok(());
        }
        let stores = &self.hands.stores;
        let stack = Stack {
            api_key: self.door.api_key.clone(),
            redis_url: stores.redis.url(),
            nats_url: stores.nats.url(),
            processes: processes.clone(),
        };
        stack.write(self.folder.state_file())?;
        self.seen.send_replace(processes);
        Ok(())
    }

    /// How to reach in.
    pub(super) fn hands(&self) -> Hands {
        self.hands.clone()
    }

    /// A client of all gateways.
    pub(super) fn api(&self) -> anyhow::Result<Api> {
        Api::new(self.door.clone())
    }

    /// Clients that each prefer another gateway and fall back on the rest.
    pub(super) fn apis(&self) -> anyhow::Result<Vec<Api>> {
        let turned = |n: usize| {
            let mut urls = self.door.urls.clone();
            urls.rotate_left(n);
            Api::new(Door { urls, ..self.door.clone() })
        };
        (0..self.door.urls.len()).map(turned).collect()
    }

    /// Where the workers write what they run.
    pub(super) fn tally(&self) -> PathBuf {
        tally(self.folder.path())
    }

    /// Stops everything, the paused ones too.
    pub(super) async fn stop(mut self, stop: &mut StopSignals) {
        self.hands.heal();
        let _ = std::fs::remove_file(self.folder.state_file());
        self.fleet.stop(stop.next()).await;
    }
}

fn tally(dir: &Path) -> PathBuf {
    dir.join("executions")
}

/// A worker of the drill; over HTTP if it gets a door.
fn worker(around: &Surroundings<'_>, name: &str, door: Option<&Door>) -> anyhow::Result<Recipe> {
    let mut args: Vec<String> = ["worker", "run", "--builtin", "drill", "--drain", "5s", "--concurrency", "16"]
        .into_iter()
        .chain(["--lease", LEASE, "--id", name, "--tenant", "default"])
        .map(str::to_owned)
        .collect();
    for topic in TOPICS {
        args.extend(["--topic".to_owned(), topic.to_owned()]);
    }
    args.extend(["--count-file".to_owned(), tally(around.dir).display().to_string()]);
    let env = match door {
        Some(door) => {
            args.push("--http".to_owned());
            vec![("MUSTER_URL", door.urls.join(",")), ("MUSTER_API_KEY", door.api_key.clone())]
        }
        None => {
            vec![("NATS_URL", around.nats_url.clone()), ("NATS_REPLICAS", around.nats_replicas.to_string())]
        }
    };
    Ok(Recipe {
        wave: Wave::Worker,
        shown: Process { name: name.to_owned(), service: "worker".into(), ..Process::default() },
        program: std::env::current_exe()?,
        args: args.into_iter().map(Into::into).collect(),
        env,
        dir: around.dir.to_owned(),
        patience: Duration::from_secs(12),
    })
}

/// Puts a line of its own between this process and each store that its settings name.
async fn draw_lines(
    recipe: &mut Recipe,
    cluster: bool,
    redis: &Redis,
    nats: &Nats,
    ports: &mut Ports,
) -> anyhow::Result<Lines> {
    let mut lines = Lines::default();
    for (key, value) in &mut recipe.env {
        let (drawn, scheme, addrs) = match *key {
            "NATS_URL" => (&mut lines.nats, "nats", nats.addrs()),
            // A cluster's nodes tell clients their own addresses, past any line.
            "REDIS_URL" if !cluster => {
                (&mut lines.redis, "redis", redis.addrs().into_iter().map(|(_, addr)| addr).collect())
            }
            _ => continue,
        };
        let mut urls = Vec::new();
        for addr in addrs {
            let target = addr.parse().with_context(|| format!("{addr:?} is no address"))?;
            let proxy = Proxy::start(ports.free()?, target).await?;
            urls.push(format!("{scheme}://127.0.0.1:{}", proxy.port()));
            drawn.push(proxy);
        }
        *value = urls.join(",");
    }
    Ok(lines)
}
