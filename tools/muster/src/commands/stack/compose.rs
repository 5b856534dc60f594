//! Turns the containers of a compose project into a state file. Pure: it reads the output of `docker inspect`, and
//! only the files of secrets that are mounted into a gateway.
//!
//! An address is the published port on the host. For a port that is not published it is the container's own address,
//! which a Linux host reaches.

use std::{collections::BTreeSet, fs, path::Path};

use super::docker::Container;
use crate::{
    outcome::{Code, Failure},
    stack::{Process, Stack},
};

/// The ports of a service inside its container, unless its settings say otherwise.
struct Ports {
    service: &'static str,
    http: Option<u16>,
    grpc: Option<u16>,
    admin: Option<u16>,
    /// The port of a store for its clients.
    addr: Option<u16>,
    monitor: Option<u16>,
}

const NONE: Ports = Ports { service: "", http: None, grpc: None, admin: None, addr: None, monitor: None };

/// One row per service; a service without a row has neither API nor admin port.
const PORTS: &[Ports] = &[
    Ports { service: "gateway", http: Some(8081), grpc: Some(8080), admin: Some(9092), ..NONE },
    Ports { service: "scheduler", admin: Some(9090), ..NONE },
    Ports { service: "workflow", admin: Some(9093), ..NONE },
    Ports { service: "safety", grpc: Some(50051), admin: Some(9095), ..NONE },
    Ports { service: "context", grpc: Some(50070), admin: Some(9094), ..NONE },
    Ports { service: "mcp", http: Some(8090), admin: Some(9096), ..NONE },
    Ports { service: "redis", addr: Some(6379), ..NONE },
    Ports { service: "nats", addr: Some(4222), monitor: Some(8222), ..NONE },
    Ports { service: "prometheus", http: Some(9090), ..NONE },
];

/// The parts of a project.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) stack: Stack,
    /// Replicas that should run and do not, one sentence each.
    pub(super) left_out: Vec<String>,
}

/// Describes one project. `api_key`, if given, is used instead of the gateway's own key.
pub(super) fn describe(all: &[Container], project: Option<&str>, api_key: Option<&str>) -> anyhow::Result<Found> {
    let project = choose(all, project)?;
    let is_ours = |c: &&Container| c.label("project") == Some(&project) && c.label("oneoff") != Some("True");
    let mut ours: Vec<&Container> = all.iter().filter(is_ours).collect();
    ours.sort_by_key(|c| (c.label("service").unwrap_or_default(), number(c)));

    // A one-shot container that has done its work is not a replica.
    let is_done = |c: &Container| {
        c.state.status == "exited" && c.state.exit_code == 0 && c.host_config.restart_policy.name != "unless-stopped"
    };
    let gone = ours.iter().filter(|c| !c.runs() && !is_done(c));
    let left_out =
        gone.map(|c| format!("{} does not run ({}, exit code {})", name(c), c.state.status, c.state.exit_code));
    let left_out: Vec<String> = left_out.collect();
    let running: Vec<&Container> = ours.into_iter().filter(|c| c.runs()).collect();

    let Some(gateway) = running.iter().find(|c| kind(c) == "gateway") else {
        let failure = Failure::new(format!("no gateway of the compose project {project} runs"));
        return Err(failure.hint(left_out.first().cloned().unwrap_or_else(|| "start it: up -d".into())).into());
    };
    let Some(api_key) = api_key.map(str::to_owned).or_else(|| setting(gateway, "MUSTER_API_KEY")) else {
        let failure = Failure::new(format!("{} has no MUSTER_API_KEY that can be read", name(gateway)));
        return Err(failure.hint("give the key with --api-key (MUSTER_API_KEY)").into());
    };
    let stack = Stack {
        kind: Some("compose".into()),
        project: Some(project),
        // During a rotation there are several keys.
        api_key: api_key.split(',').next().unwrap_or_default().trim().to_owned(),
        redis_url: store_url(gateway, "REDIS_URL", "redis", &running)?,
        nats_url: store_url(gateway, "NATS_URL", "nats", &running)?,
        processes: running.iter().map(|c| process(c)).collect(),
    };
    Ok(Found { stack, left_out })
}

/// The named project, or the only one with a gateway.
fn choose(all: &[Container], named: Option<&str>) -> Result<String, Failure> {
    let projects = |with: &dyn Fn(&Container) -> bool| -> BTreeSet<String> {
        all.iter().filter(|c| with(c)).filter_map(|c| c.label("project")).map(str::to_owned).collect()
    };
    let list = |names: BTreeSet<String>| match names.is_empty() {
        true => "there are none on this machine".to_owned(),
        false => format!("there are: {}", names.into_iter().collect::<Vec<_>>().join(", ")),
    };
    if let Some(named) = named {
        let known = projects(&|_| true);
        return match known.contains(named) {
            true => Ok(named.to_owned()),
            false => Err(Failure::new(format!("there is no compose project {named}"))
                .hint(list(known))
                .with_code(Code::NotFound)),
        };
    }
    let ours = projects(&|c| kind(c) == "gateway");
    match (ours.len(), ours.first()) {
        (1, Some(only)) => Ok(only.clone()),
        (0, _) => Err(Failure::new("no compose project has a gateway")
            .hint(list(projects(&|_| true)))
            .with_code(Code::NotFound)),
        _ => Err(Failure::usage("several compose projects have a gateway")
            .hint(format!("choose one with --project; {}", list(ours)))),
    }
}

