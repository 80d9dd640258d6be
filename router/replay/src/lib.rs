//! `tailroute replay`: evaluates another policy or other weights on captured traffic.
//!
//! The capture is played through the fleet simulator, which runs the router's own code, under the settings in force and
//! under the proposed ones. Both plays see the same arrivals, so turns can be compared. The few that change most are
//! played again to record all terms of their decisions; those of all turns would take more memory than the trace.
//!
//! Only the workers are simulated. Their costs are those that the capture recorded, unless the configuration has a
//! calibration. The play under the policy in force is compared with what was measured ([`check`]); if the two differ
//! too much, nothing is reported of the proposed settings.

mod check;
mod compare;
mod costs;
mod figures;
mod fleet;
mod played;
mod plays;
mod preview;
mod table;
#[cfg(test)]
mod tests;
mod verdict;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use policy::hint_rule::HintRule;
use policy::route::Settings;
use policy::units::Millis;
use simulator::args::{positive, share};
use simulator::fleet::{CacheRule, FleetConfig, Pace};
use simulator::progress::Progress;
use simulator::trace_source::TraceSource;

use self::compare::ReplayReport;
pub use self::fleet::ReplayFleet;
use self::fleet::{FleetArgs, Tried};
use self::plays::{Plays, Stopped, workload};
pub use self::preview::{PreviewError, preview};

/// Evaluate other weights on a capture
///
/// Plays a capture or a trace, with the router's own code in front of simulated workers: under the settings in force
/// and under the proposed ones. Prints the measured figures beside the simulated ones, then both plays, also by traffic
/// class, and the turns that change most with the deciding term. Exit code 1: the simulation does not reproduce the
/// measured p50 and p95 within a factor of 1.5.
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
    /// Proposed settings. Without them, only the simulation is compared with what was measured.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Settings to compare with; the default is the captured ones, else those of the configuration, else the defaults.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    pace: PaceArgs,
    /// Eviction order of the workers' caches: lru, t-lru[:TOKENS], tail, adaptive-t-lru, both, threshold-lru[:TOKENS],
    /// end-lru or length-aware. The default is that of the captured or configured rule of hints, or lru if the captured
    /// workers follow none.
    #[arg(long)]
    cache: Option<CacheRule>,
    /// Proposed rule of hints: queue-aware, t-lru, both or off.
    #[arg(long)]
    hint_rule: Option<HintRule>,
    /// Share of turns, from the start, that fill the caches and are not counted.
    #[arg(long, default_value = "0.1", value_parser = share)]
    warmup_share: f64,
    /// Turns to replay; the default is all of a file, 2000 of a generator.
    #[arg(long)]
    turns: Option<usize>,
    /// Report even if the simulation does not reproduce what was measured, as for workers that are yet to be bought.
    #[arg(long)]
    anyway: bool,
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

/// Replays the capture and prints the report. Fails if the capture or a settings file cannot be read, the simulation
/// does not reproduce what was measured, or the report cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = evaluate(args)?;
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        table::text(&report)
    };
    simulator::terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn evaluate(args: &Args) -> anyhow::Result<ReplayReport> {
    let routing = |path: &Option<PathBuf>| -> anyhow::Result<Option<(Settings, Millis)>> {
        let routing = path.as_ref().map(|path| config::load_routing(path)).transpose()?;
        Ok(routing.map(|routing| (routing.settings(), routing.utilisation_window)))
    };
    let config = args.fleet.config()?;
    let (baseline, proposed) = (routing(&args.baseline)?, routing(&args.weights)?);
    let trace = args.capture.read(args.turns)?;
    let fleet = args.fleet.fleet(config, &trace);
    let in_force = Tried {
        cache: args.cache.unwrap_or(fleet.in_force().cache),
        ..fleet.in_force()
    };
    let under = |routing: Option<(Settings, Millis)>, otherwise: &Tried| match routing {
        None => otherwise.clone(),
        Some((settings, utilisation_window)) => Tried {
            settings,
            utilisation_window,
            cache: otherwise.cache,
        },
    };
    let baseline = under(baseline, &in_force);
    let mut proposed = under(proposed, &baseline);
    if let Some(rule) = args.hint_rule {
        proposed.cache = fleet.cache_under(rule);
    }
    let base = args.base(&fleet);
    let workload = workload(&trace, &fleet).context("this capture cannot be played")?;
    let mut progress = Progress::new(5 * workload.len() as u64, "choices");
    let mut step = || {
        progress.step();
        ControlFlow::Continue(())
    };
    let plays = Plays::new(&trace, &fleet, &workload, base);
    let must_agree = fleet.is_of_capture() && !args.anyway;
    match plays.report([in_force, baseline, proposed], must_agree, &mut step) {
        Ok(report) => Ok(report),
        Err(Stopped::Unlike(check)) => {
            let remedy = table::remedy(&fleet.workers);
            let (difference, table) = (check.difference(), check.table());
            let costs = costs::summary(&fleet.workers);
            bail!("{difference}\n\n{table}\n\ncosts: {costs}\n{remedy} `--anyway` reports regardless.")
        }
        Err(Stopped::Interrupted) => bail!("the replay did not finish"),
    }
}

impl Args {
    fn base(&self, fleet: &ReplayFleet) -> FleetConfig {
        FleetConfig {
            pace: match (self.pace.load, self.pace.speed) {
                (Some(load), _) => Pace::Load(load),
                (None, speed) => Pace::Speed(speed.unwrap_or(1.0)),
            },
            warm_up: self.warmup_share,
            ..plays::base(fleet)
        }
    }
}
