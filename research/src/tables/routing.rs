//! `tailroute-lab tables --routing`: the routing policies on one trace, cell by cell, and the effect of each weight.
//!
//! A cell is a fleet under a load: 4 or 8 workers, 1,000 or 8,000 blocks each, at 0.5, 0.8 or 1.1 of the capacity
//! without caches. Every contender plays every cell with the same seeds, which jitter the arrivals. A change is that of
//! the means over the seeds, with the extremes of single seeds: a percentile of one run moves by several per cent with
//! a single early choice, so single seeds, and medians of three, are not significant. `cache_aware` is played twice:
//! with the tree that it was published with, which does not follow evictions, and with tailroute's index.

mod aims;
mod grid;
mod markdown;
mod svg;

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Serialize;
use simulator::fleet::Workload;

use self::grid::{CELLS, Cell, Contender, Figures, Job, VARIANTS, WEIGHT_CELLS, play_all};
use super::Seeds;
use simulator::trace::BLOCK_TOKENS;
use simulator::trace_source::TraceSource;

pub(super) use self::markdown::markdown;
pub(super) use self::svg::svg;

/// The workload without `--trace`.
const STAND_IN: &str = "gen:agentic:1";

/// The cell with large caches and an overloaded fleet, where charging for other turns pays most.
const HARDEST: Cell = CELLS[5];

#[derive(Debug, Serialize)]
pub(super) struct Report {
    trace: String,
    generated: bool,
    turns: usize,
    block_tokens: u32,
    seeds: Vec<u64>,
    objective_ms: f64,
    cells: Vec<CellReport>,
    weights: Vec<WeightReport>,
    aims: Vec<Aim>,
}

#[derive(Debug, Serialize)]
struct CellReport {
    #[serde(flatten)]
    cell: Cell,
    contenders: BTreeMap<&'static str, Vec<Figures>>,
    tail_against: BTreeMap<&'static str, Changes>,
    priority_against: BTreeMap<&'static str, Changes>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Changes {
    p95: Spread,
    p99: Spread,
    mean: Spread,
}

/// A distribution over seeds, or over cells and seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    means: f64,
    median: f64,
    least: f64,
    most: f64,
}

#[derive(Debug, Serialize)]
struct WeightReport {
    weight: &'static str,
    value: f64,
    change: Changes,
}

#[derive(Debug, Serialize)]
struct Aim {
    aim: &'static str,
    met: usize,
    of: usize,
}

impl Spread {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let at = |at: usize| samples.get(at).copied().unwrap_or(f64::NAN);
        let median = if samples.len().is_multiple_of(2) {
            (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
        } else {
            at(middle)
        };
        Self {
            means: median,
            median,
            least: at(0),
            most: at(samples.len().wrapping_sub(1)),
        }
    }
}

impl Changes {
    fn of<'a>(pairs: impl Iterator<Item = (&'a Figures, &'a Figures)> + Clone) -> Self {
        let spread = |of: fn(&Figures) -> f64| {
            let change = |before: f64, after: f64| 100.0 * (after / before - 1.0);
            let sum = |sum: (f64, f64), (before, after)| (sum.0 + of(before), sum.1 + of(after));
            let (before, after) = pairs.clone().fold((0.0, 0.0), sum);
            Spread {
                means: change(before, after),
                ..Spread::of(pairs.clone().map(|(b, a)| change(of(b), of(a))).collect())
            }
        };
        Self {
            p95: spread(|figures| figures.p95_ms),
            p99: spread(|figures| figures.p99_ms),
            mean: spread(|figures| figures.mean_ms),
        }
    }
}

pub(super) fn measure(
    trace: Option<&(String, TraceSource)>,
    turns: Option<usize>,
    seeds: &Seeds,
) -> anyhow::Result<Report> {
    let generated = trace.is_none();
    let stand_in = || Ok::<_, anyhow::Error>((STAND_IN.to_owned(), STAND_IN.parse()?));
    let (name, source) = trace.map_or_else(stand_in, |trace| Ok(trace.clone()))?;
    let read = source.read(turns)?;
    let block_tokens = read.block_tokens.unwrap_or(BLOCK_TOKENS);
    let workload = Workload::new(&read.turns, block_tokens).context("this trace cannot be played")?;
    let turns = read.turns.len();
    drop(read);
    let jobs = jobs(seeds);
    let played = play_all(&workload, block_tokens, &jobs);
    let results: BTreeMap<Job, Figures> = jobs.into_iter().zip(played).collect();
    let cells: Vec<CellReport> = CELLS
        .iter()
        .map(|cell| cell_report(*cell, seeds, &results))
        .collect();
    Ok(Report {
        trace: name,
        generated,
        turns,
        block_tokens,
        seeds: seeds.0.clone(),
        objective_ms: grid::OBJECTIVE.0,
        aims: aims(&cells),
        weights: weights(seeds, &results),
        cells,
    })
}

