//! Runs a shell command per job. The payload goes to its standard input, its standard output is the result, its exit
//! code says how it ended. It has a process group of its own: when the attempt has to stop, the whole group gets
//! SIGTERM and, if that does not help, SIGKILL. The attempt is over when no process of the group runs any more.

mod group;

use std::{
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use bytes::Bytes;
use muster_sdk::{HandlerError, JobResult, RESULT_PREVIEW};
use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::{Instant, sleep_until},
};

use self::group::{Group, KILLED};

use super::task::Task;
use crate::{commands::dev, programs};

/// The exit code of a failure that a further attempt would not change (EX_DATAERR).
const PERMANENT: i32 = 65;
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// The same when the worker leaves. The SDK gives its handlers less time then.
const LEAVING_GRACE: Duration = Duration::from_secs(1);
/// How long a process that the command left behind may hold its output after the command has ended.
const LINGER: Duration = Duration::from_secs(1);
/// The same once the attempt has to stop.
const STOPPED_LINGER: Duration = Duration::from_millis(200);
/// The most bytes of output that are kept whole, to see whether they are JSON. Of a larger output only the beginning
/// and the size are used: a result of more than 256 KiB is cut to a preview anyway.
const MAX_OUTPUT: usize = 16 * 1024 * 1024;
/// The most bytes of an error message.
const MAX_ERROR: usize = 4_000;

// A worker that leaves gives an attempt back when its handler ends or is aborted. The group must be dead before.
const _: () = {
    let longest = LEAVING_GRACE.as_millis() + STOPPED_LINGER.as_millis() + KILLED.as_millis();
    assert!(longest < muster_sdk::LEAVE_GRACE.as_millis());
};

/// The command as given.
pub(super) struct Exec {
    command: String,
    setpriv: Option<PathBuf>,
}

impl Exec {
    pub(super) fn new(command: &str) -> Exec {
        Exec { command: command.to_owned(), setpriv: programs::find("setpriv") }
    }

    /// Runs the command for one job.
    pub(super) async fn run(&self, task: Task) -> Result<JobResult, HandlerError> {
        let cannot = |e: io::Error| HandlerError::retryable(format_args!("cannot run the command: {e}"));
        let mut command: Command = dev::bound_to_parent(self.setpriv.as_deref(), "/bin/sh".as_ref());
        let mut child = command
            .args(["-c", &self.command])
            .env("MUSTER_JOB_ID", &task.job_id)
            .env("MUSTER_ATTEMPT", task.attempt.to_string())
            .env("MUSTER_FENCE", task.fence.to_string())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let mut group = Group::of(child.id());
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut output, mut error) = (Output::new(MAX_OUTPUT), Vec::new());
        let mut told_at = None;

        let status = {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // A command need not read its input.
                    let _ = stdin.write_all(&task.payload).await;
                }
            };
            let pipes = async {
                tokio::join!(feed, each_piece(stdout, |piece| output.add(piece)), keep_tail(stderr, &mut error))
            };
            let mut pipes = std::pin::pin!(pipes);
            let mut ended: Option<ExitStatus> = None;
            let mut drained = false;
            let mut limit = Instant::now();
            loop {
                tokio::select! {
                    status = child.wait(), if ended.is_none() => {
                        ended = Some(status.map_err(cannot)?);
                        limit = Instant::now() + if told_at.is_none() { LINGER } else { STOPPED_LINGER };
                    }
                    _ = &mut pipes, if !drained => drained = true,
                    () = task.stop.cancelled(), if told_at.is_none() => {
                        group.signal(Signal::SIGTERM);
                        told_at = Some(Instant::now());
                        limit = match ended {
                            None => Instant::now() + grace(&task),
                            Some(_) => limit.min(Instant::now() + STOPPED_LINGER),
                        };
                    }
                    () = sleep_until(limit), if ended.is_some() || told_at.is_some() => match ended {
                        Some(status) => break status,
                        None => {
                            group.signal(Signal::SIGKILL);
                            limit = Instant::now() + GRACE;
                        }
                    },
                }
                if let (Some(status), true) = (ended, drained) {
                    break status;
                }
            }
        };
        let told_at = told_at.unwrap_or_else(Instant::now);
        group.end(|| told_at + grace(&task)).await;
        if task.stop.is_cancelled() && !status.success() {
            return Err(HandlerError::retryable("told to stop"));
        }
        judge(status, output, &error)
    }
}

