//! `tailroute replay`: what would have been, under another policy or other weights.
//!
//! The capture is played twice through the fleet simulator, which runs the router's own code: once under the settings in
//! force, once under the proposed ones. Both runs see the same arrivals, so every turn has a twin to be compared with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use policy::cost::PrefillCost;
use policy::route::Settings;
use policy::simulate::fleet::{self, CacheRule, FleetConfig, FleetReport, Pace, TurnRecord, Workload};
use policy::simulate::stats::Sorted;
use policy::trace::Turn;
use policy::units::{Millis, Tokens};
use serde::Serialize;

use super::sim::{non_negative, positive};
use crate::trace_source::TraceSource;

/// Turns listed as changing most.
const CHANGES: usize = 10;

/// What a capture or trace would have got under other weights
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    tailroute replay --capture capture.jsonl.gz --weights proposed.json --workers 4 --capacity-blocks 8000 --block-tokens 16\n\n\
    A settings file is JSON: {\"policy\": \"tail\", \"kappa_max\": 10, \"weights\": {\"locality\": 0.8}}. What it leaves out has its default.")]
pub struct Args {
    /// Capture or trace, or gen:NAME:SEED.
    #[arg(long)]
    capture: TraceSource,
    /// Proposed settings, as JSON.
    #[arg(long)]
    weights: PathBuf,
    /// Settings to compare with, as JSON; the defaults unless given.
    #[arg(long)]
    baseline: Option<PathBuf>,
    /// Workers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// Blocks that each worker's cache holds.
    #[arg(long, default_value_t = 8000)]
    capacity_blocks: u64,
    /// Tokens per block. The capture's own unless given; 512 where it has none.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    block_tokens: Option<u32>,
    /// α: ms per uncached token.
    #[arg(long, default_value = "0.05", value_parser = positive)]
    alpha: f64,
    /// β: ms that every turn costs.
    #[arg(long, default_value = "0", value_parser = non_negative)]
    beta: f64,
    /// The objective's time to first token, in ms.
    #[arg(long, default_value = "1000", value_parser = positive)]
    xi_ms: f64,
    /// Times the capture's own speed.
    #[arg(long, default_value = "1", value_parser = positive)]
    speed: f64,
    /// What workers drop first.
    #[arg(long, default_value = "adaptive")]
    cache: CacheRule,
    /// Turns to replay; all of a file unless given.
    #[arg(long)]
    turns: Option<usize>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// The whole answer.
#[derive(Debug, Serialize)]
struct Report {
    baseline: FleetReport,
    proposed: FleetReport,
    classes: BTreeMap<u16, ClassReport>,
    changes: Vec<Change>,
}

#[derive(Debug, Serialize)]
struct ClassReport {
    turns: usize,
    baseline_p95_ms: f64,
    proposed_p95_ms: f64,
    baseline_mean_ms: f64,
    proposed_mean_ms: f64,
}

/// A turn, before and after.
#[derive(Debug, Serialize)]
struct Change {
    turn: u32,
    conversation: u64,
    baseline: TurnRecord,
    proposed: TurnRecord,
}

/// Replays and reports.
///
/// # Errors
/// If the capture or a settings file cannot be read, or the report cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let baseline = args
        .baseline
        .as_deref()
        .map_or(Ok(Settings::default()), settings)?;
    let proposed = settings(&args.weights)?;
    let (turns, named) = super::sim::fleet::read(&args.capture, args.turns)?;
    let block_tokens = args
        .block_tokens
        .or(named)
        .unwrap_or(super::sim::fleet::BLOCK_TOKENS);
    let workload = Workload::new(&turns, block_tokens).context("this capture cannot be played")?;
    let play = |settings| fleet::run(&workload, &args.config(settings, block_tokens));
    let report = compare(&turns, play(baseline), play(proposed));
    let text = if args.json {
        serde_json::to_string_pretty(&report)?
    } else {
        table(&report)
    };
    super::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn settings(path: &Path) -> anyhow::Result<Settings> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} holds no settings", path.display()))
}