fn jobs(seeds: &Seeds) -> Vec<Job> {
    let mut jobs = Vec::new();
    for &seed in &seeds.0 {
        for cell in 0..CELLS.len() {
            jobs.extend(Contender::ALL.map(|contender| Job::contest(cell, contender, seed)));
        }
        for &cell in &WEIGHT_CELLS {
            jobs.extend((0..VARIANTS.len()).map(|variant| Job::varied(cell, variant, seed)));
        }
    }
    jobs
}

fn figures(
    results: &BTreeMap<Job, Figures>,
    cell: usize,
    contender: Contender,
    seeds: &Seeds,
) -> Vec<Figures> {
    let one = |seed: &u64| results.get(&Job::contest(cell, contender, *seed)).copied();
    seeds.0.iter().filter_map(one).collect()
}

fn cell_report(cell: Cell, seeds: &Seeds, results: &BTreeMap<Job, Figures>) -> CellReport {
    let at = CELLS.iter().position(|other| *other == cell).unwrap_or_default();
    let of = |contender| figures(results, at, contender, seeds);
    let against = |ours: Contender| {
        let own = of(ours);
        let others = Contender::ALL.into_iter().filter(|contender| *contender != ours);
        let change = |contender: Contender| {
            let theirs = of(contender);
            (contender.name(), Changes::of(theirs.iter().zip(&own)))
        };
        others.map(change).collect()
    };
    CellReport {
        cell,
        tail_against: against(Contender::Tail),
        priority_against: against(Contender::TailPriority),
        contenders: Contender::ALL
            .map(|contender| (contender.name(), of(contender)))
            .into(),
    }
}

fn weights(seeds: &Seeds, results: &BTreeMap<Job, Figures>) -> Vec<WeightReport> {
    let report = |(at, variant): (usize, &grid::Variant)| {
        let mut pairs = Vec::new();
        for &cell in &WEIGHT_CELLS {
            for &seed in &seeds.0 {
                let before = results.get(&Job::contest(cell, Contender::Tail, seed));
                let after = results.get(&Job::varied(cell, at, seed));
                pairs.extend(before.copied().zip(after.copied()));
            }
        }
        WeightReport {
            weight: variant.weight,
            value: variant.value,
            change: Changes::of(pairs.iter().map(|(before, after)| (before, after))),
        }
    };
    VARIANTS.iter().enumerate().map(report).collect()
}

fn aims(cells: &[CellReport]) -> Vec<Aim> {
    let counted = |held: &aims::Held| {
        let cells = cells
            .iter()
            .filter(|cell| !held.hardest_only || cell.cell == HARDEST);
        let met: Vec<bool> = cells
            .filter_map(|cell| match held.ours {
                Contender::TailPriority => cell.priority_against.get(held.against.name()),
                _ => cell.tail_against.get(held.against.name()),
            })
            .map(held.met)
            .collect();
        Aim {
            aim: held.aim,
            met: met.iter().filter(|met| **met).count(),
            of: met.len(),
        }
    };
    aims::AIMS.iter().map(counted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_medians_between_extremes() {
        let spread = |samples: &[f64]| Spread::of(samples.to_vec());
        let odd = spread(&[3.0, -1.0, 2.0]);
        assert_eq!((odd.least, odd.median, odd.most), (-1.0, 2.0, 3.0));
        assert_eq!(spread(&[1.0, 3.0]).median, 2.0);
    }

    #[test]
    fn every_contender_has_figures_in_every_cell_and_every_weight_a_row() {
        let report = measure(None, Some(10), &Seeds(vec![1])).unwrap();
        assert!(report.generated && report.cells.len() == 12);
        for cell in &report.cells {
            assert_eq!(cell.contenders.len(), Contender::ALL.len());
            assert!(cell.contenders.values().all(|figures| figures.len() == 1));
        }
        assert_eq!(report.weights.len(), VARIANTS.len());
        let text = markdown(&report);
        assert!(
            text.contains("made up") && text.contains("| 8 / 8,000 / 1.1 |") && text.contains("`kappa_max`")
        );
        let drawn = svg(&report);
        assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n"));
        assert!(
            Contender::DRAWN
                .iter()
                .all(|contender| drawn.contains(contender.label()))
        );
    }
}
