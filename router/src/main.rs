//! A sidecar that routes LLM conversations to the worker where they will meet their time-to-first-token objective.

use std::process::ExitCode;

/// Reuses large buffers instead of returning their pages and faulting them in again, and limits fragmentation over
/// weeks.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tailroute::cli::run(std::env::args_os())
}
