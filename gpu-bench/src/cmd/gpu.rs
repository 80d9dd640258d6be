//! `gpu-bench gpu`: what a prompt costs on this machine, of a real transformer with random weights.

use std::process::ExitCode;
use std::time::Duration;

use super::python::{ModelArgs, option};
use crate::measure::{self, OutputArgs};
use crate::plan::PlanArgs;
use crate::source::child::Child;

/// For the weights to be drawn and the device's peaks to be measured.
const START: Duration = Duration::from_secs(900);

/// Measure α, β, γ of a transformer on this machine's accelerator, or processor, and write a calibration file
///
/// Prefills of new tokens over cached ones, without an engine and without HTTP: a real decoder-only transformer in PyTorch
/// in the shape of a known model, with random weights and a paged cache of keys and values. Same grid, fit and files as
/// `worker`, and what share of the device's roofline was reached. Where --layers holds only some of them, the times
/// are extrapolated, and the file says so.
/// Exit code 1: nothing was measured that can be trusted, and no file was written, or it was interrupted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  scripts/gpu-bench env                                                    # once: torch, 6.5 GB
  gpu-bench gpu --shape llama-3-8b --out gpu-0.json
  gpu-bench gpu --shape vicuna-7b --layers 2 --history 0,512,1024 --uncached 64,128,256,512   # on a small machine")]
pub struct Args {
    /// What computes.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Longest prompt in tokens; left out, the shape's, or as much as the memory has room for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4_194_304))]
    pub context_tokens: Option<u64>,
    /// Seconds that one prefill may take.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
    /// What is measured.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// What is written.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Measures, writes the files, prints the report.
///
/// # Errors
/// If there is no Python with what is needed, or what was measured cannot be trusted or written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let python = args.model.interpreter()?;
    let mut arguments = args.model.arguments("measure");
    option(&mut arguments, "--seed", args.plan.seed.to_string());
    if let Some(tokens) = args.context_tokens {
        option(&mut arguments, "--context-tokens", tokens.to_string());
    }
    measure::runtime()?.block_on(async {
        let patience = Duration::from_secs(args.timeout_s);
        // Dropped, it takes its process with it: nothing goes on computing when nobody waits for it any more.
        let mut child = tokio::select! {
            child = Child::start(python.as_os_str(), &arguments, START, patience) => child?,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted before anything was measured"),
        };
        let code = measure::run(&mut child, &args.plan, &args.output).await?;
        // Everything is measured and written: a process that is slow to end spoils nothing, and is killed.
        let _ = child.end().await;
        Ok(code)
    })
}
