//! `gpu-bench serve`: the transformer as an engine behind HTTP.

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::anyhow;

use super::python::{ModelArgs, option};

/// Serve a transformer with random weights as an engine, until interrupted
///
/// Real prefills and decoding, a paged prefix cache that obeys hints, and the HTTP surface of a simulated engine: for
/// end-to-end runs on a real accelerator where no engine can be installed. The generated text is meaningless.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  gpu-bench serve --shape llama-3-8b --port 8101
  gpu-bench serve --shape tiny --port 8102 -- --per-request-metrics --max-running 4
  gpu-bench serve -- --help                      # every option after --")]
pub struct Args {
    /// The model and the device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port; 0 takes any free one.
    #[arg(long, default_value_t = 8100)]
    pub port: u16,
    /// Size of the key-value cache in blocks; by default half of the free memory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub capacity_blocks: Option<u64>,
    /// Print the address as JSON.
    #[arg(long)]
    pub json: bool,
    /// Further options of the worker.
    #[arg(last = true, value_name = "OPTION")]
    pub more: Vec<OsString>,
}

/// Replaces this process with the worker, which then handles signals and exit codes. Fails without a suitable Python.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let python = args.model.interpreter()?;
    let error = Command::new(&python).args(arguments(args)).exec();
    Err(anyhow!(error).context(format!("{}: cannot be started", python.display())))
}

fn arguments(args: &Args) -> Vec<OsString> {
    let mut all = args.model.arguments("serve");
    option(&mut all, "--host", args.host.to_string());
    option(&mut all, "--port", args.port.to_string());
    if let Some(blocks) = args.capacity_blocks {
        option(&mut all, "--capacity-blocks", blocks.to_string());
    }
    if args.json {
        all.push("--json".into());
    }
    all.extend(args.more.iter().cloned());
    all
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn arguments_after_two_dashes_are_passed_on() {
        let cli = Cli::parse_from(["x", "--port", "0", "--json", "--", "--max-running", "4"]);
        let said = arguments(&cli.args).join(OsStr::new(" "));
        assert!(
            said.to_string_lossy()
                .ends_with("--host 127.0.0.1 --port 0 --json --max-running 4"),
            "{said:?}"
        );
    }
}
