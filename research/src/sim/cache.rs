//! `tailroute-lab sim cache`: one cache in front of one worker, the setting of the caching papers.

use std::process::ExitCode;
use std::sync::Arc;

use crate::cache::{CacheConfig, Future, PolicySpec};
use crate::simulate::future::futures;
use crate::simulate::shared::{SharedCache, foresight};
use crate::simulate::single::{Measure, SingleCache, SingleReport};
use anyhow::Context as _;
use policy::cost::PrefillCost;
use policy::units::{Millis, Tokens};
use simulator::trace::{MAX_TOKENS_PER_FIELD, Turn};

use super::args::{Input, Output};
use simulator::args::{non_negative, positive};
use simulator::trace_source::OpenTrace;

/// Compare cache policies on one cache: TTFT percentiles, tail excess latency, violations
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute-lab sim cache --trace gen:wildchat:1 --capacity-tokens 10000 --policies lru,t-lru,to-belady --xi-ms 150\n  \
    tailroute-lab sim cache --trace trace.jsonl.gz --capacity-tokens 4000000 --policies lru,t-lru --xi-ms 2000 --json")]
pub struct Args {
    #[command(flatten)]
    input: Input,
    /// Capacity of the cache in tokens.
    #[arg(long)]
    capacity_tokens: u64,
    /// Policies, comma-separated; an unknown name lists them all.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "lru,threshold-lru,t-lru,end-aware,length-aware,to-belady"
    )]
    policies: Vec<PolicySpec>,
    #[command(flatten)]
    threshold: Threshold,
    /// Objective whose violations are counted, in ms. Defaults to the threshold.
    #[arg(long, value_parser = non_negative)]
    slo_ms: Option<f64>,
    /// Expected tokens of the next prompt.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=MAX_TOKENS_PER_FIELD))]
    next_prompt_tokens: u64,
    /// α: ms per uncached token. The default is a 7B model on one A100.
    #[arg(long, default_value = "0.1027", value_parser = positive)]
    alpha: f64,
    /// β: fixed ms per turn.
    #[arg(long, default_value = "23.07", value_parser = non_negative)]
    beta: f64,
    /// Tokens per block: residency is in whole blocks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    block_tokens: u32,
    /// Keep the conversation just served whole. With --shared only for lru, threshold-lru, t-lru, end-aware and
    /// length-aware.
    #[arg(long)]
    forced: bool,
    /// Run one cache of the trace's hash blocks, shared between conversations, instead of private histories.
    #[arg(long, conflicts_with = "block_tokens")]
    shared: bool,
    /// Report every turn's uncached tokens.
    #[arg(long)]
    per_turn: bool,
    #[command(flatten)]
    output: Output,
}

/// ξ, in one of two units.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Threshold {
    /// ξ: TTFT threshold in ms.
    #[arg(long, value_parser = non_negative)]
    xi_ms: Option<f64>,
    /// ξ: TTFT threshold in uncached tokens.
    #[arg(long, value_parser = non_negative)]
    xi_tokens: Option<f64>,
}

impl Args {
    fn measure(&self) -> (CacheConfig, Measure) {
        let cost = PrefillCost::linear(self.alpha, self.beta);
        let xi_tokens = match (self.threshold.xi_tokens, self.threshold.xi_ms) {
            (Some(tokens), _) => tokens,
            (None, xi_ms) => cost.tokens_within(Millis(xi_ms.unwrap_or_default()), Tokens::ZERO),
        };
        let xi = Millis(self.threshold.xi_ms.unwrap_or(self.beta + self.alpha * xi_tokens));
        let config = CacheConfig {
            capacity: Tokens(self.capacity_tokens),
            block_tokens: self.block_tokens,
            xi_tokens,
            next_prompt: Tokens(self.next_prompt_tokens),
            forced: self.forced,
        };
        (
            config,
            Measure {
                cost,
                xi,
                slo: self.slo_ms.map_or(xi, Millis),
                per_turn: self.per_turn,
            },
        )
    }
}

/// Runs the policies and prints their reports. Fails if the trace cannot be read or the report cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.output.print(&simulate(&args)?, table)?;
    Ok(ExitCode::SUCCESS)
}

