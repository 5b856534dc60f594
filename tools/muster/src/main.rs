//! `muster`: the operator's commands, shell workers, and the local stack. Passes its arguments to `commands`;
//! `outcome` maps the end of a command to an exit code.

mod api;
mod commands;
mod outcome;
mod output;
mod programs;
mod record;
mod redis;
mod signals;
mod spans;
mod stack;
mod target;

/// Workers run in this program too, and each job makes a few dozen small allocations.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    commands::run()
}
