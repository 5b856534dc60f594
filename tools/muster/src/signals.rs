//! The signals that ask us to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears SIGINT, SIGTERM and SIGHUP, as often as they come.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl StopSignals {
    /// From now on these signals no longer end the process by themselves.
    pub(crate) fn listen() -> std::io::Result<StopSignals> {
        Ok(StopSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
            _ = self.hangup.recv() => (),
        }
    }
}
