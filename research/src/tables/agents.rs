//! `tailroute-lab tables --agents`: coding agents ([`simulator::agentic`]) under `tail` and SGLang's rule, from a
//! nearly idle fleet to three times the load that it could serve without caches. The aim is that p95 is never above
//! that of `cache_aware`, which is played with the tree that it was published with and with tailroute's index.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context as _;
use policy::cost::PrefillCost;
use policy::route::{PolicyName, Settings};
use policy::units::{Millis, Tokens};
use serde::Serialize;
use simulator::fleet::{self, CacheRule, FleetConfig, FleetReport, Pace, View, Workload};

use super::{Seeds, pool};
use crate::sim::fleet::default_view;
use simulator::trace::BLOCK_TOKENS;
use simulator::trace_source::TraceSource;

const WORKERS: usize = 4;
/// Blocks of a worker's cache, enough for some twenty contexts.
const BLOCKS: u64 = 4000;
const COST: PrefillCost = PrefillCost::linear(0.05, 0.0);
const OBJECTIVE: Millis = Millis(1000.0);
/// Multiples of the capacity without caches.
const LOADS: [f64; 4] = [0.5, 1.0, 2.0, 3.0];
const TURNS: usize = 6000;

/// The contenders: name, policy, workers' eviction policy, and the router's view (`None` for the policy's default).
const CONTENDERS: [(&str, PolicyName, CacheRule, Option<View>); 5] = [
    ("tail", PolicyName::Tail, CacheRule::Tail, None),
    ("tail_lru", PolicyName::Tail, CacheRule::Lru, None),
    ("least_ttft", PolicyName::LeastTtft, CacheRule::Lru, None),
    ("cache_aware_tree", PolicyName::CacheAware, CacheRule::Lru, None),
    (
        "cache_aware_index",
        PolicyName::CacheAware,
        CacheRule::Lru,
        Some(View::Mirror),
    ),
];

#[derive(Debug, Serialize)]
pub(super) struct Report {
    seeds: Vec<u64>,
    turns: usize,
    workers: usize,
    blocks: u64,
    block_tokens: u32,
    objective_ms: f64,
    cells: Vec<Cell>,
    aims: Vec<Aim>,
}

#[derive(Debug, Serialize)]
struct Cell {
    load: f64,
    contenders: BTreeMap<&'static str, Vec<Figures>>,
    /// Change from each other contender to `tail`, in per cent.
    tail_against: BTreeMap<&'static str, Change>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    seed: u64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    mean_ms: f64,
    hit_ratio: f64,
    utilisation: f64,
    late_share: f64,
}

#[derive(Debug, Serialize)]
struct Change {
    p95: f64,
    p95_by_seed: Vec<f64>,
    p99: f64,
    mean: f64,
}

#[derive(Debug, Serialize)]
struct Aim {
    aim: &'static str,
    met: usize,
    of: usize,
}

fn figures(seed: u64, report: &FleetReport) -> Figures {
    Figures {
        seed,
        p50_ms: report.p50_ms,
        p95_ms: report.p95_ms,
        p99_ms: report.p99_ms,
        mean_ms: report.mean_ms,
        hit_ratio: report.hit_ratio,
        utilisation: report.utilisation,
        late_share: 1.0 - report.slo_share,
    }
}

fn config(load: f64, contender: usize, seed: u64) -> FleetConfig {
    let (_, policy, cache, view) = CONTENDERS[contender];
    let capacity = Tokens(BLOCKS * u64::from(BLOCK_TOKENS));
    let mut config = FleetConfig::uniform(WORKERS, COST, capacity);
    config.settings = Settings {
        policy,
        ..Settings::default()
    };
    config.cache = cache;
    config.view = view.unwrap_or(default_view(policy));
    config.target.ttft = OBJECTIVE;
    config.pace = Pace::Load(load);
    config.seed = seed;
    config
}

pub(super) fn measure(turns: Option<usize>, seeds: &Seeds) -> anyhow::Result<Report> {
    let turns = turns.unwrap_or(TURNS);
    let workload = |&seed: &u64| {
        let read = TraceSource::Agentic(seed).read(Some(turns))?;
        Workload::new(&read.turns, BLOCK_TOKENS).context("agents cannot be played")
    };
    let workloads = seeds.0.iter().map(workload).collect::<anyhow::Result<Vec<_>>>()?;
    let mut jobs = Vec::new();
    for load in LOADS {
        for contender in 0..CONTENDERS.len() {
            jobs.extend(
                seeds
                    .0
                    .iter()
                    .zip(&workloads)
                    .map(|(&seed, workload)| (load, contender, seed, workload)),
            );
        }
    }
    let played = pool::map(&jobs, |&(load, contender, seed, workload)| {
        figures(seed, &fleet::run(workload, &config(load, contender, seed)))
    });
    let per_load = CONTENDERS.len() * seeds.0.len();
    let cells: Vec<Cell> = LOADS
        .into_iter()
        .zip(played.chunks(per_load))
        .map(|(load, played)| cell(load, played, seeds.0.len()))
        .collect();
    Ok(Report {
        seeds: seeds.0.clone(),
        turns,
        workers: WORKERS,
        blocks: BLOCKS,
        block_tokens: BLOCK_TOKENS,
        objective_ms: OBJECTIVE.0,
        aims: aims(&cells),
        cells,
    })
}

