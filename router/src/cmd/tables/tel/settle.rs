//! How soon the controller is where it belongs after the worker's speed, or its traffic, changed.
//!
//! Where it belongs is where a twin is that has known nothing else: same turns, same arrivals. Turn by turn the two are
//! the same but for what each cache holds, so their excess can be compared over as few turns as a couple of hundred, which
//! that of two stretches of one run cannot.

use std::collections::BTreeMap;

use policy::simulate::fleet::{FleetReport, TurnRecord};
use policy::units::Millis;
use serde::Serialize;

/// Turns that are compared at a time.
const WINDOW: usize = 200;
/// Between two windows' beginnings.
const STEP: usize = 25;
/// How far above its twin's a window's excess may be.
const WITHIN: f64 = 0.1;

/// After the change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Settled {
    /// Turns after the change.
    turns: usize,
    /// Turns until every later window's excess is within a tenth of the twin's; `None` if the last one's is not.
    pub(super) settled_after: Option<usize>,
    /// Excess over the 200 turns after the change, above the twin's, in per cent.
    pub(super) first_above_percent: f64,
    /// Excess from the 200th turn to the end, above the twin's, in per cent.
    pub(super) later_above_percent: f64,
}

/// A run beside its twin, from the first turn that `after` says comes after the change.
pub(super) fn compare(
    run: &FleetReport,
    twin: &FleetReport,
    objective: Millis,
    after: impl Fn(&TurnRecord) -> bool,
) -> Settled {
    let excess = |record: &TurnRecord| (record.ttft_ms - objective.0).max(0.0);
    let records = |report: &FleetReport| report.per_turn.clone().unwrap_or_default();
    let (run, twin) = (records(run), records(twin));
    let twin: BTreeMap<u32, f64> = twin.iter().map(|record| (record.turn, excess(record))).collect();
    let pairs: Vec<(f64, f64)> = run
        .iter()
        .filter(|record| after(record))
        .filter_map(|record| Some((excess(record), *twin.get(&record.turn)?)))
        .collect();
    settled(&pairs)
}

/// The moment half way through a run.
pub(super) fn half_way(report: &FleetReport) -> f64 {
    let arrivals = report.per_turn.iter().flatten().map(|record| record.arrived_ms);
    arrivals.fold(0.0, f64::max) / 2.0
}

/// Pairs of excess: the run's and its twin's.
fn settled(pairs: &[(f64, f64)]) -> Settled {
    let above = |pairs: &[(f64, f64)]| {
        let sum = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
        super::above(sum(|pair| pair.0), sum(|pair| pair.1))
    };
    let last = pairs.len().saturating_sub(WINDOW);
    let mut settled_after = None;
    for start in (0..=last / STEP).rev().map(|at| at * STEP) {
        let window = pairs.get(start..).unwrap_or_default();
        let window = window.get(..WINDOW).unwrap_or(window);
        if above(window) > 100.0 * WITHIN {
            break;
        }
        settled_after = Some(start);
    }
    let (first, later) = pairs.split_at(pairs.len().min(WINDOW));
    Settled {
        turns: pairs.len(),
        settled_after,
        first_above_percent: above(first),
        later_above_percent: above(later),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_settled_where_no_later_window_stands_out() {
        let pairs = |worse: usize| -> Vec<(f64, f64)> {
            (0..1000)
                .map(|at| (if at < worse { 200.0 } else { 104.0 }, 100.0))
                .collect()
        };
        assert_eq!(settled(&pairs(0)).settled_after, Some(0));
        // A window with a dozen of the worse ones is within a tenth of the twin's; windows begin every 25 turns.
        assert_eq!(settled(&pairs(137)).settled_after, Some(125));
        assert_eq!(settled(&pairs(1000)).settled_after, None);
        assert!((settled(&pairs(0)).later_above_percent - 4.0).abs() < 1e-9);
        assert!((settled(&pairs(200)).first_above_percent - 100.0).abs() < 1e-9);
    }

    #[test]
    fn of_nothing_nothing_is_unsettled() {
        assert_eq!(settled(&[]).settled_after, Some(0));
    }
}
