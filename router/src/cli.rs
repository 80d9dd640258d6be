//! The command line: one variant per subcommand, each with its arguments and its `run` in [`crate::cmd`].
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

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
    command: CliCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CliCommand {
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
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are "errors" with code 0 that go to standard output.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = match cli.command {
        CliCommand::Check(args) => cmd::check::run(args),
        CliCommand::Ctl(args) => client::ctl::run(args, Cli::command()),
        CliCommand::Demo(args) => cmd::demo::run(args),
        CliCommand::Doctor(args) => client::doctor::run(&args),
        CliCommand::Drive(args) => client::drive::command::run(*args),
        CliCommand::Key(args) => cmd::key::run(&args),
        CliCommand::Migrate(args) => cmd::migrate::run(&args),
        CliCommand::Replay(args) => replay::run(&args),
        CliCommand::Schema(args) => cmd::schema::run(args),
        CliCommand::Top(args) => client::top::run(&args),
        CliCommand::Serve(args) => cmd::serve::run(args),
    };
    result.unwrap_or_else(|error| {
        simulator::terminal::complain(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    command.build();
    let mut command = with_usage(command);
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Gives each command its usage for errors too, where clap would show the options that were given as if required.
fn with_usage(command: clap::Command) -> clap::Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    if names.is_empty() {
        let usage = command.clone().render_usage().to_string();
        return command.override_usage(usage.trim_start_matches("Usage: ").to_owned());
    }
    names
        .into_iter()
        .fold(command, |command, name| command.mut_subcommand(name, with_usage))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn an_option_that_was_given_is_not_shown_as_required() {
        let arguments = ["tailroute", "ctl", "workers", "cordon", "--admin", "127.0.0.1:1"];
        let error = super::parse(arguments.map(Into::into)).unwrap_err().to_string();
        let usage = error.lines().find(|line| line.starts_with("Usage: "));
        assert_eq!(
            usage,
            Some("Usage: tailroute ctl workers cordon [OPTIONS] --reason <REASON> <NAME>..."),
            "{error}"
        );
    }

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
