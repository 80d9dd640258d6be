//! `tailroute tables --tel`: adaptive ξ against the best fixed ξ in hindsight, and after α doubles.
//!
//! Five generated workloads and a trace, each through one nearly idle worker whose cache is either tight or roomy. What is
//! measured is TEL, the time by which turns exceed the objective. *Fixed* is T-LRU with the same ξ from the first turn to
//! the last, of which the best is taken afterwards, seed by seed; ξ is varied so that the free tail is 0 (LRU) to 2 times
//! what the objective says. *Adaptive* knows nothing beforehand and pays for finding out.
//!
//! **α doubles** half way: from then on the worker takes twice as long for everything, and nobody says so. Beside it runs
//! one that has been as slow from the first turn. The controller has settled after n turns if from there on every 200
//! turns' excess is within a tenth of what they have on the other.

mod markdown;
mod setting;
mod settle;
mod shift;

use policy::ids::WorkerId;
use policy::simulate::fleet::{self, CacheRule, Fault, FaultKind, FleetConfig, FleetReport, Workload};
use serde::Serialize;

pub(super) use self::markdown::markdown;
use self::setting::{LOAD, Named, SETTINGS, Setting};
use super::{Seeds, pool};
use crate::trace_source::TraceSource;

/// Multiples of the objective's free tail that a fixed ξ leaves: 0, 0.1, … 2.
const FIXED: u32 = 20;
/// The two sizes of a workload's cache.
const CACHES: [&str; 2] = ["tight", "roomy"];
/// How far above the best fixed ξ the adaptive one may be, in per cent.
const BAND: f64 = 5.0;
/// Turns within which it has to settle.
const SETTLES_WITHIN: usize = 200;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The trace, as named on the command line.
    trace: Option<String>,
    seeds: Vec<u64>,
    /// Share of the worker's time that the trace would take without a cache.
    load: f64,
    cells: Vec<Cell>,
    shifts: Vec<shift::Shift>,
    aims: Vec<Aim>,
}

/// A workload through a cache.
#[derive(Debug, Serialize)]
struct Cell {
    #[serde(flatten)]
    setting: Named,
    cache: &'static str,
    rows: Vec<Row>,
    /// TEL summed over the seeds: adaptive above best fixed, in per cent.
    above_best_percent: f64,
}