enum Cache {
    Private(SingleCache),
    Shared(Box<SharedCache>),
}

impl Cache {
    fn turn(&mut self, turn: &Turn, future: Future) {
        match self {
            Self::Private(cache) => _ = cache.turn(turn, future),
            Self::Shared(cache) => _ = cache.turn(turn, future),
        }
    }

    fn report(self) -> SingleReport {
        match self {
            Self::Private(cache) => cache.report(),
            Self::Shared(cache) => cache.report(),
        }
    }
}

/// Creates the empty caches; `whole` is the trace, for policies that need the future.
fn caches(args: &Args, block_tokens: Option<u32>, whole: &[Turn]) -> anyhow::Result<Vec<Cache>> {
    let (config, measure) = args.measure();
    if !args.shared {
        let private = |spec| Cache::Private(SingleCache::new(spec, config, measure));
        return Ok(args.policies.iter().map(private).collect());
    }
    let block_tokens = block_tokens.context("the trace has no blocks to share")?;
    let config = CacheConfig {
        block_tokens,
        ..config
    };
    let told = args.policies.iter().any(PolicySpec::needs_foresight);
    let foresight = told.then(|| Arc::new(foresight(whole, block_tokens)));
    let shared = |spec: &PolicySpec| {
        let cache = SharedCache::new(spec, config, measure, foresight.as_ref());
        cache
            .map(|cache| Cache::Shared(Box::new(cache)))
            .with_context(|| {
                let forced = if args.forced { "forced " } else { "" };
                format!("{spec} has no {forced}form on shared blocks")
            })
    };
    args.policies.iter().map(shared).collect()
}

fn simulate(args: &Args) -> anyhow::Result<Vec<SingleReport>> {
    let OpenTrace { turns, block_tokens } = args.input.trace.open(args.input.turns)?;
    if args.policies.iter().any(PolicySpec::needs_future) {
        // Private histories do not use blocks, which are most of a trace's memory.
        let strip = |turn: Turn| {
            if args.shared {
                turn
            } else {
                Turn { blocks: None, ..turn }
            }
        };
        let turns = turns.map(|turn| turn.map(strip)).collect::<Result<Vec<_>, _>>()?;
        let mut caches = caches(args, block_tokens, &turns)?;
        let told: Vec<_> = turns
            .iter()
            .map(|turn| (turn.conversation, turn.prompt_tokens))
            .collect();
        for (turn, future) in turns.iter().zip(futures(&told)) {
            caches.iter_mut().for_each(|cache| cache.turn(turn, future));
        }
        Ok(caches.into_iter().map(Cache::report).collect())
    } else {
        let mut caches = caches(args, block_tokens, &[])?;
        for turn in turns {
            let turn = turn?;
            caches
                .iter_mut()
                .for_each(|cache| cache.turn(&turn, Future::Unknown));
        }
        Ok(caches.into_iter().map(Cache::report).collect())
    }
}

fn table(reports: &[SingleReport]) -> String {
    let mut text = format!(
        "{:<20} {:>9} {:>13} {:>13} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>7}",
        "policy",
        "turns",
        "uncached tok",
        "TEL ms",
        "mean ms",
        "p50 ms",
        "p90 ms",
        "p95 ms",
        "p99 ms",
        "late turns",
        "hits"
    );
    for r in reports {
        text += &format!(
            "\n{:<20} {:>9} {:>13} {:>13.1} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>10} {:>6.1}%",
            r.policy,
            r.turns,
            r.sum_uncached,
            r.tel_ms,
            r.mean_ms,
            r.p50_ms,
            r.p90_ms,
            r.p95_ms,
            r.p99_ms,
            r.slo_violations,
            r.hit_ratio * 100.0
        );
        if let Some(uncached) = &r.uncached {
            text += &format!("\n  {uncached:?}");
        }
    }
    text + "\n\nmean to p99: time to first token. TEL (tail excess latency): sum of the times beyond ξ. late turns: beyond --slo-ms, by \
            default ξ.\nhits: share of prompt tokens that were cached."
}
