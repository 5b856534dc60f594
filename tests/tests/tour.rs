//! The README's tour, as a newcomer takes it: `muster dev` with its output, and the workers shown there.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use muster_testkit::{bin, until};
use muster_tests::{Probe, Program, Stack, State};
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use reqwest::Method;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// `muster dev` in a folder, and its output.
struct Dev {
    program: Program,
    folder: PathBuf,
    log: PathBuf,
}

impl Dev {
    /// Starts it, and waits until it has printed how to use it.
    async fn start(folder: &Path, port: u16, log: &str) -> Dev {
        let log = folder.join(log);
        let folder = folder.join("data");
        let (port, dir) = (port.to_string(), folder.display().to_string());
        let args = ["dev", "--replicas", "2", "--port", &port, "--dir", &dir];
        let program = Program::start(bin("muster"), &args, &[], &log);
        let dev = Dev { program, folder, log };
        until(2 * SOON, "the stack to be up", async || {
            let said = dev.said();
            assert!(!said.contains("error:"), "{said}");
            said.contains("Ctrl-C stops everything").then_some(())
        })
        .await;
        dev
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn state(&self) -> State {
        serde_json::from_slice(&fs::read(self.folder.join("stack.json")).expect("a state file")).expect("a state")
    }

    /// The value after a label in the welcome message.
    fn fact(&self, word: &str) -> String {
        let said = self.said();
        let line = said.lines().find_map(|line| line.trim().strip_prefix(word));
        line.unwrap_or_else(|| panic!("no {word} in {said}")).trim().to_owned()
    }

    /// The first command, read as a shell would: the word after `flag` in single quotes.
    fn quoted(&self, flag: &str) -> Vec<String> {
        let said = self.said();
        let command =
            said.split_once("curl ").and_then(|(_, rest)| rest.split_once("\n\n")).expect("a first command").0;
        let opening = format!("{flag} '");
        let words = command.split(&opening).skip(1);
        words.map(|rest| rest.split_once('\'').expect("a closing quote").0.to_owned()).collect()
    }

    /// Runs the printed command, and returns the job in the answer.
    async fn paste(&self) -> Value {
        let (url, body) = (self.quoted("-sS").remove(0), self.quoted("-d").remove(0));
        let headers = self.quoted("-H");
        let headers: Vec<(&str, &str)> = headers.iter().map(|h| h.split_once(": ").expect("a header")).collect();
        assert_eq!(headers.last(), Some(&("Content-Type", "application/json")));
        let split = url.find("/api/").expect("a path");
        let gateway = Probe::new(url[..split].to_owned(), String::new()).with_key(None);
        let answer = gateway.send(Method::POST, &url[split..], &headers[..1], Some(body.into_bytes())).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status, 200, "it ended within the wait: {}", answer.text);
        answer.body
    }

    /// Ctrl-C: it exits successfully and leaves nothing running.
    async fn interrupt(mut self) {
        let state = self.state();
        assert!(state.processes.iter().any(|p| p.service == "worker"), "the demo worker: {state:?}");
        self.program.signal(Signal::SIGINT);
        let ended = self.program.exited(SOON).await;
        assert_eq!(ended.code(), Some(0), "{}", self.said());
        for process in &state.processes {
            assert_eq!(kill(Pid::from_raw(process.pid), None), Err(Errno::ESRCH), "{} is left", process.name);
        }
        assert!(!self.folder.join("stack.json").exists(), "the state file names nobody");
    }
}

/// A port that is free, together with the port of a second gateway.
fn port() -> u16 {
    let free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    // Below the kernel's range for connections, and above the ports that stacks take.
    (32_000..32_700).find(|port| free(*port) && free(port + 2)).expect("a free port")
}