fn cell(load: f64, played: &[Figures], seeds: usize) -> Cell {
    let names = CONTENDERS.map(|contender| contender.0);
    let contenders: BTreeMap<&'static str, Vec<Figures>> = names
        .into_iter()
        .zip(played.chunks(seeds).map(<[_]>::to_vec))
        .collect();
    let tail = contenders.get(names[0]).cloned().unwrap_or_default();
    let against = |(name, theirs): (&&'static str, &Vec<Figures>)| {
        let of_means = |of: fn(&Figures) -> f64| {
            let sum = |figures: &[Figures]| figures.iter().map(of).sum::<f64>();
            100.0 * (sum(&tail) / sum(theirs) - 1.0)
        };
        let by_seed = tail.iter().zip(theirs);
        let change = Change {
            p95: of_means(|figures| figures.p95_ms),
            p95_by_seed: by_seed
                .map(|(ours, theirs)| 100.0 * (ours.p95_ms / theirs.p95_ms - 1.0))
                .collect(),
            p99: of_means(|figures| figures.p99_ms),
            mean: of_means(|figures| figures.mean_ms),
        };
        (*name, change)
    };
    let tail_against = contenders
        .iter()
        .filter(|(name, _)| **name != names[0])
        .map(against)
        .collect();
    Cell {
        load,
        contenders,
        tail_against,
    }
}

fn aims(cells: &[Cell]) -> Vec<Aim> {
    let aim = |aim, against: &str, met: fn(&Change) -> Vec<bool>| {
        let changes = cells.iter().filter_map(|cell| cell.tail_against.get(against));
        let met: Vec<bool> = changes.flat_map(met).collect();
        Aim {
            aim,
            met: met.iter().filter(|met| **met).count(),
            of: met.len(),
        }
    };
    let mean = |change: &Change| vec![change.p95 <= 0.0];
    let each = |change: &Change| change.p95_by_seed.iter().map(|p95| *p95 <= 0.0).collect();
    vec![
        aim(
            "p95 not above cache_aware (tree): mean of the seeds, each load",
            "cache_aware_tree",
            mean,
        ),
        aim(
            "p95 not above cache_aware (tree): each seed, each load",
            "cache_aware_tree",
            each,
        ),
        aim(
            "p95 not above cache_aware (index): mean of the seeds, each load",
            "cache_aware_index",
            mean,
        ),
        aim(
            "p95 not above cache_aware (index): each seed, each load",
            "cache_aware_index",
            each,
        ),
    ]
}

pub(super) fn markdown(report: &Report) -> String {
    let seeds: Vec<_> = report.seeds.iter().map(u64::to_string).collect();
    let mut text = format!(
        "Coding agents (gen:agentic), {} turns, {} workers of {} blocks of {} tokens, objective {} ms; seeds {}: p95 TTFT in ms, means of \
         the seeds; in brackets the change of `tail` in per cent, of the means and seed by seed.\n\n| load | busy % | tail |",
        report.turns,
        report.workers,
        report.blocks,
        report.block_tokens,
        report.objective_ms,
        seeds.join(", "),
    );
    for (name, ..) in &CONTENDERS[1..] {
        let _ = write!(text, " {name} |");
    }
    text += &format!("\n|---:|---:|---:|{}\n", "---|".repeat(CONTENDERS.len() - 1));
    for cell in &report.cells {
        let mean = |name: &str, of: fn(&Figures) -> f64| {
            let figures = cell.contenders.get(name).map_or(&[][..], Vec::as_slice);
            figures.iter().map(of).sum::<f64>() / figures.len().max(1) as f64
        };
        let busy = 100.0 * mean("tail", |figures| figures.utilisation);
        let _ = write!(
            text,
            "| {} | {busy:.1} | {:.0} |",
            cell.load,
            mean("tail", |figures| figures.p95_ms)
        );
        for (name, ..) in &CONTENDERS[1..] {
            let Some(change) = cell.tail_against.get(name) else {
                continue;
            };
            let each: Vec<_> = change
                .p95_by_seed
                .iter()
                .map(|p95| format!("{p95:+.1}"))
                .collect();
            let p95 = mean(name, |figures| figures.p95_ms);
            let _ = write!(text, " {p95:.0} ({:+.1}: {}) |", change.p95, each.join(", "));
        }
        text.push('\n');
    }
    text += "\n| aim | met |\n|---|---|\n";
    for aim in &report.aims {
        let _ = writeln!(text, "| {} | {} of {} |", aim.aim, aim.met, aim.of);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_has_every_contender_seed_by_seed() {
        let report = measure(Some(80), &Seeds(vec![1, 2])).unwrap();
        assert_eq!(
            report.cells.iter().map(|cell| cell.load).collect::<Vec<_>>(),
            LOADS
        );
        for cell in &report.cells {
            assert_eq!(cell.contenders.len(), CONTENDERS.len());
            assert!(
                cell.contenders
                    .values()
                    .all(|rows| rows.iter().map(|row| row.seed).eq([1, 2]))
            );
            assert_eq!(cell.tail_against.len(), CONTENDERS.len() - 1);
        }
        assert_eq!(
            report.aims.iter().map(|aim| aim.of).collect::<Vec<_>>(),
            [4, 8, 4, 8]
        );
        assert!(markdown(&report).contains("cache_aware_tree"));
    }
}
