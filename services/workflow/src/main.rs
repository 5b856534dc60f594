//! The workflow service's process: settings, then [`muster_workflow::run`].

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    muster_chassis::run(
        muster_workflow::SERVICE,
        muster_workflow::SETTINGS,
        muster_workflow::LOOPS,
        muster_workflow::run,
    )
}
