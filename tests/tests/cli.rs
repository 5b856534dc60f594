//! The command line as users see it: commands, their output and exit codes, and workers that need no code, over NATS
//! and over HTTP.

#[path = "cli/runs.rs"]
mod runs;
#[path = "cli/watch.rs"]
mod watch;
#[path = "cli/workers.rs"]
mod workers;

use std::{
    collections::BTreeSet,
    fs,
    process::{Output, Stdio},
    time::Duration,
};

use muster_testkit::{bin, until};
use muster_tests::{Options, Stack, WorkerProcess};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, process::Command};

const SOON: Duration = Duration::from_secs(60);
const NOBODY: &str = "0198c0de-0000-7000-8000-000000000000";

/// The output of a command, and its exit code.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    /// Checks the exit code; shows the whole output if it differs.
    fn ends(self, code: i32) -> Said {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    fn id(&self) -> String {
        self.json()["id"].as_str().expect("an id").to_owned()
    }
}

/// A shell in some folder.
struct Shell {
    folder: TempDir,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Shell {
    /// A shell without any stack.
    fn bare() -> Shell {
        Shell { folder: tempfile::tempdir().expect("a folder"), args: Vec::new(), env: Vec::new() }
    }

    /// A shell that names the stack by its state file with every command.
    fn of(stack: &Stack) -> Shell {
        let file = stack.folder().join("stack.json");
        Shell { args: vec!["--state-file".into(), file.display().to_string()], ..Shell::bare() }
    }

    async fn fed(&self, args: &[&str], input: &str) -> Said {
        let mut command = Command::new(bin("muster"));
        for name in ["MUSTER_URL", "MUSTER_API_KEY", "MUSTER_TENANT", "NATS_URL", "MUSTER_LOG"] {
            command.env_remove(name);
        }
        command.args(args).args(&self.args).envs(self.env.iter().cloned()).current_dir(self.folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("muster can be started");
        let mut stdin = child.stdin.take().expect("a pipe");
        // A command that does not read its input closes it.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let Output { status, stdout, stderr } = child.wait_with_output().await.expect("it ends");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Said { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }

    async fn muster(&self, line: &str) -> Said {
        self.fed(&line.split(' ').collect::<Vec<_>>(), "").await
    }
}

#[tokio::test]
async fn jobs_are_submitted_followed_and_steered() {
    let stack = Stack::start().await;
    let shell = Shell::of(&stack);
    let _echo = WorkerProcess::start(&stack, &["--topic", "t", "--builtin", "echo", "--id", "w1"]);
    let _fail = WorkerProcess::start(&stack, &["--topic", "f", "--builtin", "fail"]);

    let payload = r#"{"z":1.50,"big":123456789012345678901234567890}"#;
    let args =
        ["job", "submit", "--topic", "t", "--payload", payload, "--label", "a=b", "--priority", "high", "--wait"];
    let done = shell.fed(&[&args[..], &["-o", "json"]].concat(), "").await.ends(0);
    let id = done.id();
    assert!(done.out.contains(&format!(r#""result":{payload}"#)), "to the byte: {}", done.out);
    assert_eq!((done.json()["state"].as_str(), done.json()["priority"].as_str()), (Some("succeeded"), Some("high")));
    let table = shell.fed(&args, "").await.ends(0).out;
    assert!(table.contains("succeeded") && table.contains("a=b") && serde_json::from_str::<Value>(&table).is_err());

    assert_eq!(shell.muster(&format!("job get {id} -o json")).await.ends(0).json()["worker"], "w1");
    assert!(shell.muster(&format!("job get {id}")).await.ends(0).out.contains(&id));
    assert!(shell.muster(&format!("job wait {id}")).await.ends(0).out.contains("succeeded"));
    let story = shell.muster(&format!("job history {id}")).await.ends(0).out;
    for word in ["pending", "dispatched", "running", "succeeded", "w1"] {
        assert!(story.contains(word), "{word} is not in {story}");
    }
    let story = shell.muster(&format!("job history {id} -o json")).await.ends(0).json();
    assert_eq!(story["transitions"].as_array().map(Vec::len), Some(4));
    let list =
        shell.muster("job list --topic t --label a=b --state succeeded --worker w1 -o json").await.ends(0).json();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(2));
    let one = shell.muster("job list --limit 1 -o json").await.ends(0).json();
    assert_eq!((one["items"].as_array().map(Vec::len), one["next_cursor"].is_string()), (Some(1), true));
    assert!(shell.muster("job list").await.ends(0).out.contains(&id));

    // A job that ends badly: exit code 4 for a command that waited for it, 0 for one that only reads it.
    let bad = r#"{"code":"c1","message":"no good","retryable":false}"#;
    let args = ["job", "submit", "--topic", "f", "--payload", bad, "--wait", "-o", "json"];
    let failed = shell.fed(&args, "").await.ends(4);
    assert!(failed.err.contains("failed") && failed.err.contains("no good"), "{failed:?}");
    let old = failed.id();
    shell.muster(&format!("job wait {old}")).await.ends(4);
    assert!(shell.muster(&format!("job get {old}")).await.ends(0).out.contains("c1: no good"));
    let list = shell.muster("job list --error-code c1 --state failed,timed_out -o json").await.ends(0).json();
    assert_eq!(list["items"][0]["id"], json!(old));
    let args = ["job", "retry", old.as_str(), "--topic", "t", "--payload", "[1]", "-o", "json"];
    let new = shell.fed(&args, "").await.ends(0);
    assert_eq!(new.json()["retry_of"], json!(old));
    assert_eq!(shell.fed(&args, "").await.ends(0).id(), new.id(), "a second time is the same");
    assert_eq!(shell.muster(&format!("job wait {} -o json", new.id())).await.ends(0).json()["result"], json!([1]));
    shell.muster(&format!("job retry {old} --topic f")).await.ends(1);

    let later = shell.muster("job submit --topic t --delay 1h --idempotency-key k -o json").await.ends(0);
    let again = shell.muster("job submit --topic t --delay 1h --idempotency-key k -o json").await.ends(0);
    assert_eq!((later.json()["state"].as_str().is_some(), later.id()), (true, again.id()));
    shell.muster("job submit --topic t --idempotency-key k").await.ends(1);
    let waited = shell.muster(&format!("job wait {} --timeout 300ms", later.id())).await.ends(1);
    assert!(waited.err.contains("still"), "{waited:?}");
    shell.muster(&format!("job retry {}", later.id())).await.ends(1);
    for _ in 0..2 {
        let cancelled = shell.muster(&format!("job cancel {} --reason over -o json", later.id())).await.ends(0);
        assert_eq!(cancelled.json()["state"], "cancelled");
    }
    shell.muster(&format!("job wait {}", later.id())).await.ends(4);
    shell.muster(&format!("job cancel {id}")).await.ends(1);
    shell.muster(&format!("job delete {id}")).await.ends(0);
    shell.muster(&format!("job get {id}")).await.ends(3);

    // Payloads from a file and from standard input.
    fs::write(shell.folder.path().join("p.json"), "{\"from\": \"file\"}\n").unwrap();
    let said = shell.muster("job submit --topic t --payload @p.json --wait -o json").await.ends(0);
    assert!(said.out.contains(r#""result":{"from": "file"}"#), "{said:?}");
    let args = ["job", "submit", "--topic", "t", "--payload", "-", "--wait", "-o", "json"];
    assert_eq!(shell.fed(&args, "\"typed\"").await.ends(0).json()["result"], "typed");
}

#[tokio::test]
async fn exit_codes_and_hints_tell_what_went_wrong() {
    let stack = Stack::start().await;
    let shell = Shell::of(&stack);
    for what in ["get", "history", "wait", "cancel", "retry", "delete"] {
        let said = shell.muster(&format!("job {what} {NOBODY}")).await.ends(3);
        assert!(said.err.starts_with("error: ") && said.out.is_empty(), "{said:?}");
        assert!(said.err.contains("hint:  `muster job list`") && said.err.contains("--tenant"), "{said:?}");
        shell.muster(&format!("job {what} nonsense")).await.ends(2);
    }
    for line in [
        "",
        "job",
        "job submit",
        "jobs list",
        "job submit --topic t --payload nonsense",
        "job submit --topic t --priority urgent",
        "job submit --topic t --delay soon",
        "job list -o yaml",
        "worker run --topic t",
        "worker run --topic T --builtin echo",
        "worker run --topic t --builtin drill",
        "worker run --topic t --builtin echo --exec cat",
    ] {
        shell.muster(line).await.ends(2);
    }
    let said = shell.muster("loops bogus").await.ends(3);
    assert!(said.err.contains("bogus"), "{said:?}");
    let said = shell.muster("job submit --topic T").await.ends(1);
    assert_eq!(said.err.matches("/topic").count(), 1, "one fault is told once: {said:?}");
    assert!(said.err.contains("hint:  docs/errors/invalid_request.md"), "{said:?}");
    let said = shell.muster("job list --api-key nonsense").await.ends(1);
    assert!(said.err.contains("key"), "{said:?}");
    let said = Shell::bare().muster("job list").await.ends(1);
    assert!(said.err.contains("hint:") && said.err.contains("muster dev"), "{said:?}");
    Shell::bare().muster("job list --state-file nowhere.json").await.ends(1);
    Shell::bare().muster("status --url http://127.0.0.1:9 --api-key abcdefgh").await.ends(1);
    shell.muster("--help").await.ends(0);
    shell.muster("--version").await.ends(0);
}

#[tokio::test]
async fn keys_status_and_every_way_to_find_the_stack() {
    let stack = Stack::with(Options::two()).await;
    let shell = Shell::of(&stack);
    let made = shell.muster("key create ci --scope read,submit --tenant acme -o json").await.ends(0).json();
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert_eq!((made["tenant"].as_str(), &made["scopes"]), (Some("acme"), &json!(["read", "submit"])));
    shell.muster(&format!("job submit --topic t --delay 1h --api-key {key}")).await.ends(0);
    let theirs = shell.muster("job list --tenant acme -o json").await.ends(0).json();
    assert_eq!(
        (theirs["items"].as_array().map(Vec::len), theirs["items"][0]["tenant"].as_str()),
        (Some(1), Some("acme"))
    );
    assert_eq!(shell.muster("job list -o json").await.ends(0).json()["items"], json!([]));
    let refused = shell.muster(&format!("key list --api-key {key}")).await.ends(1);
    assert!(refused.err.contains("admin"), "{refused:?}");
    for line in ["key list", "key list --tenant acme", "key list --tenant acme -o json"] {
        let said = shell.muster(line).await.ends(0);
        assert!(said.out.contains("ci") && said.out.contains(id) && !said.out.contains(key), "{said:?}");
    }
    let shown = shell.muster("key create people --scope read --topic mail.*").await.ends(0);
    assert!(shown.out.contains("mst_") && shown.err.contains("not shown again"), "{shown:?}");
    shell.muster(&format!("key delete {id} --tenant default")).await.ends(3);
    shell.muster(&format!("key delete {id}")).await.ends(0);
    let said = shell.muster(&format!("key delete {id} --tenant acme")).await.ends(3);
    assert!(said.err.contains("hint:  `muster key list`"), "{said:?}");
    until(SOON, "the key to be refused", async || {
        (shell.muster(&format!("job list --api-key {key}")).await.code == 1).then_some(())
    })
    .await;

    let status = shell.muster("status -o json").await.ends(0).json();
    let names: Vec<&str> =
        status["gateways"].as_array().unwrap().iter().map(|g| g["answer"]["instance"].as_str().unwrap()).collect();
    assert_eq!(names, ["gateway-1", "gateway-2"]);
    assert!(status["processes"].as_array().is_some_and(|p| p.len() >= 4));
    let table = shell.muster("status").await.ends(0).out;
    assert!(table.contains("gateway-2") && table.contains("scheduler-1") && table.contains("up"), "{table}");

    // The stack is found by the state file below the current folder, and by the environment.
    let here = Shell::bare();
    std::os::unix::fs::symlink(stack.folder(), here.folder.path().join(".muster")).unwrap();
    here.muster("job submit --topic t --delay 1h").await.ends(0);
    let mut told = Shell::bare();
    told.env = vec![
        ("MUSTER_URL", stack.process("gateway-2").http.unwrap()),
        ("MUSTER_API_KEY", stack.state().api_key),
        ("MUSTER_TENANT", "acme".into()),
    ];
    assert_eq!(told.muster("job list -o json").await.ends(0).json()["items"].as_array().map(Vec::len), Some(1));
    // One gateway is gone: the other answers.
    let old = stack.kill9("gateway-1");
    shell.muster("job list").await.ends(0);
    stack.replaced("gateway-1", old).await;
}

#[tokio::test]
async fn many_jobs_come_from_a_file() {
    let stack = Stack::start().await;
    let shell = Shell::of(&stack);
    let line = |n: usize| format!("{{\"topic\":\"bulk\",\"delay_ms\":3600000,\"payload\":{n}}}\n");
    let file: String = (0..1200).map(|n| if n % 100 == 0 { format!("\n  {}", line(n)) } else { line(n) }).collect();
    fs::write(shell.folder.path().join("jobs.ndjson"), file).unwrap();
    let said = shell.muster("job submit --file jobs.ndjson").await.ends(0);
    let ids: BTreeSet<&str> = said.out.lines().collect();
    assert_eq!(ids.len(), 1200);
    assert!(said.err.contains("1200 jobs accepted"), "{}", said.err);
    let list = shell.muster("job list --topic bulk --limit 2000 -o json").await.ends(0).json();
    let listed: BTreeSet<&str> =
        list["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(listed, ids);

    // If one line is not a job, nothing is sent. If one job is refused, the others are accepted.
    let said = shell.fed(&["job", "submit", "--file", "-"], &format!("{}nonsense\n", line(1))).await.ends(2);
    assert!(said.err.contains("line 2"), "{said:?}");
    let mixed = format!(
        "{}{{\"topic\":\"NO\"}}\n{{\"topic\":\"bulk\",\"delay_ms\":3600000,\"idempotency_key\":\"k\"}}\n",
        line(1)
    );
    for _ in 0..2 {
        let said = shell.fed(&["job", "submit", "--file", "-", "-o", "json"], &mixed).await.ends(1);
        assert!(said.err.contains("line 2: ") && said.err.contains("1 of 3"), "{said:?}");
        assert_eq!(said.out.lines().filter(|l| serde_json::from_str::<Value>(l).is_ok()).count(), 2);
    }
    let list = shell.muster("job list --topic bulk --limit 2000 -o json").await.ends(0).json();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1203), "two of the first file's kind, one under the key");
    shell.fed(&["job", "submit", "--file", "-"], "\n\n").await.ends(2);
    shell.muster("job submit --file nowhere.ndjson").await.ends(1);
}
