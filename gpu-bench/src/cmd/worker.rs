//! `gpu-bench worker URL`: what a prompt costs on a worker behind HTTP.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::HeaderValue;

use crate::measure::{self, OutputArgs};
use crate::plan::PlanArgs;
use crate::source::http::Client;
use crate::source::http::worker::Worker;

/// Measure α, β, γ of a worker over HTTP and write a calibration file
///
/// Sends streamed chat completions, one at a time, to an OpenAI-compatible worker that should otherwise be idle, and fits
/// ttft = β + α·u + γ·u·(h + u/2). The worker must report cached tokens (vLLM: --enable-prompt-tokens-details; SGLang:
/// --enable-cache-report). With vLLM's --enable-per-request-metrics the times are the engine's own.
/// Exit code 1: nothing was measured that can be trusted, and no file was written, or it was interrupted.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json
  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json --polite --budget-s 3600    # beside traffic, in its pauses
  gpu-bench worker http://10.0.0.1:8000 --out gpu-0.json --resume                    # after Ctrl-C")]
pub struct Args {
    /// How the worker is reached.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Only send prompts while the worker has nothing else to do, as its /metrics say.
    #[arg(long)]
    pub polite: bool,
    /// Seconds of other work after which a polite measurement ends.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub polite_wait_s: u64,
    /// Go by this program's clock, whatever the engine tells.
    #[arg(long)]
    pub own_clock: bool,
    /// The accelerator, for the file: a worker does not say.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Its driver, for the file.
    #[arg(long, value_name = "VERSION")]
    pub driver: Option<String>,
    /// What is measured.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// What is written.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The options of every command that talks to a worker.
#[derive(Clone, Debug, clap::Args)]
pub struct ReachArgs {
    /// The worker, without /v1.
    #[arg(value_parser = base_url)]
    pub url: String,
    /// Model to ask for; left out, the first that the worker names.
    #[arg(long)]
    pub model: Option<String>,
    /// File with the key that the worker wants; it goes before one in the environment.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// The key itself, from the environment: on the command line everybody would see it.
    #[arg(long, env = "GPU_BENCH_API_KEY", hide = true, hide_env_values = true)]
    pub api_key: Option<String>,
    /// Seconds that one answer may take.
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout_s: u64,
}

impl ReachArgs {
    /// A client of the worker.
    ///
    /// # Errors
    /// If the key cannot be read, or is none.
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

/// Measures, writes the files, prints the report.
///
/// # Errors
/// If the worker cannot be measured, or what was measured cannot be trusted or written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    measure::runtime()?.block_on(measure(args))
}

/// As [`run`], within a runtime.
///
/// # Errors
/// If the worker cannot be measured, or what was measured cannot be trusted or written.
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

/// What a file with a secret says, without the line's end.
///
/// # Errors
/// If it cannot be read, or is empty.
pub fn secret(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(4096).read_to_string(&mut text));
    file.with_context(|| format!("{}: cannot be read", path.display()))?;
    ensure!(!text.trim().is_empty(), "{}: is empty", path.display());
    Ok(text.trim().to_owned())
}

/// The header field of a key.
///
/// # Errors
/// If it has characters that a header cannot have.
pub fn bearer(key: &str) -> anyhow::Result<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .context("the key has characters that no header has")?;
    value.set_sensitive(true);
    Ok(value)
}

/// A url without `/v1` and without a slash at its end.
///
/// # Errors
/// If it is none.
pub fn base_url(text: &str) -> Result<String, String> {
    let base = text.trim_end_matches('/');
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let uri: http::Uri = base.parse().map_err(|error| format!("{error}"))?;
    if uri.scheme_str() != Some("http") || uri.authority().is_none() || uri.query().is_some() {
        return Err("expected a url such as http://10.0.0.1:8000".to_owned());
    }
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(
            "a url with a name or a password in it would be in every file; give the key by --api-key-file"
                .to_owned(),
        );
    }
    Ok(base.to_owned())
}