#[tokio::test]
async fn what_dev_prints_works_and_after_a_restart_everything_is_still_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = port();
    let dev = Dev::start(folder.path(), port, "first.log").await;
    let (first, second) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 2));
    let key = dev.fact("API key");
    assert_eq!(dev.fact("Dashboard"), format!("{first}/"));
    assert_eq!(dev.fact("API  "), format!("{first}/api/v1  {second}/api/v1"));
    assert!(Path::new(&dev.fact("Logs")).join("gateway-1.log").exists());
    let http = |name: &str| dev.state().processes.into_iter().find(|p| p.name == name).and_then(|p| p.http);
    assert_eq!((http("gateway-1"), http("gateway-2")), (Some(first.clone()), Some(second.clone())));

    let job = dev.paste().await;
    assert_eq!((&job["state"], &job["result"]), (&json!("succeeded"), &json!({"hello": "world"})), "{job}");
    let said = dev.said();
    let command = said.lines().find(|line| line.contains(" job submit ")).expect("the same by the command line");
    let output = Command::new("sh").args(["-c", command.trim()]).output().expect("a shell");
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("succeeded"), "{output:?}");
    dev.interrupt().await;
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "nobody listens");

    let dev = Dev::start(folder.path(), port, "second.log").await;
    assert_eq!((dev.fact("API key"), dev.fact("Dashboard")), (key.clone(), format!("{first}/")));
    let id = job["id"].as_str().expect("an id");
    let kept = Probe::new(second, key).job(id).await;
    assert_eq!((&kept["state"], &kept["finished_at"]), (&job["state"], &job["finished_at"]), "{kept}");
    assert_eq!(dev.paste().await["state"], "succeeded");
    dev.interrupt().await;
}

#[tokio::test]
async fn the_worker_in_python_does_what_the_readme_says() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/examples/http_worker.py");
    let log = stack.folder().join("python.log");
    let (url, key) = (stack.process("gateway-1").http.expect("an address"), stack.state().api_key);
    let env = [("MUSTER_URL", url.as_str()), ("MUSTER_API_KEY", key.as_str())];
    // The path of python3 on this machine.
    let found = Command::new("sh").args(["-c", "command -v python3"]).output().expect("a shell");
    let python = String::from_utf8(found.stdout).expect("a path");
    assert!(!python.trim().is_empty(), "python3 is missing: run `tools/scripts/setup.sh test` first");
    let mut worker = Program::start(python.trim(), &[script], &env, &log);
    let said = || fs::read_to_string(&log).unwrap_or_default();

    let counted = gateway.submit(json!({"topic": "words", "payload": {"text": "one two three", "seconds": 1}})).await;
    let typo = gateway.submit(json!({"topic": "words", "payload": {"txt": "a typo"}})).await;
    let job = gateway.ended(&counted, SOON).await;
    assert_eq!((&job["state"], &job["result"]["words"]), (&json!("succeeded"), &json!(3)), "{job} {}", said());
    assert_eq!((&job["progress"]["percent"], &job["worker"]), (&json!(100), &job["result"]["by"]), "{job}");
    let job = gateway.ended(&typo, SOON).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("failed"), &json!(1)), "{job} {}", said());
    assert_eq!(job["error"]["retryable"], false, "{job}");

    let long = gateway.submit(json!({"topic": "words", "payload": {"text": "too long", "seconds": 600}})).await;
    gateway.reaches(&long, "running", SOON).await;
    assert_eq!(gateway.post(&format!("/jobs/{long}/cancel"), &json!({})).await.status, 200);
    until(SOON, "it to hear of the cancel", async || said().contains("told to stop").then_some(())).await;
    worker.signal(Signal::SIGTERM);
    assert_eq!(worker.exited(SOON).await.code(), Some(0), "{}", said());
}

#[tokio::test]
async fn the_worker_in_rust_does_what_the_readme_says() {
    let stack = Stack::start().await;
    let gateway = stack.gateway(1);
    let log = stack.folder().join("rust.log");
    let mut worker = Program::start(bin("examples/echo_worker"), &[&stack.state().nats_url], &[], &log);
    let id = gateway.submit(json!({"topic": "echo", "payload": {"n": 1}})).await;
    let job = gateway.ended(&id, SOON).await;
    assert_eq!(
        (&job["state"], &job["result"]),
        (&json!("succeeded"), &json!({"echo": {"n": 1}, "attempt": 1})),
        "{job}"
    );
    assert_eq!(job["progress"]["message"], "echoing", "{job}");
    worker.signal(Signal::SIGTERM);
    let ended = worker.exited(SOON).await;
    assert!(ended.success(), "{ended} {}", fs::read_to_string(&log).unwrap_or_default());
}
