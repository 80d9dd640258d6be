//! `tailroute-lab`: experiments on traces, without a network. Exit codes: 0 success, 1 failure, 2 usage error.

use std::process::ExitCode;

use clap::Parser;
use lab::{convert, sim, tables};
use simulator::terminal;

/// Compares routing and cache policies on traces, with tailroute's own code in front of simulated workers.
#[derive(Debug, Parser)]
#[command(
    name = "tailroute-lab",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Sim(sim::Args),
    Tables(tables::Args),
    Trace(convert::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Sim(args) => sim::run(args),
        Command::Tables(args) => tables::run(args),
        Command::Trace(args) => convert::run(&args),
    };
    result.unwrap_or_else(|error| {
        terminal::complain(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
