//! `tailroute replay`: evaluates another policy or other weights on captured traffic.
//!
//! The capture is played twice through the fleet simulator, which runs the router's own code: once under the settings
//! in force, once under the proposed ones. Both runs see the same arrivals, so turns can be compared one by one. The
//! few turns that change most are then played once more to record every term of their two decisions: recording those of
//! all turns would take more memory than the trace.
//!
//! Only the workers are simulated, from their configuration; routing is the real code.

mod compare;
mod figures;
mod fleet;
mod table;
mod verdict;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use config::Routing;
use lab::simulate::fleet::{
    CacheRule, Decode, FleetConfig, FleetReport, Pace, Workload, WorkloadError, run_while,
};
use lab::simulate::stats::Sorted;
use lab::trace::Turn;
use policy::route::Settings;
use policy::units::Tokens;

use self::compare::{Kept, Played, Report};
pub use self::fleet::Fleet;
use self::fleet::FleetArgs;
use lab::args::{positive, share};
use lab::progress::Progress;
use lab::trace_file::TraceFileError;
use lab::trace_source::{Trace, TraceSource};

/// Share of captured turns, from the first, that fill the caches and are not counted.
const PREVIEW_WARM_UP: f64 = 0.2;

/// Evaluate other weights on a capture or trace
///
/// Plays it twice, with the router's own code in front of simulated workers: under the settings in force and under the
/// proposed ones. Reports both, also by traffic class, and the turns that change most with the deciding term.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute replay --capture capture.jsonl --config tailroute.toml --weights proposed.toml\n  \
    tailroute replay --capture conv.jsonl.gz --weights proposed.toml --workers 4 --capacity-blocks 8000 --load 0.8\n\n\
    A weights file is written like the configuration, its [routing] section alone (or the whole file):\n\n  \
    [routing]\n  policy = \"tail\"\n  kappa_max = 20.0\n  [routing.weights]\n  locality = 0.8\n\n\
    Missing settings have their defaults. An invalid key or value is reported with its line, and nothing is replayed.")]
pub struct Args {
    /// Capture or trace (turn trace, Mooncake or Bailian; plain or gzip), or a generator: gen:wildchat:SEED,
    /// gen:sharegpt:SEED, agents:SEED or hot:SEED.
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
    /// Eviction order of the workers' caches, by the names of `sim fleet --cache`, such as lru, tail, t-lru or belady.
    /// The default is tail where hints are enabled in the configuration, and without a configuration.
    #[arg(long)]
    cache: Option<CacheRule>,
    /// Share of turns, from the start, that fill the caches and are not counted.
    #[arg(long, default_value = "0.1", value_parser = share)]
    warmup_share: f64,
    /// Turns to replay; the default is all of a file, 2000 of a generator.
    #[arg(long)]
    turns: Option<usize>,
    /// Report as JSON, with every worker's terms for the turns that change most.
    #[arg(long)]
    json: bool,
}

/// Speed of the replay, in one of two forms.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct PaceArgs {
    /// Factor on the capture's own speed; the default is 1.
    #[arg(long, value_parser = positive)]
    speed: Option<f64>,
    /// Load as ρ: the share of the workers' capacity, without caches, that the turns take.
    #[arg(long, value_parser = positive)]
    load: Option<f64>,
}

/// Replays the capture and prints the report.
///
/// # Errors
/// Fails if the capture or a settings file cannot be read, or the report cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let fleet = args.fleet.load()?;
    let proposed = config::load_routing(&args.weights)?;
    let baseline = match &args.baseline {
        Some(path) => config::load_routing(path)?,
        None => fleet.routing.clone(),
    };
    let trace = args.capture.read(args.turns)?;
    let block_tokens = fleet.block_tokens(trace.block_tokens);
    let workload = workload(&trace, &fleet, block_tokens).context("this capture cannot be played")?;
    let configs =
        [&baseline, &proposed].map(|routing| args.play_under(routing, &fleet, &trace, block_tokens));
    let mut progress = Progress::new(4 * workload.len() as u64, "choices");
    let mut step = || {
        progress.step();
        ControlFlow::Continue(())
    };
    let report =
        replay(&trace, &fleet, &workload, &configs, &mut step).context("the replay did not finish")?;
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        table::text(&report)
    };
    lab::terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn play_under(&self, routing: &Routing, fleet: &Fleet, trace: &Trace, block_tokens: u32) -> FleetConfig {
        FleetConfig {
            workers: fleet.specs(block_tokens),
            settings: routing.settings(),
            utilisation_window: routing.utilisation_window,
            cache: self.cache.unwrap_or_else(|| fleet.cache()),
            decode: decode(trace),
            target: fleet.target,
            pace: match (self.pace.load, self.pace.speed) {
                (Some(load), _) => Pace::Load(load),
                (None, speed) => Pace::Speed(speed.unwrap_or(1.0)),
            },
            // Arrivals come from the capture without jitter.
            jitter_s: 0.0,
            warm_up: self.warmup_share,
            per_turn: true,
            ..FleetConfig::uniform(1, fleet.cost, Tokens::ZERO)
        }
    }
}

