//! The scheduler's process: settings, then [`muster_scheduler::run`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    muster_chassis::run(
        muster_scheduler::SERVICE,
        muster_scheduler::SETTINGS,
        muster_scheduler::LOOPS,
        muster_scheduler::run,
    )
}
