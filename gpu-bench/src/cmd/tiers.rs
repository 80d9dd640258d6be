//! `gpu-bench tiers URL`: the time to load a token from a tier below the device's memory. A prefix is primed, requested
//! again (now on the device), pushed out by other prompts, and requested once more. If the engine then reports another
//! tier, the difference of the two times, per token, is the load time.

use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use policy::stats::median;
use serde::Serialize;

use super::worker::ReachArgs;
use crate::measure;
use crate::source::Source as _;
use crate::source::http::chat::{Answer, Ask};
use crate::source::http::worker::Worker;

/// New tokens of each request of a known prefix.
const OWN_TOKENS: f64 = 32.0;
/// The name engines use for device memory.
const DEVICE: &str = "device";
/// A tier counts as measured if it held at least this share of the prefix.
const MOST_OF_IT: f64 = 0.5;

/// Measure what it takes to load a token from host memory or disk
///
/// Fills the worker's cache several times over; the worker should otherwise be idle. The engine must report the tiers
/// of cached tokens (SGLang with a hierarchical cache and return_cached_tokens_details). Exit code 1: the engine does
/// not report tiers, or nothing came from another tier.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  gpu-bench tiers http://10.0.0.1:30000 --history 8192 --json")]
pub struct Args {
    /// How to reach the worker.
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Tokens of the prefix that is pushed out and loaded.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(64..=4_194_304))]
    pub history: u64,
    /// Tokens that push the prefix out; by default 1.2 times the worker's cache size.
    #[arg(long)]
    pub fill: Option<u64>,
    /// Number of measurements.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The load time of one tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// The tier's name, as the engine reports it.
    pub name: String,
    /// Median milliseconds to load a token.
    pub ms_per_token: f64,
    /// Smallest milliseconds to load a token.
    pub least_ms_per_token: f64,
    /// Largest milliseconds to load a token.
    pub most_ms_per_token: f64,
    /// Number of prefixes loaded.
    pub samples: usize,
}

/// The result of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// The worker's base URL.
    pub worker: String,
    /// The model that was measured.
    pub model: String,
    /// Milliseconds to compute a token of the prefix, for comparison.
    pub computed_ms_per_token: f64,
    /// The tiers that were observed.
    pub tiers: Vec<Tier>,
}

/// Measures and prints. Fails if the worker cannot be measured.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let found = measure::runtime()?.block_on(find(args))?;
    super::print(&found, args.json, table)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the tiers. Fails if the worker cannot be measured.
pub async fn find(args: &Args) -> anyhow::Result<Found> {
    let mut worker = Worker::prepare(args.reach.client()?, args.reach.model.as_deref(), None).await?;
    let capacity = worker.facts().capacity_tokens;
    let fill = args.fill.or(capacity.map(|tokens| tokens + tokens / 5));
    let fill = fill.context(
        "the worker does not report its cache size; set the tokens that evict a prefix with --fill",
    )?;
    ensure!(
        capacity.is_none_or(|capacity| args.history + 64 <= capacity),
        "the worker's cache holds less than --history; use a shorter one"
    );
    let (mut computed, mut loaded): (Vec<f64>, Vec<(String, f64)>) = (Vec::new(), Vec::new());
    let mut told = false;
    for _ in 0..args.repeats {
        let prefix = worker.fresh_tokens(args.history as f64);
        let cold = ask(&worker, &prefix).await?;
        let warm = again(&mut worker, &prefix).await?;
        push_out(&mut worker, fill).await?;
        let back = again(&mut worker, &prefix).await?;
        told |= !(warm.tiers.is_empty() && back.tiers.is_empty());
        let (cold_ms, warm_ms, back_ms) = (
            worker.prefill(&cold)?.0,
            worker.prefill(&warm)?.0,
            worker.prefill(&back)?.0,
        );
        let by_token = |tokens: u64| (cold_ms - warm_ms) / (tokens as f64).max(1.0);
        computed.push(by_token(cold.uncached.0.saturating_sub(warm.uncached.0)));
        let beyond = back
            .tiers
            .iter()
            .filter(|(name, _)| name != DEVICE)
            .max_by_key(|(_, tokens)| tokens.0);
        if let Some((name, tokens)) = beyond
            && tokens.as_f64() >= MOST_OF_IT * args.history as f64
        {
            loaded.push((name.clone(), (back_ms - warm_ms) / tokens.as_f64()));
        }
    }
    if !told {
        bail!(
            "the engine does not report the tiers of cached tokens (SGLang does with a hierarchical cache, in \
             sglext.cached_tokens_details)"
        );
    }
    ensure!(
        !loaded.is_empty(),
        "nothing came from another tier: there is none, or --fill is too small to evict a prefix from the device"
    );
    Ok(Found {
        worker: worker.place().to_owned(),
        model: worker.facts().model.clone(),
        computed_ms_per_token: median(computed),
        tiers: by_tier(&loaded),
    })
}

fn by_tier(loaded: &[(String, f64)]) -> Vec<Tier> {
    let mut names: Vec<&String> = loaded.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    let tier = |name: &&String| {
        let of_tier: Vec<f64> = loaded
            .iter()
            .filter(|(tier, _)| tier == *name)
            .map(|(_, ms)| *ms)
            .collect();
        Tier {
            name: (*name).clone(),
            ms_per_token: median(of_tier.iter().copied()),
            least_ms_per_token: of_tier.iter().copied().fold(f64::INFINITY, f64::min),
            most_ms_per_token: of_tier.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            samples: of_tier.len(),
        }
    };
    names.iter().map(tier).collect()
}

async fn ask(worker: &Worker, prompt: &str) -> anyhow::Result<Answer> {
    let ask = Ask {
        tiers: true,
        ..worker.question(prompt, 1)
    };
    Ok(worker.client().chat(ask).await?)
}

async fn again(worker: &mut Worker, prefix: &str) -> anyhow::Result<Answer> {
    let prompt = prefix.to_owned() + &worker.fresh_tokens(OWN_TOKENS);
    ask(worker, &prompt).await
}

/// Sends prompts without a cached prefix, of `fill` tokens together.
async fn push_out(worker: &mut Worker, fill: u64) -> anyhow::Result<()> {
    let facts = worker.facts();
    let longest = facts
        .context_tokens
        .unwrap_or(8192)
        .min(facts.capacity_tokens.unwrap_or(8192) / 4);
    let each = longest.saturating_sub(64).clamp(64, 8192);
    let mut sent = 0;
    while sent < fill {
        let prompt = worker.fresh_tokens(each as f64);
        let answer = worker.client().chat(worker.question(&prompt, 1)).await?;
        sent += answer.uncached.0.max(1);
    }
    Ok(())
}

fn table(found: &Found) -> String {
    let mut out = format!(
        "{} ({})\n\n  tier          ms per token      least       most  prefixes\n",
        found.worker, found.model
    );
    for tier in &found.tiers {
        out.push_str(&format!(
            "  {:<12} {:>13.5} {:>10.5} {:>10.5} {:>9}\n",
            tier.name, tier.ms_per_token, tier.least_ms_per_token, tier.most_ms_per_token, tier.samples
        ));
    }
    out.push_str(&format!(
        "  {:<12} {:>13.5}",
        "computed", found.computed_ms_per_token
    ));
    out
}
