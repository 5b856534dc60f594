//! The process group of a command: signals it, and waits until no process of it runs.

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

/// How long a group may take to die of SIGKILL. A process that the kernel does not let go takes longer; nobody can
/// wait for that.
pub(super) const KILLED: Duration = Duration::from_millis(500);
/// How often a group is checked: at first, and at last.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(50);

/// A process group. If the attempt is dropped half-way, the group gets SIGKILL at once.
pub(super) struct Group {
    id: Option<Pid>,
}

impl Group {
    /// The group that this process leads.
    pub(super) fn of(pid: Option<u32>) -> Group {
        Group { id: pid.and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw) }
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(id) = self.id {
            let _ = killpg(id, signal);
        }
    }

    /// Ends the group after the command has ended. Processes that the command left in its group were part of the
    /// attempt and must end too: by SIGTERM first, and by SIGKILL at the limit, which may come nearer meanwhile.
    /// Returns when none of them runs.
    pub(super) async fn end(&mut self, limit: impl Fn() -> Instant) {
        self.signal(Signal::SIGTERM);
        let mut look = FIRST_LOOK;
        let mut killed_at = None;
        while self.is_alive() {
            let now = Instant::now();
            match killed_at {
                None if now >= limit() => {
                    self.signal(Signal::SIGKILL);
                    killed_at = Some(now);
                    look = FIRST_LOOK;
                }
                Some(at) if now >= at + KILLED => {
                    tracing::warn!("a process of a command outlived SIGKILL");
                    break;
                }
                _ => {}
            }
            sleep(look).await;
            look = (look * 2).min(LAST_LOOK);
        }
        self.id = None;
    }

    /// Whether a process of the group runs. A zombie does not run: where nobody reaps orphans, as in a container
    /// whose first process is the worker, it stays in the group for good.
    fn is_alive(&self) -> bool {
        self.id.is_some_and(|id| killpg(id, None).is_ok() && runs(id).unwrap_or(true))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The attempt is given back next, and the job runs elsewhere: no part of it may still run here.
        self.signal(Signal::SIGKILL);
    }
}

/// Whether a process of this group is there that is no zombie; none if the system does not tell.
fn runs(group: Pid) -> Option<bool> {
    let group = group.as_raw().to_string();
    let mut processes = fs::read_dir("/proc").ok()?.flatten();
    fs::metadata("/proc/self/stat").ok()?;
    Some(processes.any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // pid (name) state parent group …; a name may contain anything.
        let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
        let mut fields = rest.split(' ');
        let state = fields.next();
        fields.nth(1) == Some(&group) && !matches!(state, Some("Z" | "X"))
    }))
}
