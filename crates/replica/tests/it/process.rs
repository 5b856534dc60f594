//! The example service `tally` as a process.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use muster_testkit::{NatsServer, RedisServer, until};
use serde_json::Value;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A running replica, killed on drop.
pub(crate) struct Replica {
    child: Child,
    log: Arc<Mutex<Vec<Value>>>,
    admin: String,
}

impl Replica {
    /// Starts a replica, and waits until it is ready.
    pub(crate) async fn start(name: &str, redis: &RedisServer, nats: &NatsServer) -> Replica {
        let mut child = program()
            .env("REDIS_URL", redis.url())
            .env("NATS_URL", nats.url())
            .env("MUSTER_INSTANCE_ID", name)
            .spawn()
            .expect("the example is built with the tests");
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = log.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                kept.lock().unwrap().push(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        let mut replica = Replica { child, log, admin: String::new() };
        let told = async || replica.log().into_iter().find(|line| line["event"] == "listening");
        replica.admin = until(SOON, "the admin port", told).await["addr"].as_str().unwrap().to_owned();
        until(SOON, "readiness", async || replica.get("/readyz").filter(|answer| answer["status"] == "ready")).await;
        replica
    }

    /// The log lines so far.
    pub(crate) fn log(&self) -> Vec<Value> {
        self.log.lock().unwrap().clone()
    }

    /// The answer of the replica's admin port.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(&self.admin).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The loop's row of `/loops`.
    pub(crate) fn row(&self, name: &str) -> Option<Value> {
        self.get("/loops")?.as_array()?.iter().find(|row| row["name"] == name).cloned()
    }

    pub(crate) fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill is there").success());
    }

    /// Waits for the process to end; returns the exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let child = &mut self.child;
        until(SOON, "the end of the process", async || child.try_wait().expect("it is ours")).await.code()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The example, which cargo builds along with the tests.
pub(crate) fn program() -> Command {
    let mut path: PathBuf = std::env::current_exe().expect("this program has a path");
    path.pop();
    path.set_file_name("examples");
    let mut command = Command::new(path.join("tally"));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
