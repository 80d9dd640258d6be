//! `tailroute sim`: experiments on traces, without a network.

use std::process::ExitCode;

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

/// Runs the experiment.
///
/// # Errors
/// If the trace cannot be read or the report cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.experiment {
        Experiment::Cache(args) => cache::run(*args),
        Experiment::Fleet(args) => fleet::run(&args),
    }
}

/// A finite number from 0 on.
pub(crate) fn non_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("a number from 0 on expected".to_owned()),
    }
}

/// A finite number above 0.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    non_negative(text).and_then(|value| {
        if value > 0.0 {
            Ok(value)
        } else {
            Err("must not be 0".to_owned())
        }
    })
}

/// A share: from 0 to 1, 1 excluded.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    non_negative(text).and_then(|value| {
        if value < 1.0 {
            Ok(value)
        } else {
            Err("must be below 1".to_owned())
        }
    })
}