/// One seed.
#[derive(Clone, Debug, Serialize)]
struct Row {
    seed: u64,
    turns: u64,
    lru: Figures,
    best_fixed: Figures,
    /// The multiple of the objective's free tail that it leaves.
    best_scale: f64,
    adaptive: Figures,
    /// TEL of the adaptive ξ above that of the best fixed one, in per cent.
    above_best_percent: f64,
    /// What the controller gave away at the end.
    scale_at_end: f64,
    /// How often it changed its mind.
    changes: u64,
    doubled: settle::Settled,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figures {
    tel_ms: f64,
    mean_ms: f64,
    p95_ms: f64,
    late_share: f64,
}

/// What was aimed at, and in how many cells, or seeds of cells, it is met.
#[derive(Debug, Serialize)]
struct Aim {
    aim: &'static str,
    met: usize,
    of: usize,
}

impl From<&FleetReport> for Figures {
    fn from(report: &FleetReport) -> Self {
        Self {
            tel_ms: report.tel_ms,
            mean_ms: report.mean_ms,
            p95_ms: report.p95_ms,
            late_share: 1.0 - report.slo_share,
        }
    }
}

/// One run of a workload.
#[derive(Clone, Copy, Debug)]
struct Job {
    workload: usize,
    setting: &'static Setting,
    capacity: u64,
    seed: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Fixed(u32),
    Adaptive,
    /// Half way it takes twice as long.
    Doubles,
    /// It takes twice as long from the first turn.
    Doubled,
}

/// The runs of one seed of one cell, in this order.
fn whats() -> impl Iterator<Item = What> {
    (0..=FIXED)
        .map(What::Fixed)
        .chain([What::Adaptive, What::Doubles, What::Doubled])
}

impl Job {
    fn config(&self) -> FleetConfig {
        let config = |cache, slowness| self.setting.config(self.capacity, self.seed, cache, slowness);
        match self.what {
            What::Fixed(tenths) => config(self.setting.fixed(f64::from(tenths) / 10.0), 1.0),
            What::Adaptive => config(CacheRule::Adaptive, 1.0),
            What::Doubles => FleetConfig {
                per_turn: true,
                faults: vec![Fault {
                    worker: WorkerId(0),
                    at: 0.5,
                    kind: FaultKind::Slow(2.0),
                }],
                ..config(CacheRule::Adaptive, 1.0)
            },
            What::Doubled => FleetConfig {
                per_turn: true,
                ..config(CacheRule::Adaptive, 2.0)
            },
        }
    }
}

/// Plays everything; without a trace, the generated workloads.
pub(super) fn measure(
    trace: Option<&(String, TraceSource)>,
    turns: Option<usize>,
    seeds: &Seeds,
) -> anyhow::Result<Report> {
    let settings = SETTINGS
        .iter()
        .filter(|setting| trace.is_some() || !setting.is_trace());
    let source = trace.map(|trace| &trace.1);
    let (mut workloads, mut jobs) = (Vec::new(), Vec::new());
    for setting in settings.clone() {
        // A trace is the same for every seed; the seed jitters its arrivals.
        for (at, &seed) in seeds.0.iter().enumerate() {
            if at == 0 || !setting.is_trace() {
                workloads.push(setting.workload(source, seed, turns)?);
            }
            for capacity in setting.capacities {
                jobs.extend(whats().map(|what| Job {
                    workload: workloads.len() - 1,
                    setting,
                    capacity,
                    seed,
                    what,
                }));
            }
        }
    }
    let reports = pool::map(&jobs, |job| play(&workloads, job));
    let rows: Vec<(&Job, Row)> = jobs
        .chunks(whats().count())
        .zip(reports.chunks(whats().count()))
        .filter_map(|(jobs, reports)| Some((jobs.first()?, row(jobs.first()?, reports)?)))
        .collect();
    let cells: Vec<Cell> = settings.flat_map(|setting| cells(setting, &rows)).collect();
    let shifts = shift::measure(turns, seeds)?;
    Ok(Report {
        trace: trace.map(|trace| trace.0.clone()),
        seeds: seeds.0.clone(),
        load: LOAD,
        aims: aims(&cells, &shifts),
        cells,
        shifts,
    })
}

fn play(workloads: &[Workload], job: &Job) -> Option<FleetReport> {
    let workload = workloads.get(job.workload)?;
    Some(fleet::run(workload, &job.config()))
}

fn cells(setting: &'static Setting, rows: &[(&Job, Row)]) -> Vec<Cell> {
    let cell = |(capacity, cache): (u64, &'static str)| {
        let here = |job: &Job| job.setting.name == setting.name && job.capacity == capacity;
        let rows: Vec<Row> = rows
            .iter()
            .filter(|(job, _)| here(job))
            .map(|(_, row)| row.clone())
            .collect();
        let sum = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>();
        Cell {
            setting: setting.named(capacity),
            cache,
            above_best_percent: above(sum(|row| row.adaptive.tel_ms), sum(|row| row.best_fixed.tel_ms)),
            rows,
        }
    };
    setting.capacities.into_iter().zip(CACHES).map(cell).collect()
}

/// Out of a seed's runs, in the order of [`whats`].
fn row(job: &Job, reports: &[Option<FleetReport>]) -> Option<Row> {
    let reports: Vec<&FleetReport> = reports.iter().flatten().collect();
    let (fixed, [adaptive, doubles, doubled]) = reports.split_last_chunk::<3>()?;
    let (tenths, best) = fixed
        .iter()
        .enumerate()
        .min_by(|(_, a), (_, b)| a.tel_ms.total_cmp(&b.tel_ms))?;
    let controller = adaptive.controller.as_ref()?;
    let changed = settle::half_way(doubles);
    Some(Row {
        seed: job.seed,
        turns: adaptive.turns,
        lru: Figures::from(*fixed.first()?),
        best_fixed: Figures::from(*best),
        best_scale: tenths as f64 / 10.0,
        adaptive: Figures::from(*adaptive),
        above_best_percent: above(adaptive.tel_ms, best.tel_ms),
        scale_at_end: controller.arms.get(controller.current)?.scale,
        changes: controller.changes,
        doubled: settle::compare(doubles, doubled, job.config().target.ttft, |record| {
            record.arrived_ms >= changed
        }),
    })
}

/// By how many per cent one figure is above another; of nothing, anything is.
fn above(figure: f64, base: f64) -> f64 {
    if figure <= base {
        return if base > 0.0 {
            100.0 * (figure / base - 1.0)
        } else {
            0.0
        };
    }
    100.0 * (figure / base.max(1e-9) - 1.0)
}

fn aims(cells: &[Cell], shifts: &[shift::Shift]) -> Vec<Aim> {
    let count = |aim, met: Vec<bool>| Aim {
        aim,
        met: met.iter().filter(|met| **met).count(),
        of: met.len(),
    };
    let rows = || cells.iter().flat_map(|cell| &cell.rows);
    let shifted = || {
        shifts
            .iter()
            .flat_map(|shift| &shift.rows)
            .map(|row| &row.settled)
    };
    let soon = |settled: &settle::Settled| settled.settled_after.is_some_and(|turns| turns <= SETTLES_WITHIN);
    let near = |settled: &settle::Settled| settled.later_above_percent <= BAND;
    vec![
        count(
            "TEL at most 5 % above the best fixed ξ: cells, over their seeds",
            cells.iter().map(|cell| cell.above_best_percent <= BAND).collect(),
        ),
        count(
            "TEL at most 5 % above the best fixed ξ: every seed",
            rows().map(|row| row.above_best_percent <= BAND).collect(),
        ),
        count(
            "settled within 200 turns after α doubles: every seed",
            rows().map(|row| soon(&row.doubled)).collect(),
        ),
        count(
            "from the 200th turn on at most 5 % above the twin: every seed",
            rows().map(|row| near(&row.doubled)).collect(),
        ),
        count(
            "settled within 200 turns after the traffic changes: every seed",
            shifted().map(soon).collect(),
        ),
        count(
            "from the 200th turn after that on at most 5 % above the twin: every seed",
            shifted().map(near).collect(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_is_no_number_gone_wrong() {
        assert_eq!(above(0.0, 0.0), 0.0);
        assert_eq!(above(0.0, 5.0), -100.0);
        assert!((above(105.0, 100.0) - 5.0).abs() < 1e-9);
        assert!(above(1.0, 0.0) > BAND);
    }

    #[test]
    fn every_generated_workload_has_two_cells_with_a_row_per_seed() {
        let report = measure(None, Some(60), &Seeds(vec![1, 2])).unwrap();
        assert_eq!(report.cells.len(), 10);
        for cell in &report.cells {
            assert_eq!(cell.rows.iter().map(|row| row.seed).collect::<Vec<_>>(), [1, 2]);
            let best = |row: &Row| row.best_fixed.tel_ms <= row.lru.tel_ms;
            assert!(cell.rows.iter().all(best));
        }
        assert_eq!(
            report.aims.iter().map(|aim| aim.of).collect::<Vec<_>>(),
            [10, 20, 20, 20, 20, 20]
        );
        assert!(report.shifts.len() == 10 && report.shifts.iter().all(|shift| shift.rows.len() == 2));
        let text = markdown(&report);
        assert!(text.contains("| documents, roomy |") && text.contains("no trace was given"));
    }
}