/// The time between SIGTERM and SIGKILL for this attempt, as things stand.
fn grace(task: &Task) -> Duration {
    if (task.leaves)() { LEAVING_GRACE } else { GRACE }
}

/// The result of the job, from the exit of the command.
fn judge(status: ExitStatus, output: Output, error: &[u8]) -> Result<JobResult, HandlerError> {
    if status.success() {
        return Ok(output.into_result());
    }
    let said = String::from_utf8_lossy(error);
    let said = said.trim();
    let message = if said.is_empty() { status.to_string() } else { said.to_owned() };
    Err(match status.code() {
        Some(PERMANENT) => HandlerError::permanent(message),
        _ => HandlerError::retryable(message),
    })
}

/// JSON if it parses, otherwise a string without its trailing line breaks, as a shell would read it.
fn result(output: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(output);
    let json = text.trim();
    if serde_json::from_str::<&serde_json::value::RawValue>(json).is_ok() {
        return Bytes::copy_from_slice(json.as_bytes());
    }
    Bytes::from(serde_json::Value::from(text.trim_end_matches(['\n', '\r'])).to_string())
}

/// Reads to the end and keeps the last bytes.
async fn keep_tail(pipe: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>) {
    each_piece(pipe, |piece| {
        kept.extend_from_slice(piece);
        if kept.len() > MAX_ERROR {
            kept.drain(..kept.len() - MAX_ERROR);
        }
    })
    .await;
}

async fn each_piece(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else {
        return;
    };
    let mut piece = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = pipe.read(&mut piece).await {
        take(&piece[..n]);
    }
}

/// The command's output: complete, or its beginning and its size.
struct Output {
    head: Vec<u8>,
    most: usize,
    over: Option<TextSize>,
}

impl Output {
    fn new(most: usize) -> Output {
        Output { head: Vec::new(), most, over: None }
    }

    fn add(&mut self, piece: &[u8]) {
        if self.over.is_none() && self.head.len() + piece.len() <= self.most {
            self.head.extend_from_slice(piece);
            return;
        }
        let size = self.over.get_or_insert_with(|| {
            let mut size = TextSize::default();
            size.add(&self.head);
            self.head.extend_from_slice(&piece[..piece.len().min(ENOUGH)]);
            self.head.truncate(ENOUGH);
            self.head.shrink_to_fit();
            size
        });
        size.add(piece);
    }

    fn into_result(self) -> JobResult {
        let Some(size) = self.over else { return JobResult::Whole(result(&self.head)) };
        // Output that is too large to be parsed is text, whatever it looks like. Its last character may have been
        // cut, but far behind the part that is shown.
        let text = serde_json::Value::from(String::from_utf8_lossy(&self.head)).to_string();
        let end = (0..=RESULT_PREVIEW.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        JobResult::Cut { size: size.quoted(), preview: text[..end.unwrap_or(0)].to_owned() }
    }
}

/// The bytes of output that are enough for a preview.
const ENOUGH: usize = RESULT_PREVIEW + 16;

/// The size of a text as a JSON string, counted piece by piece.
#[derive(Default)]
struct TextSize {
    bytes: u64,
    /// The number of line breaks at the end so far.
    breaks: u64,
    /// The beginning of a character whose rest is in the next piece.
    rest: Vec<u8>,
}

impl TextSize {
    fn add(&mut self, piece: &[u8]) {
        let mut whole = std::mem::take(&mut self.rest);
        whole.extend_from_slice(piece);
        let mut left = whole.as_slice();
        loop {
            match std::str::from_utf8(left) {
                Ok(text) => return self.text(text),
                Err(fault) => {
                    let (good, bad) = left.split_at(fault.valid_up_to());
                    self.text(&String::from_utf8_lossy(good));
                    match fault.error_len() {
                        None => return self.rest = bad.to_vec(),
                        Some(n) => {
                            self.unreadable();
                            left = &bad[n..];
                        }
                    }
                }
            }
        }
    }

