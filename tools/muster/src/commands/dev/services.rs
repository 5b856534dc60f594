//! Muster's own processes in a stack: N replicas of each service, and a demo worker. A new service is one more row in
//! the list.

use std::{path::Path, time::Duration};

use super::{
    fleet::{Recipe, Wave},
    ports::Ports,
    probe,
};
use crate::{programs, stack::Process};

/// A service: whether it has an HTTP port besides its admin port, and whether it submits jobs.
struct Service {
    name: &'static str,
    binary: &'static str,
    http: bool,
    submits: bool,
}

const SERVICES: &[Service] = &[
    Service { name: "scheduler", binary: "muster-scheduler", http: false, submits: false },
    Service { name: "workflow", binary: "muster-workflow", http: false, submits: true },
    Service { name: "gateway", binary: "muster-gateway", http: true, submits: true },
];

/// A service stops within 15 s; a little more before it is killed.
const SERVICE_PATIENCE: Duration = Duration::from_secs(18);
/// The demo worker's drain, and a little more.
const WORKER_PATIENCE: Duration = Duration::from_secs(8);

/// What Muster's processes need to know about the stack.
pub(crate) struct Surroundings<'a> {
    pub(crate) redis_url: String,
    pub(crate) nats_url: String,
    pub(crate) nats_replicas: usize,
    pub(crate) api_key: &'a str,
    pub(crate) dir: &'a Path,
}

/// How to start `replicas` of each service, the first gateway on `port`.
pub(crate) fn recipes(
    around: &Surroundings<'_>,
    replicas: u16,
    port: u16,
    ports: &mut Ports,
) -> anyhow::Result<Vec<Recipe>> {
    let mut recipes = Vec::new();
    for service in SERVICES {
        for n in 1..=replicas {
            let http = if service.http { Some(ports.gateway(port, n)?) } else { None };
            recipes.push(recipe(around, service, n, http, ports.free()?)?);
        }
    }
    Ok(recipes)
}

fn recipe(
    around: &Surroundings<'_>,
    service: &Service,
    n: u16,
    http: Option<u16>,
    admin: u16,
) -> anyhow::Result<Recipe> {
    let name = format!("{}-{n}", service.name);
    let mut env = vec![
        ("REDIS_URL", around.redis_url.clone()),
        ("NATS_URL", around.nats_url.clone()),
        ("NATS_REPLICAS", around.nats_replicas.to_string()),
        ("MUSTER_INSTANCE_ID", name.clone()),
        ("MUSTER_ADMIN_ADDR", format!("127.0.0.1:{admin}")),
    ];
    if let Some(http) = http {
        env.push(("MUSTER_HTTP_ADDR", format!("127.0.0.1:{http}")));
        env.push(("MUSTER_API_KEY", around.api_key.to_owned()));
    }
    // A rate limit is a nuisance on a developer's machine, unless it is configured. The steps of runs are submitted under
    // the same limit as the jobs of clients, so who submits has the same one.
    if service.submits && std::env::var_os("API_RATE_LIMIT_RPS").is_none() {
        env.push(("API_RATE_LIMIT_RPS", "0".to_owned()));
    }
    Ok(Recipe {
        wave: Wave::Service,
        shown: Process {
            name,
            service: service.name.to_owned(),
            http: http.map(|port| format!("http://127.0.0.1:{port}")),
            admin: Some(format!("http://127.0.0.1:{admin}")),
            ..Process::default()
        },
        program: programs::own(service.binary)?,
        args: Vec::new(),
        env,
        dir: around.dir.to_owned(),
        patience: SERVICE_PATIENCE,
    })
}

/// How to start the worker that answers the first command of a newcomer.
pub(crate) fn demo_worker(around: &Surroundings<'_>) -> anyhow::Result<Recipe> {
    let args = ["worker", "run", "--topic", "demo", "--builtin", "echo", "--tenant", "default", "--drain", "5s"];
    Ok(Recipe {
        wave: Wave::Worker,
        shown: Process { name: "worker-1".into(), service: "worker".into(), ..Process::default() },
        program: std::env::current_exe()?,
        args: args.iter().map(Into::into).collect(),
        env: vec![("NATS_URL", around.nats_url.clone()), ("NATS_REPLICAS", around.nats_replicas.to_string())],
        dir: around.dir.to_owned(),
        patience: WORKER_PATIENCE,
    })
}

/// Waits until each of these answers on its admin port that it is ready. A gateway answers 200 even without its
/// stores, as `degraded`; a stack is up when no process is degraded.
pub(crate) async fn ready(processes: &[Process]) -> anyhow::Result<()> {
    for process in processes {
        if let Some(addr) = process.admin.as_deref().and_then(|url| url.strip_prefix("http://")) {
            let ready = || async {
                let said = probe::http_get(addr, "/readyz").await?;
                anyhow::ensure!(!said.contains("\"degraded\""), "/readyz says {}", said.trim());
                Ok(())
            };
            probe::until_ready(&process.name, ready).await?;
        }
    }
    Ok(())
}
