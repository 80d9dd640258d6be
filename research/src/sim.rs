//! `tailroute-lab sim`: experiments on traces, without a network.

use std::process::ExitCode;

mod args;
pub mod cache;
pub mod fleet;

/// Run traces through the policies, without a network
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, clap::Subcommand)]
enum Experiment {
    Cache(Box<cache::Args>),
    Fleet(Box<fleet::Args>),
}

/// Runs the experiment. Fails if the trace cannot be read or the report cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Cache(args) => cache::run(*args),
        Experiment::Fleet(args) => fleet::run(&args),
    }
}
