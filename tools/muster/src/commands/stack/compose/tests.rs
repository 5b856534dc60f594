//! Tests of the state file for containers as `docker inspect` describes them. The samples are parts of real output.

use serde_json::{Value, json};

use super::*;
use crate::commands::stack::docker;

/// A container of a service: the fields that differ between the samples.
struct Sample {
    service: &'static str,
    env: Vec<&'static str>,
    ports: Value,
    ip: &'static str,
    pid: u32,
}

impl Sample {
    fn json(&self) -> Value {
        let running = self.pid > 0;
        json!({
            "Id": "4f1c",
            "Name": format!("/demo_{}_1", self.service),
            "State": {
                "Status": if running { "running" } else { "exited" },
                "Running": running, "Pid": self.pid, "ExitCode": if running { 0 } else { 137 },
            },
            "Config": {
                "Env": self.env,
                "Labels": {
                    "com.docker.compose.project": "demo",
                    "com.docker.compose.service": self.service,
                    "com.docker.compose.container-number": "1",
                    "com.docker.compose.oneoff": "False",
                },
            },
            "HostConfig": {"RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0}},
            "NetworkSettings": {
                "Ports": self.ports,
                "Networks": {"demo_default": {"IPAddress": self.ip, "Aliases": [self.service]}},
            },
            "Mounts": [],
        })
    }
}

const GATEWAY_ENV: [&str; 4] = [
    "MUSTER_INSTANCE_ID=gateway-1",
    "MUSTER_API_KEY=new-key,old-key",
    "REDIS_URL=redis://:pa%3Dss@redis:6379",
    "NATS_URL=nats://me:pw@nats:4222",
];

fn gateway() -> Sample {
    Sample {
        service: "gateway",
        env: GATEWAY_ENV.into(),
        ports: json!({
            "8081/tcp": [{"HostIp": "0.0.0.0", "HostPort": "18081"}, {"HostIp": "::", "HostPort": "18081"}],
            "9092/tcp": [{"HostIp": "127.0.0.1", "HostPort": "19092"}],
        }),
        ip: "172.20.0.5",
        pid: 4242,
    }
}

fn store(service: &'static str, port: &str, host_port: Option<&str>, ip: &'static str, pid: u32) -> Sample {
    let place = host_port.map(|port| json!([{"HostIp": "127.0.0.1", "HostPort": port}]));
    Sample { service, env: vec!["PATH=/bin"], ports: json!({ port: place }), ip, pid }
}

fn read(samples: &[Value]) -> Vec<Container> {
    docker::read(&json!(samples).to_string()).unwrap()
}

fn whole() -> Vec<Value> {
    let scheduler = Sample {
        service: "scheduler-2",
        env: vec!["MUSTER_INSTANCE_ID=scheduler-2", "MUSTER_ADMIN_ADDR=0.0.0.0:9000"],
        ports: json!({"9000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "19190"}]}),
        ip: "172.20.0.6",
        pid: 77,
    };
    vec![
        gateway().json(),
        scheduler.json(),
        store("redis", "6379/tcp", Some("16379"), "172.20.0.2", 11).json(),
        store("nats", "4222/tcp", None, "172.20.0.3", 12).json(),
    ]
}

#[test]
fn a_project_becomes_a_state_file() {
    let Found { stack, left_out } = describe(&read(&whole()), None, None).unwrap();
    assert_eq!(left_out, Vec::<String>::new());
    assert_eq!((stack.kind.as_deref(), stack.project.as_deref()), (Some("compose"), Some("demo")));
    assert_eq!(stack.api_key, "new-key");
    assert_eq!(stack.redis_url, "redis://:pa%3Dss@127.0.0.1:16379");
    assert_eq!(stack.nats_url, "nats://me:pw@172.20.0.3:4222", "not published, so by the container's own address");
    let by_name = |name: &str| stack.processes.iter().find(|p| p.name == name).unwrap().clone();
    let gateway = by_name("gateway-1");
    assert_eq!((gateway.service.as_str(), gateway.pid), ("gateway", 4242));
    assert_eq!(gateway.http.as_deref(), Some("http://127.0.0.1:18081"));
    assert_eq!(gateway.admin.as_deref(), Some("http://127.0.0.1:19092"));
    assert_eq!(gateway.container.as_deref(), Some("demo_gateway_1"));
    let scheduler = by_name("scheduler-2");
    assert_eq!((scheduler.service.as_str(), scheduler.http), ("scheduler", None));
    assert_eq!(scheduler.admin.as_deref(), Some("http://127.0.0.1:19190"), "where its setting says that it listens");
    assert_eq!(by_name("redis").addr.as_deref(), Some("127.0.0.1:16379"));
    assert_eq!(by_name("nats").monitor.as_deref(), Some("http://172.20.0.3:8222"));
}

#[test]
fn a_replica_that_is_down_is_named_and_left_out_and_a_finished_one_shot_is_not() {
    let mut samples = whole();
    samples[1] = Sample { pid: 0, ..store("scheduler-2", "9090/tcp", None, "", 0) }.json();
    let mut job = store("redis-create", "6379/tcp", None, "", 0).json();
    job["State"]["ExitCode"] = json!(0);
    job["HostConfig"]["RestartPolicy"]["Name"] = json!("no");
    samples.push(job);
    let Found { stack, left_out } = describe(&read(&samples), Some("demo"), None).unwrap();
    assert_eq!(left_out, ["scheduler-2 does not run (exited, exit code 137)"]);
    assert_eq!(stack.processes.len(), 3);
}

#[test]
fn a_store_or_gateway_that_does_not_run_is_an_error_with_its_name() {
    let said = |samples: &[Value]| describe(&read(samples), None, None).unwrap_err().to_string();
    let mut samples = whole();
    samples[2] = store("redis", "6379/tcp", None, "", 0).json();
    assert_eq!(said(&samples), "redis, which gateway-1 needs, does not run");
    samples[0] = Sample { pid: 0, ..gateway() }.json();
    assert_eq!(said(&samples), "no gateway of the compose project demo runs");
}

#[test]
fn a_cluster_keeps_those_nodes_that_run_and_a_store_elsewhere_stays_as_it_is() {
    let mut gateway = gateway();
    gateway.env = vec![
        "MUSTER_API_KEY=k",
        "REDIS_URL=redis://:pw@redis-1:6379,redis-2:6379,redis-3:6379",
        "NATS_URL=nats://nats.example.org:4222",
    ];
    let node = |n: &'static str, ip, pid| store(n, "6379/tcp", None, ip, pid).json();
    let mut samples =
        vec![gateway.json(), node("redis-1", "", 0), node("redis-2", "10.1.0.2", 5), node("redis-3", "10.1.0.3", 6)];
    let url = |samples: &[Value]| describe(&read(samples), None, None).unwrap().stack;
    assert_eq!(url(&samples).redis_url, "redis://:pw@10.1.0.2:6379,redis://:pw@10.1.0.3:6379");
    assert_eq!(url(&samples).nats_url, "nats://nats.example.org:4222");
    samples[3] = node("redis-3", "", 0);
    assert_eq!(url(&samples).redis_url, "redis+cluster://:pw@10.1.0.2:6379", "one that is left is a cluster still");
}

#[test]
fn the_project_is_found_or_the_choice_is_told() {
    let said = |samples: &[Value], project| describe(&read(samples), project, None).unwrap_err();
    assert_eq!(said(&whole(), Some("none")).to_string(), "there is no compose project none");
    assert_eq!(said(&[], None).to_string(), "no compose project has a gateway");
    let mut two = whole();
    let mut other = gateway().json();
    other["Config"]["Labels"]["com.docker.compose.project"] = json!("other");
    two.push(other);
    assert_eq!(said(&two, None).to_string(), "several compose projects have a gateway");
    assert!(describe(&read(&two), Some("demo"), None).is_ok());
}

#[test]
fn secrets_may_be_mounted_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("key"), "from-a-file\n").unwrap();
    let mut samples = whole();
    samples[0]["Config"]["Env"][1] = json!("MUSTER_API_KEY_FILE=/run/secrets/key");
    samples[0]["Mounts"] = json!([{"Type": "bind", "Source": dir.path(), "Destination": "/run/secrets"}]);
    assert_eq!(describe(&read(&samples), None, None).unwrap().stack.api_key, "from-a-file");
    samples[0]["Mounts"] = json!([]);
    let error = describe(&read(&samples), None, None).unwrap_err().to_string();
    assert_eq!(error, "gateway-1 has no MUSTER_API_KEY that can be read");
    assert_eq!(describe(&read(&samples), None, Some("given")).unwrap().stack.api_key, "given");
}