impl Args {
    fn config(&self, settings: Settings, block_tokens: u32) -> FleetConfig {
        let capacity = Tokens(self.capacity_blocks.saturating_mul(u64::from(block_tokens)));
        let mut config = FleetConfig::uniform(
            self.workers as usize,
            PrefillCost::linear(self.alpha, self.beta),
            capacity,
        );
        config.settings = settings;
        config.cache = self.cache;
        config.target.ttft = Millis(self.xi_ms);
        config.pace = Pace::Speed(self.speed);
        config.jitter_s = 0.0;
        config.per_turn = true;
        config
    }
}

fn compare(turns: &[Turn], mut baseline: FleetReport, mut proposed: FleetReport) -> Report {
    let by_turn = |report: &mut FleetReport| -> BTreeMap<u32, TurnRecord> {
        let records = report.per_turn.take().unwrap_or_default();
        records.into_iter().map(|record| (record.turn, record)).collect()
    };
    let (before, after) = (by_turn(&mut baseline), by_turn(&mut proposed));
    let mut samples: BTreeMap<u16, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    let mut changes = Vec::new();
    for (turn, baseline) in before {
        let (Some(&proposed), Some(asked)) = (after.get(&turn), turns.get(turn as usize)) else {
            continue;
        };
        let class = samples.entry(asked.class.0).or_default();
        class.0.push(baseline.ttft_ms);
        class.1.push(proposed.ttft_ms);
        changes.push(Change {
            turn,
            conversation: asked.conversation.0,
            baseline,
            proposed,
        });
    }
    let by = |change: &Change| (change.proposed.ttft_ms - change.baseline.ttft_ms).abs();
    changes.sort_by(|a, b| by(b).total_cmp(&by(a)));
    changes.truncate(CHANGES);
    let classes = samples
        .into_iter()
        .map(|(class, (before, after))| (class, class_report(before, after)))
        .collect();
    Report {
        baseline,
        proposed,
        classes,
        changes,
    }
}

fn class_report(before: Vec<f64>, after: Vec<f64>) -> ClassReport {
    let mean = |samples: &[f64]| samples.iter().sum::<f64>() / samples.len().max(1) as f64;
    ClassReport {
        turns: before.len(),
        baseline_mean_ms: mean(&before),
        proposed_mean_ms: mean(&after),
        baseline_p95_ms: Sorted::new(before).percentile(95.0),
        proposed_p95_ms: Sorted::new(after).percentile(95.0),
    }
}

fn table(report: &Report) -> String {
    let mut text = format!("{:<28} {:>12} {:>12} {:>8}", "", "baseline", "proposed", "change");
    let (b, p) = (&report.baseline, &report.proposed);
    let rows = [
        ("p50 ms", b.p50_ms, p.p50_ms),
        ("p95 ms", b.p95_ms, p.p95_ms),
        ("p99 ms", b.p99_ms, p.p99_ms),
        ("mean ms", b.mean_ms, p.mean_ms),
        ("hits %", b.hit_ratio * 100.0, p.hit_ratio * 100.0),
        ("within objective %", b.slo_share * 100.0, p.slo_share * 100.0),
    ];
    let mut row = |name: &str, before: f64, after: f64| {
        let change = (after / before.max(1e-9) - 1.0) * 100.0;
        text += &format!("\n{name:<28} {before:>12.1} {after:>12.1} {change:>+7.1}%");
    };
    for (name, before, after) in rows {
        row(name, before, after);
    }
    for (class, r) in &report.classes {
        row(
            &format!("class {class} p95 ms"),
            r.baseline_p95_ms,
            r.proposed_p95_ms,
        );
    }
    for c in &report.changes {
        let name = format!(
            "turn {} (worker {}→{})",
            c.turn, c.baseline.worker, c.proposed.worker
        );
        row(&name, c.baseline.ttft_ms, c.proposed.ttft_ms);
    }
    text
}
