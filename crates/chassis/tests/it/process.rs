//! The example service as a process: exit codes, signals, output.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// The example `plain`, which cargo builds along with the tests.
fn plain() -> Command {
    let mut path: PathBuf = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    let mut command = Command::new(path.join("plain"));
    command.env_clear().env("HOSTNAME", "host-9").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the example is built with the tests");
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn faults_in_the_settings_exit_with_2_and_are_all_on_stderr() {
    let (code, out, err) =
        output(plain().args(["--greting", "x", "--greeting=helo", "--admin-addr=nowhere"]).env("REDIS_POOL_SIZE", "0"));
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("muster-plain: 4 faults in the settings"), "{err}");
    assert!(err.contains("did you mean --greeting?") && err.contains("did you mean hello?"), "{err}");
}

#[test]
fn settings_can_be_checked_printed_and_explained_without_starting() {
    assert_eq!(output(plain().arg("--check-config")).0, 0);
    let (code, _, err) = output(plain().arg("--check-config").env("MUSTER_GRPC_ADDR", ":1"));
    assert_eq!((code, err.trim()), (0, "warning: MUSTER_GRPC_ADDR: not yet used, this has no effect: there is none"));
    let (code, out, _) = output(plain().arg("--print-config").env("MUSTER_API_KEY", "sesame"));
    assert_eq!(code, 0);
    assert!(out.contains("api_key = \"***\"") && out.contains("instance_id = \"host-9\"") && !out.contains("sesame"));
    let (code, out, _) = output(plain().args(["--help", "--nonsense"]));
    assert!(code == 0 && out.contains("--redis-url URL") && out.contains("--probe WORD"), "{out}");
    let (code, out, _) = output(plain().arg("--version"));
    assert!(code == 0 && out.starts_with("muster-plain 0."), "{out}");
}

#[test]
fn a_service_runs_until_a_signal_and_then_ends_in_stages() {
    for threads in ["1", "2"] {
        let odd = [("MUSTER_ODD", "1"), ("MUSTER_GRPC_ADDR", ":1")];
        let mut child = plain().args(["--runtime-threads", threads]).envs(odd).spawn().expect("the example is built");
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| {
            let line = line.unwrap();
            serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("not JSON: {line}"))
        });
        let odd = log.find(|line| line["event"] == "unknown_variable").expect("a warning");
        assert_eq!((&odd["setting"], &odd["level"]), (&"MUSTER_ODD".into(), &"WARN".into()));
        let unused = log.find(|line| line["event"] == "unused_setting").expect("a warning");
        assert_eq!((&unused["setting"], &unused["level"]), (&"MUSTER_GRPC_ADDR".into(), &"WARN".into()));
        let addr = log.find(|line| line["event"] == "listening").unwrap()["addr"].as_str().unwrap().to_owned();
        log.find(|line| line["event"] == "running").expect("it runs");

        assert!(get(&addr, "/readyz").starts_with("HTTP/1.1 200"));
        let loops = get(&addr, "/loops");
        assert!(loops.contains("\"name\":\"count\"") && loops.contains("\"state\":\"active\""), "{loops}");
        assert!(get(&addr, "/metrics").contains("muster_build_info{pod=\"host-9\""));

        let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let rest: Vec<Value> = log.collect();
        assert!(rest.iter().any(|line| line["event"] == "stop_stage" && line["stage"] == "loops"), "{rest:?}");
        assert!(rest.iter().all(|line| line["event"] != "task_late"), "{rest:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

/// Starts the example; returns it with its log.
fn spawned(args: &[&str]) -> (std::process::Child, impl Iterator<Item = Value> + use<>) {
    let mut child = plain().args(args).spawn().expect("the example is built with the tests");
    let log = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).expect("a log line is JSON"));
    (child, log)
}

/// Starts the example and reads its log up to `event`.
fn started(args: &[&str], event: &str) -> (std::process::Child, impl Iterator<Item = Value> + use<>) {
    let (child, mut log) = spawned(args);
    log.find(|line| line["event"] == event).unwrap_or_else(|| panic!("no {event} in the log"));
    (child, log)
}

fn signal(child: &std::process::Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_during_the_set_up_ends_the_process_as_well() {
    let (mut child, log) = started(&["--hang", "setup"], "listening");
    signal(&child, "-INT");
    assert!(log.into_iter().any(|line| line["event"] == "stopped"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_signal_ends_a_hanging_stop_at_once() {
    let (mut child, mut log) = started(&["--hang", "stop"], "running");
    signal(&child, "-TERM");
    log.find(|line| line["event"] == "stop_requested").unwrap();
    let began = std::time::Instant::now();
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn a_service_that_cannot_listen_says_where_and_exits_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let (code, _, err) = output(plain().args(["--admin-addr", &addr]));
    assert_eq!(code, 1);
    assert!(err.contains(&format!("cannot listen on {addr}")), "{err}");
}

/// The output of `--probe` for a replica with this admin address, with the exit code.
fn probe(word: &str, admin: &str) -> (i32, String) {
    let (code, out, err) = output(plain().args(["--probe", word, "--admin-addr", admin]));
    (code, out + &err)
}

/// The same for a replica that answers. A probe gives up after two seconds, in which a busy machine may stand still.
fn answered_probe(word: &str, admin: &str) -> (i32, String) {
    let mut said = probe(word, admin);
    for _ in 0..4 {
        if said.1.contains("no answer within 2 s") {
            said = probe(word, admin);
        }
    }
    said
}

#[test]
fn a_probe_asks_the_replica_with_the_same_settings() {
    // Nothing listens on this port.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, said) = probe("livez", &free.to_string());
    assert_eq!(code, 1, "{said}");
    assert!(said.starts_with("muster-plain: livez: no answer from http://127.0.0.1:"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");

    // The replica listens on all addresses, and the probe asks it on loopback.
    let everywhere = format!("0.0.0.0:{}", free.port());
    let (mut child, log) = started(&["--admin-addr", &everywhere], "running");
    assert_eq!(answered_probe("livez", &everywhere), (0, "muster-plain: livez: alive\n".to_owned()));
    assert_eq!(answered_probe("readyz", &everywhere), (0, "muster-plain: readyz: ready\n".to_owned()));
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(log);
}

#[test]
fn a_probe_of_a_replica_that_is_not_ready_says_which_part() {
    let (mut child, mut log) = spawned(&["--hang", "setup"]);
    let listening = log.find(|line| line["event"] == "listening").expect("it listens");
    let addr = listening["addr"].as_str().unwrap().to_owned();
    assert_eq!(answered_probe("livez", &addr).0, 0);
    let (code, said) = answered_probe("readyz", &addr);
    let expected = format!("muster-plain: readyz: unready: loops (starting) (http://{addr}/readyz answered 503)\n");
    assert_eq!((code, said), (1, expected));
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_probe_of_what_does_not_answer_ends_after_two_seconds() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let began = std::time::Instant::now();
    let (code, said) = probe("readyz", &silent.local_addr().unwrap().to_string());
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("no answer within 2 s"), "{said}");
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn a_probe_of_something_else_exits_with_2() {
    let (code, said) = probe("ready", ":1");
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--probe: `ready` is not one of livez, readyz; did you mean readyz?"), "{said}");
    let (code, _, err) = output(plain().arg("--probe"));
    assert!(code == 2 && err.contains("--probe: needs a value"), "{err}");
    let (code, said) = probe("livez", "127.0.0.1:0");
    assert!(code == 1 && said.contains("port 0"), "{said}");
}

fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
