//! What every part of this replica uses.

use muster_chassis::Tasks;
use muster_flow::admission::Admission;
use muster_runs::Runs;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{calm::Calm, hot::Hot, owned::Owned};

/// What every part of this replica uses.
pub(crate) struct Context {
    /// How runs are kept.
    pub(crate) runs: Runs,
    /// How jobs of steps are submitted.
    pub(crate) admission: Admission,
    /// The runs in memory.
    pub(crate) hot: Hot,
    /// Whether Redis may have forgotten something that the bus still has.
    pub(crate) calm: Calm,
    /// The shards whose runs this replica handles.
    pub(crate) owned: Owned,
    /// Turns that have begun.
    pub(crate) in_flight: Tasks,
    /// Held while the reconciler makes a pass.
    pub(crate) pass: Mutex<()>,
    /// Cancelled when a stop is requested: then no turn begins.
    pub(crate) stop: CancellationToken,
}

impl Context {
    /// Saves what only this process knows: confirmations, which another replica would ask for again.
    pub(crate) async fn save_all(&self) {
        for seat in self.hot.all() {
            if let Ok(mut kept) = seat.try_lock()
                && let Some(kept) = kept.as_mut().filter(|kept| kept.is_changed())
            {
                // Without the save, a command is carried out once more, which is harmless.
                let _ = self.runs.save(kept).await;
            }
        }
    }
}
