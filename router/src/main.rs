//! A sidecar that routes LLM conversations to the worker where they will meet their time-to-first-token objective.

use std::process::ExitCode;

fn main() -> ExitCode {
    tailroute::cli::run(std::env::args_os())
}
