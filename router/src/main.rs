//! A sidecar that routes LLM conversations to the worker where they will meet their time-to-first-token objective.

use std::process::ExitCode;

/// Reuses large buffers instead of returning their pages at once and faulting them in again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tailroute::cli::run(std::env::args_os())
}
