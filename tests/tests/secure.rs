//! Both stores with TLS and passwords, configured by URL alone; and no password in any log.

use std::{fs, path::Path, process::Command, time::Duration};

use muster_testkit::{bin, free_port, until};
use muster_tests::{Probe, Program};
use serde_json::json;

const SOON: Duration = Duration::from_secs(90);

fn openssl(dir: &Path, args: &str) {
    let done = Command::new("openssl").current_dir(dir).args(args.split_whitespace()).output().expect("openssl runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Creates a certificate authority, and a certificate for the loopback address.
fn certificates(dir: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=test-authority"));
    openssl(dir, &format!("req {key} -keyout server.key -out server.csr -subj /CN=127.0.0.1"));
    fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        dir,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
    );
}

#[tokio::test]
async fn both_stores_work_behind_tls_and_passwords_given_by_url() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    certificates(dir);
    let text = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let (redis, nats, http, admin, other) = (free_port(), free_port(), free_port(), free_port(), free_port());

    let (port, data) = (redis.to_string(), text(""));
    let (cert, key, ca) = (text("server.pem"), text("server.key"), text("ca.pem"));
    let tls = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"];
    let args =
        [&["--port", "0", "--tls-port", &port, "--requirepass", "redis-s3cret", "--dir", &data][..], &tls].concat();
    let _redis = Program::start("redis-server", &args, &[], &dir.join("redis.log"));

    let config = format!(
        "listen: 127.0.0.1:{nats}\njetstream {{ store_dir: {:?} }}\ntls {{ cert_file: {cert:?}, key_file: {key:?} }}\n\
         authorization {{ user: muster, password: nats-s3cret }}\n",
        text("jetstream")
    );
    fs::write(dir.join("nats.conf"), config).unwrap();
    let _nats = Program::start("nats-server", &["-c", &text("nats.conf")], &[], &dir.join("nats.log"));

    let (redis_url, nats_url) =
        (format!("rediss://:redis-s3cret@127.0.0.1:{redis}"), format!("tls://muster:nats-s3cret@127.0.0.1:{nats}"));
    let (http_addr, admin_addr, other_addr) =
        (format!("127.0.0.1:{http}"), format!("127.0.0.1:{admin}"), format!("127.0.0.1:{other}"));
    let stores =
        [("REDIS_URL", redis_url.as_str()), ("NATS_URL", &nats_url), ("SSL_CERT_FILE", &ca), ("MUSTER_LOG", "debug")];
    let gateway = [
        ("MUSTER_HTTP_ADDR", http_addr.as_str()),
        ("MUSTER_ADMIN_ADDR", &admin_addr),
        ("MUSTER_API_KEY", "api-s3cret"),
    ];
    let gateway = [&stores[..], &gateway].concat();
    let _gateway = Program::start(bin("muster-gateway"), &[], &gateway, &dir.join("gateway.log"));
    let scheduler = [&stores[..], &[("MUSTER_ADMIN_ADDR", other_addr.as_str())]].concat();
    let _scheduler = Program::start(bin("muster-scheduler"), &[], &scheduler, &dir.join("scheduler.log"));

    let probe = Probe::new(format!("http://{http_addr}"), "api-s3cret".into());
    let logs =
        || ["gateway.log", "scheduler.log"].map(|log| fs::read_to_string(dir.join(log)).unwrap_or_default()).concat();
    until(SOON, "both services to reach both stores", async || {
        let ready = probe.send(reqwest::Method::GET, "/readyz", &[], None).await.ok()?;
        (ready.body["status"] == "ready").then_some(())
    })
    .await;
    let id = probe.submit(json!({"topic": "sealed", "payload": 7})).await;
    let ask = json!({"request_id": "one", "worker_id": "w1", "topics": ["sealed"], "wait_ms": 30000});
    let leased = probe.post("/worker/lease", &ask).await;
    assert_eq!(leased.body["items"][0]["job_id"], json!(id), "{}", leased.text);
    let done = json!({"items": [{"job_id": id, "fence": leased.body["items"][0]["fence"], "result": 8}]});
    assert_eq!(probe.post("/worker/complete", &done).await.body["items"][0]["status"], "ok");
    assert_eq!(probe.ended(&id, SOON).await["state"], "succeeded");
    assert!(!logs().contains("s3cret"), "a secret is in a log");
}
