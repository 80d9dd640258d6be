//! `gpu-bench`: measures the cost of a prompt token on a worker.

use std::process::ExitCode;

use clap::Parser;
use gpu_bench::{cmd, terminal};

/// Measures the cost of a prompt token on a worker: ttft = wait + β + α·u + γ·u·(h + u/2).
#[derive(Debug, Parser)]
#[command(
    name = "gpu-bench",
    version,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Worker(Box<cmd::worker::Args>),
    Gpu(Box<cmd::gpu::Args>),
    Serve(Box<cmd::serve::Args>),
    Decode(cmd::decode::Args),
    Tiers(cmd::tiers::Args),
    Compare(cmd::compare::Args),
    Push(cmd::push::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Worker(args) => cmd::worker::run(&args),
        Command::Gpu(args) => cmd::gpu::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Decode(args) => cmd::decode::run(&args),
        Command::Tiers(args) => cmd::tiers::run(&args),
        Command::Compare(args) => cmd::compare::run(&args),
        Command::Push(args) => cmd::push::run(&args),
    };
    done.unwrap_or_else(|error| {
        terminal::complain(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}
