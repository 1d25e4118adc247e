//! `volwright-local-path`: the local-path node agent.

use std::process::ExitCode;
use volwright_local_path::LocalPath;

// Gives memory back after a burst, from a thread of its own.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    volwright_controller::main::<LocalPath>()
}
