//! `tailroute replay`: what would have been, under another policy or other weights.
//!
//! The capture is played twice through the fleet simulator, which runs the router's own code: once under the settings in
//! force, once under the proposed ones. Both runs see the same arrivals, so every turn has a twin to be compared with.
//! The few turns that change most are then played once more, to keep every term of their two decisions: keeping those of
//! all turns would take more memory than the trace.
//!
//! It is a simulation of the workers, by what the configuration says of them; what the router does is no simulation.

mod compare;
mod figures;
mod fleet;
mod table;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use config::Routing;
use policy::route::Settings;
use policy::simulate::fleet::{CacheRule, FleetConfig, FleetReport, Pace, Workload, run_observed};
use policy::units::Tokens;

use self::compare::{Kept, Played, Report};
pub use self::fleet::Fleet;
use self::fleet::FleetArgs;
use super::progress::Progress;
use super::sim::{positive, share};
use crate::trace_source::{Trace, TraceSource};

/// Share of captured turns, from the first, that fill the caches and are not counted.
const PREVIEW_WARM_UP: f64 = 0.2;

/// What a capture or trace would have got under other weights
///
/// Plays it twice, with the router's own code in front of simulated workers: under the settings in force and under the
/// proposed ones. Reports both, by traffic class too, and the turns that change most with what decided.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute replay --capture capture.jsonl --config tailroute.toml --weights proposed.toml\n  \
    tailroute replay --capture conv.jsonl.gz --weights proposed.toml --workers 4 --capacity-blocks 8000 --load 0.8\n\n\
    A weights file is written like the configuration, its [routing] section alone (or the whole file):\n\n  \
    [routing]\n  policy = \"tail\"\n  kappa_max = 20.0\n  [routing.weights]\n  locality = 0.8\n\n\
    What it leaves out has its default. A key or value that is wrong is named with its line, and nothing is played.")]
pub struct Args {
    /// Capture or trace (turn trace, Mooncake or Bailian; plain or gzip), or a generator: gen:wildchat:SEED,
    /// gen:sharegpt:SEED or gen:agentic:SEED.
    #[arg(long, value_name = "FILE")]
    capture: TraceSource,
    /// Proposed settings.
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    /// Settings to compare with, if not those of the configuration (or, without one, the defaults).
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    pace: PaceArgs,
    /// What workers drop first: lru, t-lru, adaptive, threshold-lru[:TOKENS], end-aware or length-aware.
    #[arg(long, default_value = "adaptive")]
    cache: CacheRule,
    /// Share of turns, from the start, that fill the caches and are not counted.
    #[arg(long, default_value = "0.1", value_parser = share)]
    warmup_share: f64,
    /// Turns to replay: all of a file, 2000 of a generator unless given.
    #[arg(long)]
    turns: Option<usize>,
    /// Report as JSON, with every worker's terms for the turns that change most.
    #[arg(long)]
    json: bool,
}

/// How fast, in one of its two ways.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct PaceArgs {
    /// Times the capture's own speed. 1 unless given.
    #[arg(long, value_parser = positive)]
    speed: Option<f64>,
    /// ρ of the workers' capacity without a cache.
    #[arg(long, value_parser = positive)]
    load: Option<f64>,
}

/// Replays and reports.
///
/// # Errors
/// If the capture or a settings file cannot be read, or the report cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fleet = args.fleet.load()?;
    let proposed = config::load_routing(&args.weights)?;
    let baseline = match &args.baseline {
        Some(path) => config::load_routing(path)?,
        None => fleet.routing.clone(),
    };
    let trace = args.capture.read(args.turns)?;
    let block_tokens = fleet.block_tokens(trace.block_tokens);
    let workload = Workload::new(&trace.turns, block_tokens).context("this capture cannot be played")?;
    let configs = [&baseline, &proposed].map(|routing| args.play_under(routing, &fleet, block_tokens));
    let mut progress = Progress::new(4 * workload.len() as u64, "choices");
    let report = replay(&trace, &fleet, &workload, &configs, &mut || progress.step());
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        table::text(&report)
    };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn play_under(&self, routing: &Routing, fleet: &Fleet, block_tokens: u32) -> FleetConfig {
        FleetConfig {
            workers: fleet.specs(block_tokens),
            settings: routing.settings(),
            utilisation_window: routing.utilisation_window,
            cache: self.cache,
            target: fleet.target,
            pace: match (self.pace.load, self.pace.speed) {
                (Some(load), _) => Pace::Load(load),
                (None, speed) => Pace::Speed(speed.unwrap_or(1.0)),
            },
            // The arrivals are the capture's own.
            jitter_s: 0.0,
            warm_up: self.warmup_share,
            per_turn: true,
            ..FleetConfig::uniform(1, fleet.cost, Tokens::ZERO)
        }
    }
}

/// What captured turns would get under the second settings instead of the first, on this fleet: the report of
/// `tailroute replay --json`.
///
/// # Errors
/// If they are no trace, or cannot be played.
pub fn preview(capture: &[u8], fleet: &Fleet, settings: [Settings; 2]) -> anyhow::Result<serde_json::Value> {
    let trace = Trace::of_bytes(capture)?;
    let block_tokens = fleet.block_tokens(trace.block_tokens);
    let workload = Workload::new(&trace.turns, block_tokens).context("these turns cannot be played")?;
    let configs = settings.map(|settings| FleetConfig {
        workers: fleet.specs(block_tokens),
        settings,
        utilisation_window: fleet.routing.utilisation_window,
        cache: CacheRule::Adaptive,
        target: fleet.target,
        pace: Pace::Speed(1.0),
        jitter_s: 0.0,
        warm_up: PREVIEW_WARM_UP,
        per_turn: true,
        ..FleetConfig::uniform(1, fleet.cost, Tokens::ZERO)
    });
    let report = replay(&trace, fleet, &workload, &configs, &mut || {});
    Ok(serde_json::to_value(report)?)
}

/// Plays both settings, then once more for the decisions of the turns that change most.
fn replay(
    trace: &Trace,
    fleet: &Fleet,
    workload: &Workload,
    configs: &[FleetConfig; 2],
    step: &mut dyn FnMut(),
) -> Report {
    let mut play = |config: &FleetConfig, kept: &mut Kept| -> FleetReport {
        run_observed(workload, config, &mut |choice| {
            step();
            kept.see(choice);
        })
    };
    let mut reports = configs.each_ref().map(|config| play(config, &mut Kept::none()));
    let played = [0, 1].map(|at| Played::new(&mut reports[at], &configs[at], workload.len()));
    let changes = compare::largest(&played);
    let mut kept = [Kept::of(&changes), Kept::of(&changes)];
    if !changes.is_empty() {
        for (config, kept) in configs.iter().zip(&mut kept) {
            play(config, kept);
        }
    }
    compare::report(trace, fleet, &played, &changes, &kept)
}