    fn text(&mut self, text: &str) {
        let escaped = |byte: u8| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0..=0x1f => 6,
            _ => 1,
        };
        self.bytes += text.bytes().map(escaped).sum::<u64>();
        let before = text.trim_end_matches(['\n', '\r']);
        let breaks = (text.len() - before.len()) as u64;
        self.breaks = if before.is_empty() { self.breaks + breaks } else { breaks };
    }

    /// Counts the replacement for bytes that are not text.
    fn unreadable(&mut self) {
        self.bytes += char::REPLACEMENT_CHARACTER.len_utf8() as u64;
        self.breaks = 0;
    }

    /// The size with quotes, and without trailing line breaks.
    fn quoted(mut self) -> u64 {
        if !self.rest.is_empty() {
            self.unreadable();
        }
        self.bytes - 2 * self.breaks + 2
    }
}

#[cfg(test)]
mod tests {
    use muster_sdk::LEAVE_GRACE;
    use tokio::time::sleep;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn task(payload: &'static str) -> Task {
        let payload = Bytes::from_static(payload.as_bytes());
        Task {
            job_id: "id-1".into(),
            attempt: 3,
            fence: 77,
            payload,
            stop: CancellationToken::new(),
            leaves: Box::new(|| false),
        }
    }

    async fn run(command: &str, payload: &'static str) -> Result<Bytes, HandlerError> {
        match Exec::new(command).run(task(payload)).await? {
            JobResult::Whole(json) => Ok(json),
            cut => panic!("{cut:?}"),
        }
    }

