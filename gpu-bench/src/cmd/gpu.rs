//! `gpu-bench gpu`: the prefill cost of a real transformer with random weights on this machine.

use std::process::ExitCode;
use std::time::Duration;

use super::python::{ModelArgs, option};
use crate::measure::{self, OutputArgs};
use crate::plan::PlanArgs;
use crate::source::child::Child;

/// Timeout for initialising the weights and measuring the device's peak rates.
const START: Duration = Duration::from_secs(900);

/// Measure α, β, γ of a transformer on this machine's accelerator, or processor, and write a calibration file
///
/// Measures prefills of new tokens over cached ones, without an engine and without HTTP: a decoder-only transformer
/// in PyTorch in the shape of a known model, with random weights and a paged key-value cache. Uses the same grid, fit
/// and files as `worker`, and reports the share of the device's roofline that was reached. With fewer --layers than
/// the shape has, the times are extrapolated, and the file says so. Exit code 1: no reliable measurement and no file
/// written, or interrupted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  scripts/gpu-bench env                                                    # once: torch, 6.5 GB
  gpu-bench gpu --shape llama-3-8b --out gpu-0.json
  gpu-bench gpu --shape vicuna-7b --layers 2 --history 0,512,1024 --uncached 64,128,256,512   # on a small machine")]
pub struct Args {
    /// The model and the device.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Longest prompt in tokens; by default the shape's limit, or what fits into memory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4_194_304))]
    pub context_tokens: Option<u64>,
    /// Timeout of one prefill in seconds.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
    /// The grid.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// The output files.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Measures, writes the files, prints the report. Fails without a suitable Python, or as `gpu-bench worker` does.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let python = args.model.interpreter()?;
    let mut arguments = args.model.arguments("measure");
    option(&mut arguments, "--seed", args.plan.seed.to_string());
    if let Some(tokens) = args.context_tokens {
        option(&mut arguments, "--context-tokens", tokens.to_string());
    }
    measure::runtime()?.block_on(async {
        let patience = Duration::from_secs(args.timeout_s);
        // Dropping the child kills its process, so that nothing goes on computing after an interruption.
        let mut child = tokio::select! {
            child = Child::start(python.as_os_str(), &arguments, START, patience) => child?,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted before anything was measured"),
        };
        let code = measure::run(&mut child, &args.plan, &args.output).await?;
        // All results are written: a child that is slow to end is killed, and its error does not matter.
        let _ = child.end().await;
        Ok(code)
    })
}