fn number(container: &Container) -> u32 {
    container.label("container-number").and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Its service: the compose service without the number of the replica.
fn kind(container: &Container) -> &str {
    let service = container.label("service").unwrap_or_default();
    match service.rsplit_once('-') {
        Some((kind, n)) if n.parse::<u32>().is_ok() => kind,
        _ => service,
    }
}

/// Its instance id; or its service, with a number from the second container on.
fn name(container: &Container) -> String {
    if let Some(id) = container.env("MUSTER_INSTANCE_ID") {
        return id.to_owned();
    }
    let service = container.label("service").unwrap_or(&container.name);
    match number(container) {
        1 => service.to_owned(),
        n => format!("{service}-{n}"),
    }
}

fn process(container: &Container) -> Process {
    let kind = kind(container);
    let ports = PORTS.iter().find(|row| row.service == kind).unwrap_or(&NONE);
    let listens = |variable: &str, default: Option<u16>| {
        let told = container.env(variable).and_then(|addr| addr.rsplit_once(':')?.1.parse().ok());
        default.map(|port| told.unwrap_or(port))
    };
    let url = |port: Option<u16>| port.and_then(|port| address(container, port)).map(|addr| format!("http://{addr}"));
    Process {
        name: name(container),
        service: kind.to_owned(),
        pid: container.state.pid,
        http: url(listens("MUSTER_HTTP_ADDR", ports.http)),
        // Without a setting of its own, gRPC is not served.
        grpc: url(container.env("MUSTER_GRPC_ADDR").and(listens("MUSTER_GRPC_ADDR", ports.grpc))),
        admin: url(listens("MUSTER_ADMIN_ADDR", ports.admin)),
        addr: ports.addr.and_then(|port| address(container, port)),
        monitor: url(ports.monitor),
        container: Some(container.name.trim_start_matches('/').to_owned()),
    }
}

/// The address at which the host reaches a port of the container.
fn address(container: &Container, port: u16) -> Option<String> {
    let published = container.network_settings.ports.as_ref().and_then(|ports| ports.get(&format!("{port}/tcp")));
    if let Some(place) = published.and_then(Option::as_ref).and_then(|places| places.first()) {
        let host = match place.host_ip.as_str() {
            "" | "0.0.0.0" | "::" => "127.0.0.1".to_owned(),
            v6 if v6.contains(':') => format!("[{v6}]"),
            v4 => v4.to_owned(),
        };
        return Some(format!("{host}:{}", place.host_port));
    }
    let networks = container.network_settings.networks.as_ref()?;
    let ip = networks.values().map(|network| &network.ip_address).find(|ip| !ip.is_empty())?;
    Some(format!("{ip}:{port}"))
}

/// A setting of a container, or the content of the mounted file that it names.
fn setting(container: &Container, name: &str) -> Option<String> {
    if let Some(value) = container.env(name) {
        return Some(value.to_owned());
    }
    let inside = Path::new(container.env(&format!("{name}_FILE"))?);
    let outside = container.mounts.iter().find_map(|mount| {
        let rest = inside.strip_prefix(&mount.destination).ok()?;
        let source = Path::new(&mount.source);
        Some(if rest.as_os_str().is_empty() { source.to_owned() } else { source.join(rest) })
    })?;
    Some(fs::read_to_string(outside).ok()?.trim().to_owned())
}

/// The URL of the gateway's store, with each host that is a container replaced by its address on this host. A store
/// outside the project stays unchanged; a node of the project that is down is left out.
fn store_url(
    gateway: &Container,
    variable: &str,
    service: &'static str,
    running: &[&Container],
) -> Result<String, Failure> {
    let Some(urls) = setting(gateway, variable) else {
        return Err(Failure::new(format!("{} has no {variable} that can be read", name(gateway))));
    };
    let (scheme, rest) = urls.split_once("://").unwrap_or((service, &urls));
    let parts: Vec<&str> = rest.split(',').map(|part| part.rsplit("://").next().unwrap_or(part).trim()).collect();
    // In a list only the first URL needs to have the user.
    let first_user = parts[0].rsplit_once('@').map_or("", |(user, _)| user);
    let default_port = PORTS.iter().find(|row| row.service == service).and_then(|row| row.addr).unwrap_or_default();
    let mut outside = Vec::new();
    for part in &parts {
        let (user, place) = part.rsplit_once('@').unwrap_or((first_user, part));
        let (place, path) = place.split_once('/').map_or((place, String::new()), |(at, db)| (at, format!("/{db}")));
        let (host, port) = place.rsplit_once(':').unwrap_or((place, ""));
        let is_ours = host.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()) == service;
        let reached = match running.iter().find(|c| c.label("service") == Some(host)) {
            Some(container) => address(container, port.parse().unwrap_or(default_port)),
            None => (!is_ours).then(|| place.to_owned()),
        };
        let at = if user.is_empty() { "" } else { "@" };
        outside.extend(reached.map(|reached| format!("{user}{at}{reached}{path}")));
    }
    let plain = scheme.trim_end_matches("+cluster");
    match outside.as_slice() {
        [] => {
            let failure = Failure::new(format!("{service}, which {} needs, does not run", name(gateway)));
            Err(failure.hint("`docker-compose ps` and `logs` show why"))
        }
        // The only node left of a cluster is still a cluster.
        [only] if service == "redis" && (parts.len() > 1 || scheme != plain) => Ok(format!("{plain}+cluster://{only}")),
        all => Ok(all.iter().map(|one| format!("{plain}://{one}")).collect::<Vec<_>>().join(",")),
    }
}

#[cfg(test)]
mod tests;
