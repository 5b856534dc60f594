//! `muster`: the operator's commands, shell workers, and the local stack. Reads its arguments and
//! hands them to `commands`; what a command's end means for a shell is said in `outcome`.

mod api;
mod commands;
mod outcome;
mod output;
mod record;
mod signals;
mod spans;
mod sse;
mod stack;
mod target;

/// Workers run in this program too, and a job is a few dozen small allocations.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    commands::run()
}