    #[tokio::test]
    async fn output_is_the_result_as_json_or_as_a_string() {
        assert_eq!(run("cat", r#"{"a": 1.50}"#).await.unwrap(), r#"{"a": 1.50}"#);
        assert_eq!(run("echo hello; echo world", "").await.unwrap(), r#""hello\nworld""#);
        assert_eq!(run("true", "").await.unwrap(), r#""""#);
        assert_eq!(run("echo 12", "").await.unwrap(), "12");
    }

    #[tokio::test]
    async fn the_command_knows_its_job() {
        let told = run("echo $MUSTER_JOB_ID $MUSTER_ATTEMPT $MUSTER_FENCE", "").await.unwrap();
        assert_eq!(told, r#""id-1 3 77""#);
    }

    #[tokio::test]
    async fn exit_codes_decide_whether_another_attempt_makes_sense() {
        let failed = run("echo oops >&2; exit 1", "").await.unwrap_err();
        assert_eq!((failed.message.as_str(), failed.retryable), ("oops", true));
        let permanent = run("echo bad input >&2; exit 65", "").await.unwrap_err();
        assert_eq!((permanent.message.as_str(), permanent.retryable), ("bad input", false));
        let killed = run("kill -9 $$", "").await.unwrap_err();
        assert!(killed.retryable && killed.message.contains("signal: 9"), "{}", killed.message);
    }

    #[tokio::test]
    async fn only_the_tail_of_long_complaints_is_kept() {
        let failed = run("yes complaint | head -n 10000 >&2; echo the end >&2; exit 1", "").await.unwrap_err();
        assert!(failed.message.len() <= MAX_ERROR && failed.message.ends_with("the end"));
    }

    #[tokio::test]
    async fn a_large_output_is_told_by_its_true_size_and_its_beginning() {
        let told = Exec::new("head -c 20000000 /dev/zero | tr '\\0' x; echo").run(task("")).await.unwrap();
        let JobResult::Cut { size, preview } = told else { panic!("not cut") };
        assert_eq!((size, preview.len()), (20_000_002, RESULT_PREVIEW));
        assert!(preview.starts_with("\"xxx") && preview.ends_with('x'));
    }

    #[test]
    fn the_size_of_a_text_is_counted_as_json_writes_it() {
        let texts: [&[u8]; 7] = [
            b"",
            b"plain\r\n\n",
            b"\n\n",
            b"a \"quote\" \\ \t\x01\x08\x0c\n and more\n",
            "€uro 😀\n".as_bytes(),
            b"\xff\xfe broken \xe2\x82",
            b"\xe2\x82\n\n\xf0\x9f\x98\n",
        ];
        for text in texts {
            for piece in 1..=text.len().max(1) {
                let mut output = Output::new(0);
                output.over = Some(TextSize::default());
                text.chunks(piece).for_each(|piece| output.add(piece));
                let lossy = String::from_utf8_lossy(text);
                let json = serde_json::Value::from(lossy.trim_end_matches(['\n', '\r'])).to_string();
                let JobResult::Cut { size, .. } = output.into_result() else { panic!("not cut") };
                assert_eq!(size, json.len() as u64, "{text:?} by {piece}");
            }
        }
    }

    /// Runs a command whose shell dies from SIGTERM while its child ignores it and does not hold the output. Stops it
    /// once the child runs. Returns the time from there to the end of the attempt.
    async fn stop_a_deaf_child(job: Task) -> Duration {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let stop = job.stop.clone();
        let deaf = "trap '' TERM; echo $$ > \"$0\"; while :; do sleep 1000; done";
        let exec =
            Exec::new(&format!("sh -c '{}' {} >/dev/null 2>&1 & wait", deaf.replace('\'', "'\\''"), file.display()));
        let until_started = async {
            while std::fs::read_to_string(&file).unwrap_or_default().trim().is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
            stop.cancel();
            Instant::now()
        };
        let (ended, told_at) = tokio::join!(exec.run(job), until_started);
        let took = told_at.elapsed();
        let child: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        assert!(!alive(child), "the attempt ended before its deaf child");
        assert_eq!(ended.unwrap_err().message, "told to stop");
        took
    }

    #[tokio::test]
    async fn a_process_of_the_group_that_will_not_go_is_killed_after_the_grace_and_holds_its_slot_till_then() {
        let took = stop_a_deaf_child(task("")).await;
        assert!(took >= GRACE - Duration::from_millis(100), "{took:?}");
    }

    #[tokio::test]
    async fn when_the_worker_leaves_the_group_is_dead_before_the_attempt_is_given_back() {
        // A busy machine may be late now and then, but not each time.
        let mut took = Vec::new();
        while took.iter().all(|took| *took >= LEAVE_GRACE) {
            assert!(took.len() < 5, "the SDK would have aborted the handler: {took:?}");
            took.push(stop_a_deaf_child(Task { leaves: Box::new(|| true), ..task("") }).await);
            assert!(took.last() >= Some(&(LEAVING_GRACE - Duration::from_millis(100))), "{took:?}");
        }
    }

    #[tokio::test]
    async fn a_cancelled_command_is_ended_with_everything_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let job = task("");
        let stop = job.stop.clone();
        let exec = Exec::new(&format!("sleep 1000 & echo $! > {}; wait", file.display()));
        let until_started = async {
            while std::fs::read_to_string(&file).unwrap_or_default().trim().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(exec.run(job), until_started);
        assert_eq!(ended.unwrap_err().message, "told to stop");
        let grandchild: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        assert!(!alive(grandchild), "the grandchild survived");
    }

    #[tokio::test]
    async fn what_a_command_leaves_running_does_not_hold_its_job() {
        let begun = Instant::now();
        assert_eq!(run("sleep 1000 & echo 1", "").await.unwrap(), "1");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    /// Whether the process is alive, and not a zombie.
    fn alive(pid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    }
}
