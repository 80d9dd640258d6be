//! The command line: one variant per subcommand, each with its arguments and its `run` in [`crate::cmd`].
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

use crate::cmd;

/// Routes LLM conversations to the worker where they will meet their time-to-first-token objective.
#[derive(Debug, Parser)]
#[command(
    name = "tailroute",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(cmd::check::Args),
    Ctl(client::ctl::Args),
    Demo(cmd::demo::Args),
    Doctor(client::doctor::Args),
    Drive(Box<client::drive::command::Args>),
    Key(cmd::key::Args),
    Migrate(cmd::migrate::Args),
    Replay(Box<replay::Args>),
    Schema(cmd::schema::Args),
    Top(client::top::Args),
    Serve(cmd::serve::Args),
}

/// Runs the command line `arguments`, of which the first is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are "errors" with code 0 that go to standard output.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = match cli.command {
        Command::Check(args) => cmd::check::run(args),
        Command::Ctl(args) => client::ctl::run(args, Cli::command()),
        Command::Demo(args) => cmd::demo::run(args),
        Command::Doctor(args) => client::doctor::run(&args),
        Command::Drive(args) => client::drive::command::run(*args),
        Command::Key(args) => cmd::key::run(&args),
        Command::Migrate(args) => cmd::migrate::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Schema(args) => cmd::schema::run(args),
        Command::Top(args) => client::top::run(&args),
        Command::Serve(args) => cmd::serve::run(args),
    };
    result.unwrap_or_else(|error| {
        lab::terminal::complain(&format!("error: {error:#}"));
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

    #[test]
    fn bad_usage_is_exit_code_two() {
        let code = super::run(["tailroute", "--no-such-flag"].map(Into::into));
        assert_eq!(
            format!("{code:?}"),
            format!("{:?}", std::process::ExitCode::from(2))
        );
    }
}
