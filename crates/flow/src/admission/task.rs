//! A task that another crate runs: this crate knows the work, the process knows how tasks are named, supervised and
//! stopped.

use std::future::Future;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// Work that must run until the process stops. If a run ends early, [`Task::run`] starts the next one.
pub struct Task {
    /// Names the task in logs and metrics.
    pub name: &'static str,
    run: Box<dyn FnMut(CancellationToken) -> BoxFuture<'static, ()> + Send>,
}

impl Task {
    /// A task that ends by itself some time after its token is cancelled.
    pub(super) fn new<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        mut run: impl FnMut(CancellationToken) -> F + Send + 'static,
    ) -> Task {
        Task { name, run: Box::new(move |stop| Box::pin(run(stop))) }
    }

    /// A task that may be dropped at any point once its token is cancelled.
    pub(super) fn until_stopped<F: Future<Output = ()> + Send + 'static>(
        name: &'static str,
        mut run: impl FnMut() -> F + Send + 'static,
    ) -> Task {
        Task::new(name, move |stop| {
            let work = run();
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = work => {}
                }
            }
        })
    }

    /// Runs once, until `stop` is cancelled and the work that was taken up is done.
    pub fn run(&mut self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        (self.run)(stop)
    }
}
