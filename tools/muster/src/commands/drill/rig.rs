//! The stack of a drill. One of its own is made of the same pieces as `muster dev`: stores, two or three of
//! each service, workers, and a line of its own between each process and each store. On a compose stack the
//! drill starts its workers only. Processes come back when they die; `Hands` is how a drill reaches in.
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
    attached::Attached,
    hands::{Hands, Order, Stores},
    proxy::{Lines, Proxy},
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
            names("workflow", self.replicas),
            names("gateway", self.replicas),
            names("worker", self.nats_workers),
            names("http-worker", self.http_workers),
        ]
        .concat()
    }
}

/// The running stack.
pub(super) struct Rig {
    fleet: Fleet,
    orders: mpsc::UnboundedReceiver<Order>,
    seen: watch::Sender<Vec<Process>>,
    hands: Hands,
    folder: Folder,
    door: Door,
    _ports: Option<Ports>,
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
            stores: Some(Rc::new(Stores {
                redis,
                nats,
                clustered: shape.cluster,
                deaths: RefCell::default(),
                turn: Mutex::new(()),
            })),
            attached: None,
        };
        let fleet = Fleet::new(folder.logs()).silent();
        let rig = Rig { fleet, orders, seen, hands, folder, door, _ports: Some(ports) };
        rig.up(stores, recipes, stop).await
    }

    /// Takes a compose stack and starts workers beside it: `workers` over NATS and one over HTTP. Waits until
    /// everything is ready.
    pub(super) async fn attach(
        attached: Attached,
        workers: u16,
        dir: &Path,
        stop: &mut StopSignals,
    ) -> anyhow::Result<Ended<Rig>> {
        let folder = Folder::take(dir, None).await?;
        let stack = attached.stack();
        let around = Surroundings {
            redis_url: stack.redis_url.clone(),
            nats_url: stack.nats_url.clone(),
            nats_replicas: stack.processes.iter().filter(|process| process.service == "nats").count().max(1),
            api_key: &stack.api_key,
            dir: folder.path(),
        };
        let door = Door { urls: stack.gateways(), api_key: stack.api_key.clone(), tenant: None };
        // The stack may have workers of its own that are called worker-1.
        let mut recipes = vec![];
        for n in 1..=workers {
            recipes.push(worker(&around, &format!("drill-worker-{n}"), None)?);
        }
        recipes.push(worker(&around, "drill-http-worker-1", Some(&door))?);
        let names = attached.services().into_iter().map(|process| process.name);
        let names = names.chain(recipes.iter().map(|recipe| recipe.shown.name.clone()));
        let (order, orders) = mpsc::unbounded_channel();
        let (seen, processes) = watch::channel(Vec::new());
        let lines = Rc::new(names.map(|name| (name, Lines::default())).collect());
        let hands = Hands { processes, order, lines, stores: None, attached: Some(Rc::new(attached)) };
        let fleet = Fleet::new(folder.logs()).silent();
        let rig = Rig { fleet, orders, seen, hands, folder, door, _ports: None };
        rig.up(Vec::new(), recipes, stop).await
    }

    async fn up(self, stores: Vec<Recipe>, recipes: Vec<Recipe>, stop: &mut StopSignals) -> anyhow::Result<Ended<Rig>> {
        let mut rig = self;
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
        let processes = self.processes();
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
        let attached = self.hands.attached.clone();
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
                changed = changed(attached.as_deref()) => changed?,
            }
            self.publish()?;
        }
    }

    /// Services, stores and workers that run now; of a compose stack, services and workers.
    fn processes(&self) -> Vec<Process> {
        let services = self.hands.attached.as_ref().map(|attached| attached.services()).unwrap_or_default();
        services.into_iter().chain(self.fleet.processes()).collect()
    }

    /// Shows the processes that run to the drill and, by the state file, to other terminals. The state file of a
    /// compose stack is kept by `Attached`.
    fn publish(&self) -> anyhow::Result<()> {
        let processes = self.processes();
        if *self.seen.borrow() == processes {
            return Ok(());
        }
        if let Some(stores) = &self.hands.stores {
            let stack = Stack {
                api_key: self.door.api_key.clone(),
                redis_url: stores.redis.url(),
                nats_url: stores.nats.url(),
                processes: processes.clone(),
                ..Stack::default()
            };
            stack.write(self.folder.state_file())?;
        }
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

    /// Stops everything that the drill started, the paused ones too. A compose stack stays, whole.
    pub(super) async fn stop(mut self, stop: &mut StopSignals) {
        self.hands.heal();
        if let Some(attached) = &self.hands.attached {
            attached.release().await;
        }
        let _ = std::fs::remove_file(self.folder.state_file());
        self.fleet.stop(stop.next()).await;
    }
}

/// Waits until a compose stack has changed; forever without one.
async fn changed(attached: Option<&Attached>) -> anyhow::Result<()> {
    match attached {
        Some(attached) => attached.changed().await,
        None => std::future::pending().await,
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
            let target = addr.parse().with_context(|| format!("{addr:?} is not an address"))?;
            let proxy = Proxy::start(ports.free()?, target).await?;
            urls.push(format!("{scheme}://127.0.0.1:{}", proxy.port()));
            drawn.push(proxy);
        }
        *value = urls.join(",");
    }
    Ok(lines)
}
