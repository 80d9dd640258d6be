//! `gpu-bench worker URL`: the prefill cost of a worker behind HTTP.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::access::{base_url, bearer, secret};
use crate::measure::{self, OutputArgs};
use crate::plan::PlanArgs;
use crate::source::http::Client;
use crate::source::http::worker::Worker;

/// Measure α, β, γ of a worker over HTTP and write a calibration file
///
/// Sends streamed chat completions, one at a time, to an OpenAI-compatible worker that should otherwise be idle, and
/// fits ttft = β + α·u + γ·u·(h + u/2). The worker must report cached tokens (vLLM: --enable-prompt-tokens-details;
/// SGLang: --enable-cache-report). With vLLM's --enable-per-request-metrics the times are the engine's own. Exit code
/// 1: no reliable measurement and no file written, or interrupted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json
  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json --polite --budget-s 3600    # beside traffic, in its pauses
  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json --resume                    # after Ctrl-C")]
pub struct Args {
    /// How to reach the worker.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Send prompts only while the worker is otherwise idle according to its /metrics.
    #[arg(long)]
    pub polite: bool,
    /// Seconds of other work after which a polite measurement ends.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub polite_wait_s: u64,
    /// Use this program's clock even if the engine reports times.
    #[arg(long)]
    pub own_clock: bool,
    /// Name of the accelerator for the file, since a worker does not report it.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Version of the accelerator's driver, for the file.
    #[arg(long, value_name = "VERSION")]
    pub driver: Option<String>,
    /// The grid.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// The output files.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options of all commands that talk to a worker.
#[derive(Clone, Debug, clap::Args)]
pub struct ReachArgs {
    /// URL of the worker, without /v1.
    #[arg(value_parser = base_url)]
    pub url: String,
    /// Model to request; by default the first that the worker lists.
    #[arg(long)]
    pub model: Option<String>,
    /// File with the worker's API key; takes precedence over the environment.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// The key itself, from the environment: the command line is visible to other users.
    #[arg(long, env = "GPU_BENCH_API_KEY", hide = true, hide_env_values = true)]
    pub api_key: Option<String>,
    /// Timeout of one response in seconds.
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
}

impl ReachArgs {
    /// Returns a client of the worker. Fails if the key cannot be read, or is empty.
    pub fn client(&self) -> anyhow::Result<Client> {
        let key = match (&self.api_key_file, &self.api_key) {
            (Some(path), _) => Some(bearer(&secret(path)?)?),
            (None, Some(key)) => Some(bearer(key)?),
            (None, None) => None,
        };
        let timeout = Duration::from_secs(self.timeout_s);
        Ok(Client::new(self.url.clone(), key, timeout)?)
    }
}

/// Measures, writes the files, prints the report. Fails if a step fails, or the result is unreliable.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    measure::runtime()?.block_on(measure(args))
}

/// Measures as [`run`] does, within an existing runtime. Fails as [`run`] does.
pub async fn measure(args: &Args) -> anyhow::Result<ExitCode> {
    let patience = args.polite.then(|| Duration::from_secs(args.polite_wait_s));
    let mut worker = Worker::prepare(args.reach.client()?, args.reach.model.as_deref(), patience).await?;
    if args.own_clock {
        worker.use_own_clock();
    }
    let facts = worker.facts_mut();
    facts.device = args.device.clone().or(facts.device.take());
    facts.driver = args.driver.clone().or(facts.driver.take());
    measure::run(&mut worker, &args.plan, &args.output).await
}
