//! `tailroute sim`: experiments on traces, without a network.

use std::process::ExitCode;

pub mod cache;

/// Run traces through the policies, without a network
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, clap::Subcommand)]
enum Experiment {
    Cache(cache::Args),
}

/// Runs the experiment.
///
/// # Errors
/// If the trace cannot be read or the report cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Cache(args) => cache::run(args),
    }
}
