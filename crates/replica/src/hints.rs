//! Hints from the bus: a loop should run, or another replica released a lock.
//!
//! One subscription serves all loops and locks of this replica. A lost hint costs only time: a loop also runs by its
//! interval, and the replica asks for a lock again by itself.

use std::time::Duration;

use muster_bus::subjects;
use muster_chassis::Tasks;
use muster_wire::Body;
use tokio_util::sync::CancellationToken;

use crate::Member;

impl Member {
    /// Hands hints from the bus to this replica's loops and locks until `tasks` stop.
    pub fn hear_hints(&self, tasks: &Tasks) {
        let (member, stop) = (self.clone(), tasks.stopping());
        tasks.supervise("hints", move || {
            let (member, stop) = (member.clone(), stop.clone());
            async move { member.listen(&stop).await }
        });
    }

    async fn listen(&self, stop: &CancellationToken) -> anyhow::Result<()> {
        let mut hints = self.flow.bus.subscribe(&subjects::wake(), None).await?;
        loop {
            let received = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                received = hints.next() => received,
            };
            let Some(received) = received else { anyhow::bail!("the subscription to hints ended") };
            let Body::Wake(wake) = received.body else { continue };
            let asked = self.candidacies().iter().find(|it| it.lock == wake.r#loop).map(|it| it.nudge.clone());
            match asked {
                Some(nudge) => nudge(),
                None => _ = self.chassis.loops.wake(&wake.r#loop, Duration::from_micros(wake.in_us)),
            }
        }
    }
}