/// Converts the trace to a workload with the class and objective of each turn.
fn workload(trace: &Trace, fleet: &Fleet, block_tokens: u32) -> Result<Workload, WorkloadError> {
    let workload = Workload::new(&trace.turns, block_tokens)?;
    let classes: Vec<Arc<str>> = trace
        .classes
        .iter()
        .map(|name| Arc::from(name.as_str()))
        .collect();
    let class_of = |at: usize| {
        let class = trace.turns.get(at)?.class;
        classes.get(usize::from(class.0)).cloned()
    };
    Ok(workload
        .with_objectives(|at| Some(fleet.objective_of(trace, at)))
        .with_classes(class_of))
}

/// Estimates the decoding time per token from the streamed responses of the capture. Policies that count requests in
/// flight count decoding ones too, and the next turn follows the response.
fn decode(trace: &Trace) -> Decode {
    let per_token = |turn: &Turn| {
        let (ttft, took) = (turn.captured.ttft?, turn.captured.took?);
        let tokens = turn
            .response_tokens
            .0
            .checked_sub(1)
            .filter(|tokens| *tokens > 0)?;
        (took > ttft).then(|| (took - ttft).0 / tokens as f64)
    };
    let per_token: Vec<f64> = trace.turns.iter().filter_map(per_token).collect();
    Decode {
        ms_per_token: Sorted::new(per_token).percentile(50.0),
        ..Decode::default()
    }
}

/// Reason why there is no preview.
#[derive(Debug, thiserror::Error)]
pub enum PreviewError {
    /// The captured turns are not a valid trace.
    #[error("the captured turns cannot be read")]
    Unreadable(#[from] TraceFileError),
    /// The trace cannot be played.
    #[error("the captured turns cannot be played")]
    Unplayable(#[from] WorkloadError),
    /// The time limit was exceeded.
    #[error("it was cut off after {:.0} s", .0.as_secs_f64())]
    TooLong(Duration),
    /// The report cannot be serialised.
    #[error("the report cannot be written")]
    Unwritable(#[from] serde_json::Error),
}

/// Compares two settings on captured turns and this fleet. Returns the report of `tailroute replay --json`.
///
/// # Errors
/// Fails if the turns are not a valid trace, cannot be played, or take longer than `limit`.
pub fn preview(
    capture: &[u8],
    fleet: &Fleet,
    settings: [Settings; 2],
    limit: Duration,
) -> Result<serde_json::Value, PreviewError> {
    let until = Instant::now() + limit;
    let trace = Trace::of_bytes(capture)?;
    let block_tokens = fleet.block_tokens(trace.block_tokens);
    let workload = workload(&trace, fleet, block_tokens)?;
    let configs = settings.map(|settings| FleetConfig {
        workers: fleet.specs(block_tokens),
        settings,
        utilisation_window: fleet.routing.utilisation_window,
        cache: fleet.cache(),
        decode: decode(&trace),
        target: fleet.target,
        pace: Pace::Speed(1.0),
        jitter_s: 0.0,
        warm_up: PREVIEW_WARM_UP,
        per_turn: true,
        ..FleetConfig::uniform(1, fleet.cost, Tokens::ZERO)
    });
    let mut step = || {
        if Instant::now() < until {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let report = replay(&trace, fleet, &workload, &configs, &mut step).ok_or(PreviewError::TooLong(limit))?;
    Ok(serde_json::to_value(report)?)
}

/// Plays both settings, then once more for the decisions of the turns that change most; `None` if a `step` breaks off.
fn replay(
    trace: &Trace,
    fleet: &Fleet,
    workload: &Workload,
    configs: &[FleetConfig; 2],
    step: &mut dyn FnMut() -> ControlFlow<()>,
) -> Option<Report> {
    let mut play = |config: &FleetConfig, kept: &mut Kept| -> Option<FleetReport> {
        run_while(workload, config, &mut |choice| {
            kept.see(choice);
            step()
        })
    };
    let [before, after] = configs;
    let mut reports = [play(before, &mut Kept::none())?, play(after, &mut Kept::none())?];
    let played = [0, 1].map(|at| Played::new(&mut reports[at], &configs[at], workload.len()));
    let changes = compare::largest(&played);
    let mut kept = [Kept::of(&changes), Kept::of(&changes)];
    if !changes.is_empty() {
        for (config, kept) in configs.iter().zip(&mut kept) {
            play(config, kept)?;
        }
    }
    Some(compare::report(trace, fleet, &played, &changes, &kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_that_takes_too_long_is_cut_off() {
        let turns = (0..100).map(|at| {
            format!("{{\"ts\":{at},\"conv\":{at},\"turn\":0,\"prompt_tokens\":100,\"response_tokens\":1}}\n")
        });
        let capture: String = turns.collect();
        let fleet = FleetArgs::default().load().unwrap();
        let settings = || [Settings::default(), Settings::default()];
        let cut = preview(capture.as_bytes(), &fleet, settings(), Duration::ZERO);
        assert!(matches!(cut, Err(PreviewError::TooLong(_))), "{cut:?}");
        let whole = preview(capture.as_bytes(), &fleet, settings(), Duration::from_secs(600)).unwrap();
        assert_eq!(whole["turns"], 80, "the first fifth is not counted");
    }
}
