//! `muster-gateway`: the program. All of its code is in the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    muster_chassis::run(muster_gateway::SERVICE, muster_gateway::SETTINGS, muster_gateway::LOOPS, muster_gateway::run)
}
