//! Whether the fleet is overloaded: the state, and the counts of the time since it began.

use policy::slo::overload::{Change, Look, Overload};
use policy::stats::upper_median;
use policy::units::Millis;
use serde::Serialize;

use crate::State;

/// Detector of overload, and the counters since overload began.
#[derive(Debug, Default)]
pub struct OverloadWatch {
    overload: Overload,
    /// Counters as of the last look.
    before: TurnCounts,
    /// Counters as of the beginning of overload.
    at_begin: TurnCounts,
    waits: Waits,
}

#[derive(Clone, Copy, Debug, Default)]
struct TurnCounts {
    within: u64,
    late: u64,
    refused: u64,
}

/// Predicted waits on the ready workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// Number of ready workers.
    pub workers_ready: usize,
    /// Number of ready workers on which the wait alone exceeds the objective.
    pub workers_over: usize,
    /// Median of the predicted waits in milliseconds.
    pub wait_ms: f64,
    /// Configured objective in milliseconds.
    pub objective_ms: f64,
}

/// Overload of the fleet, as reported by the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OverloadReport {
    /// Time at which overload began, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Predicted waits at the last look.
    #[serde(flatten)]
    pub waits: Waits,
    /// Number of late turns since overload began.
    pub late: u64,
    /// Number of turns since overload began whose first token was within their objective.
    pub within: u64,
    /// Number of requests refused for lack of room since overload began.
    pub refused: u64,
}

impl State {
    /// Observes the waits, and the outcomes since the last call. Returns whether overload began or ended, if it did.
    pub fn look_for_overload(&self) -> Option<Change> {
        let now = self.routing.clock.now();
        let live = self.routing.live();
        let waits = self.waits(now, live.objective.ttft);
        let counts = self.counts(&live.objective);
        let mut inner = self.operations.overload.lock();
        let before = std::mem::replace(&mut inner.before, counts);
        inner.waits = waits;
        let change = inner.overload.observe(&Look {
            now,
            ready: waits.workers_ready,
            over: waits.workers_over,
            within: counts.within.saturating_sub(before.within),
            late: counts.late.saturating_sub(before.late),
            refused: counts.refused.saturating_sub(before.refused),
            share: live.objective.share,
        });
        if change == Some(Change::Began) {
            inner.at_begin = counts;
        }
        change
    }

    fn counts(&self, objective: &config::Objective) -> TurnCounts {
        let named = objective.classes.iter().map(|class| class.name.as_str());
        let mut counts = TurnCounts {
            refused: self.routing.metrics.all_refused(),
            ..TurnCounts::default()
        };
        for class in ["default", config::OF_HEADER].into_iter().chain(named) {
            let (within, late) = self.routing.metrics.slo_turns(class);
            counts.within += within;
            counts.late += late;
        }
        counts
    }

    fn waits(&self, now: Millis, objective: Millis) -> Waits {
        let workers = self.routing.fleet.workers();
        let ready = workers.iter().filter(|worker| worker.is_ready());
        let waits: Vec<f64> = ready
            .map(|worker| worker.with_load(|load| load.pending.wait(now).0))
            .collect();
        Waits {
            workers_ready: waits.len(),
            workers_over: waits.iter().filter(|wait| **wait > objective.0).count(),
            wait_ms: upper_median(waits).unwrap_or_default(),
            objective_ms: objective.0,
        }
    }

    /// Returns the current overload; `None` if the fleet is not overloaded.
    #[must_use]
    pub fn overload(&self) -> Option<OverloadReport> {
        let inner = self.operations.overload.lock();
        let since = inner.overload.since()?;
        let (now, begin) = (inner.before, inner.at_begin);
        Some(OverloadReport {
            since_unix_ms: self.routing.clock.unix_ms(since) as u64,
            waits: inner.waits,
            late: now.late.saturating_sub(begin.late),
            within: now.within.saturating_sub(begin.within),
            refused: now.refused.saturating_sub(begin.refused),
        })
    }
}
