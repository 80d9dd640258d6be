//! The experiments behind the tables: every policy on the same generated turns, seed by seed.

use crate::cache::{CacheConfig, Future, PolicySpec};
use crate::simulate::future::futures;
use crate::simulate::single::{Measure, SingleCache, SingleReport};
use policy::cost::PrefillCost;
use policy::stats::Sorted;
use policy::units::{Millis, Tokens};
use serde::Serialize;
use simulator::generate::{BadWorkload, Generator, Parameters, Workload};
use simulator::trace::Turn;

/// The paper's worker, a 7B model on one A100: α in ms per token, β in ms.
const COST: PrefillCost = PrefillCost::linear(0.1027, 23.07);

/// The objective whose violations tables 3 and 6 count.
const SLO: Millis = Millis(200.0);

/// A workload, with the paper's Q̂ for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Setting {
    Wildchat,
    Sharegpt,
}

impl Setting {
    fn workload(self, seed: u64) -> Workload {
        match self {
            Self::Wildchat => Workload {
                name: "wildchat",
                seed,
                parameters: Parameters::WILDCHAT,
            },
            Self::Sharegpt => Workload {
                name: "sharegpt",
                seed,
                parameters: Parameters::SHAREGPT,
            },
        }
    }

    pub(super) fn next_prompt(self) -> Tokens {
        match self {
            Self::Wildchat => Tokens(200),
            Self::Sharegpt => Tokens(100),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Baseline {
    Lru,
    ThresholdLru,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Figure {
    P90,
    P95,
    P99,
    Violations,
}

impl Figure {
    fn of(self, report: &SingleReport) -> f64 {
        match self {
            Self::P90 => report.p90_ms,
            Self::P95 => report.p95_ms,
            Self::P99 => report.p99_ms,
            Self::Violations => report.slo_violations as f64,
        }
    }
}

/// A column of a table: an improvement in per cent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Column {
    pub(super) xi_ms: f64,
    pub(super) against: Baseline,
    pub(super) figure: Figure,
}

/// A table of the paper: its quantity and its printed figures, rows by capacity.
#[derive(Clone, Debug)]
pub(super) struct PaperTable {
    pub(super) number: u32,
    pub(super) title: &'static str,
    pub(super) setting: Setting,
    pub(super) columns: Vec<Column>,
    pub(super) printed: [&'static [f64]; 6],
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Cell {
    pub(super) ours: f64,
    pub(super) spread: f64,
    pub(super) printed: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Extent {
    pub(super) seeds: u64,
    pub(super) turns: usize,
}

pub(super) fn turns(setting: Setting, seed: u64, count: usize) -> Result<Vec<(Turn, Future)>, BadWorkload> {
    let turns: Vec<Turn> = Generator::new(&setting.workload(seed))?.take(count).collect();
    let told: Vec<_> = turns
        .iter()
        .map(|turn| (turn.conversation, turn.prompt_tokens))
        .collect();
    Ok(turns.into_iter().zip(futures(&told)).collect())
}

fn cache(setting: Setting, spec: &PolicySpec, capacity: u64, xi_ms: f64) -> SingleCache {
    let config = CacheConfig {
        xi_tokens: COST.tokens_within(Millis(xi_ms), Tokens::ZERO),
        next_prompt: setting.next_prompt(),
        ..CacheConfig::new(Tokens(capacity))
    };
    let measure = Measure {
        cost: COST,
        xi: Millis(xi_ms),
        slo: SLO,
        per_turn: false,
    };
    SingleCache::new(spec, config, measure)
}

pub(super) fn report(
    setting: Setting,
    turns: &[(Turn, Future)],
    spec: &PolicySpec,
    capacity: u64,
    xi_ms: f64,
) -> SingleReport {
    let mut cache = cache(setting, spec, capacity, xi_ms);
    turns
        .iter()
        .for_each(|(turn, future)| _ = cache.turn(turn, *future));
    cache.report()
}

pub(super) fn cells(
    table: &PaperTable,
    capacities: &[u64],
    extent: Extent,
) -> Result<Vec<Vec<Cell>>, BadWorkload> {
    let traces: Vec<_> = (1..=extent.seeds)
        .map(|seed| turns(table.setting, seed, extent.turns))
        .collect::<Result<_, _>>()?;
    let row = |(capacity, printed): (&u64, &&[f64])| {
        let mut samples = vec![Vec::new(); table.columns.len()];
        for trace in &traces {
            let run = |spec, xi_ms| report(table.setting, trace, &spec, *capacity, xi_ms);
            // The baselines do not depend on the threshold.
            let lru = run(PolicySpec::Lru, 0.0);
            let threshold = run(PolicySpec::ThresholdLru(Tokens(1024)), 0.0);
            for (column, samples) in table.columns.iter().zip(&mut samples) {
                let base = match column.against {
                    Baseline::Lru => &lru,
                    Baseline::ThresholdLru => &threshold,
                };
                let tail = run(PolicySpec::TLru, column.xi_ms);
                samples.push(improvement(column.figure.of(base), column.figure.of(&tail)));
            }
        }
        let cell = |(samples, printed): (Vec<f64>, &f64)| {
            let (ours, spread) = mean_and_spread(&samples);
            Cell {
                ours,
                spread,
                printed: *printed,
            }
        };
        samples.into_iter().zip(printed.iter()).map(cell).collect()
    };
    Ok(capacities.iter().zip(&table.printed).map(row).collect())
}

fn improvement(base: f64, tail: f64) -> f64 {
    if base > 0.0 {
        100.0 * (1.0 - tail / base)
    } else {
        0.0
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct QueueRow {
    pub(super) utilisation: f64,
    /// Change of the 95th percentile of TTFT, waiting included, in per cent; positive is worse.
    pub(super) p95_change: f64,
    pub(super) spread: f64,
    pub(super) t_lru_utilisation: f64,
}

/// Returns the queueing table: WildChat, C = 10,000, ξ_s = 150 ms, with time scaled to each utilisation under LRU.
pub(super) fn queueing(utilisations: &[f64], extent: Extent) -> Result<Vec<QueueRow>, BadWorkload> {
    let traces: Vec<_> = (1..=extent.seeds)
        .map(|seed| turns(Setting::Wildchat, seed, extent.turns))
        .collect::<Result<_, _>>()?;
    let prefills: Vec<[Vec<f64>; 2]> = traces
        .iter()
        .map(|trace| {
            [PolicySpec::Lru, PolicySpec::TLru].map(|spec| {
                let mut cache = cache(Setting::Wildchat, &spec, 10_000, 150.0);
                trace
                    .iter()
                    .map(|(turn, future)| cache.turn(turn, *future).0)
                    .collect()
            })
        })
        .collect();
    let row = |&utilisation: &f64| {
        let (mut changes, mut busy) = (Vec::new(), Vec::new());
        for (trace, [lru, tail]) in traces.iter().zip(&prefills) {
            let span_ms = trace.last().map_or(1.0, |(turn, _)| turn.at().0).max(1.0);
            let scale = lru.iter().sum::<f64>() / (utilisation * span_ms);
            let arrivals: Vec<f64> = trace.iter().map(|(turn, _)| turn.at().0 * scale).collect();
            let p95 = |prefill: &[f64]| Sorted::new(fifo(&arrivals, prefill)).percentile(95.0);
            changes.push(100.0 * (p95(tail) / p95(lru) - 1.0));
            busy.push(tail.iter().sum::<f64>() / (span_ms * scale));
        }
        let ((p95_change, spread), (t_lru_utilisation, _)) =
            (mean_and_spread(&changes), mean_and_spread(&busy));
        QueueRow {
            utilisation,
            p95_change,
            spread,
            t_lru_utilisation,
        }
    };
    Ok(utilisations.iter().map(row).collect())
}

/// Returns the mean and the sample standard deviation; the latter is 0 for fewer than two samples.
fn mean_and_spread(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    if samples.is_empty() {
        return (0.0, 0.0);
    }
    let mean = samples.iter().sum::<f64>() / n;
    if samples.len() < 2 {
        return (mean, 0.0);
    }
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

fn fifo(arrivals_ms: &[f64], prefill_ms: &[f64]) -> Vec<f64> {
    let mut free_at = 0.0f64;
    let serve = |(arrival, prefill): (&f64, &f64)| {
        free_at = free_at.max(*arrival) + prefill;
        free_at - arrival
    };
    arrivals_ms.iter().zip(prefill_ms).map(serve).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_the_sample_deviation() {
        assert_eq!(mean_and_spread(&[1.0, 3.0]), (2.0, 2.0f64.sqrt()));
        assert_eq!(mean_and_spread(&[7.0]), (7.0, 0.0));
    }

    #[test]
    fn a_fifo_server_makes_turns_wait_for_those_before() {
        assert_eq!(fifo(&[0.0, 1.0, 100.0], &[10.0, 10.0, 10.0]), [10.0, 19.0, 10.0]);
    }

    #[test]
    fn an_idle_server_shows_the_gain_and_a_busy_one_the_price() {
        let rows = queueing(
            &[0.005, 0.8],
            Extent {
                seeds: 2,
                turns: 2000,
            },
        )
        .unwrap();
        assert!(
            rows[0].p95_change < -5.0 && rows[1].p95_change > rows[0].p95_change,
            "{rows:?}"
        );
        assert!(rows[1].t_lru_utilisation > 0.8);
    }
}
