//! The results of a run.

use serde::Serialize;

use super::FleetConfig;
use policy::stats::{Sorted, median};
use policy::units::{Millis, Tokens};

/// The report of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetReport {
    /// Name of the routing policy.
    pub policy: String,
    /// Name of the workers' eviction policy.
    pub cache: String,
    /// Number of routers and their sharing: `3:alone`, `3:5:0.01` (ms of delay, share lost).
    pub routers: String,
    /// Turns served after the warm-up.
    pub turns: u64,
    /// Turns that were never sent, because no worker was available.
    pub unserved: u64,
    /// Median TTFT; percentiles are linearly interpolated.
    pub p50_ms: f64,
    /// 95th percentile of TTFT.
    pub p95_ms: f64,
    /// 99th percentile of TTFT.
    pub p99_ms: f64,
    /// Mean TTFT.
    pub mean_ms: f64,
    /// Σ max(TTFT − ξ_s, 0).
    pub tel_ms: f64,
    /// Share of prompt tokens that were resident.
    pub hit_ratio: f64,
    /// Share of the workers' time spent on prefill, warm-up included.
    pub utilisation: f64,
    /// Share of turns that met the objective.
    pub slo_share: f64,
    /// The turns with an objective of their own, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_objective: Option<OwnObjective>,
    /// Median of |predicted − actual| TTFT.
    pub prediction_error_ms: f64,
    /// Every turn's record, if requested, in order of first tokens, warm-up included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_turn: Option<Vec<TurnRecord>>,
}

/// Turns that have an objective of their own instead of the fleet's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OwnObjective {
    /// Turns served after the warm-up.
    pub turns: u64,
    /// Turns that missed their objective.
    pub late: u64,
    /// 95th percentile of their TTFT.
    pub p95_ms: f64,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TurnRecord {
    /// Position of the turn in the trace.
    pub turn: u32,
    /// Worker that served the turn.
    pub worker: u32,
    /// Arrival, in ms since the start of the run.
    pub arrived_ms: f64,
    /// Time to first token.
    pub ttft_ms: f64,
    /// Time to first token that was predicted when the turn was sent.
    pub predicted_ms: f64,
    /// Prompt tokens that were resident when the turn's prefill started.
    pub cached: Tokens,
    /// Prompt tokens that were computed.
    pub uncached: Tokens,
    /// Tokens at the conversation's end that the worker may evict first from now on.
    pub evict_first: Tokens,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    ttft_ms: Vec<f64>,
    errors_ms: Vec<f64>,
    /// TTFT of the turns with an objective of their own, and how many missed it.
    own_ms: Vec<f64>,
    own_late: u64,
    cached: u64,
    prompt: u64,
    records: Vec<TurnRecord>,
}

impl Tally {
    pub(super) fn count(&mut self, record: TurnRecord, own: Option<Millis>, counted: bool, keep: bool) {
        if keep {
            self.records.push(record);
        }
        if counted {
            self.ttft_ms.push(record.ttft_ms);
            if let Some(own) = own {
                self.own_ms.push(record.ttft_ms);
                self.own_late += u64::from(record.ttft_ms > own.0);
            }
            self.errors_ms.push((record.predicted_ms - record.ttft_ms).abs());
            self.cached += record.cached.0;
            self.prompt += (record.cached + record.uncached).0;
        }
    }

    pub(super) fn report(
        self,
        config: &FleetConfig,
        busy_ms: f64,
        ended: Millis,
        unserved: u64,
    ) -> FleetReport {
        let objective = config.target.ttft.0;
        let turns = self.ttft_ms.len();
        let n = turns.max(1) as f64;
        let mean_ms = self.ttft_ms.iter().sum::<f64>() / n;
        let tel_ms = self.ttft_ms.iter().map(|ttft| (ttft - objective).max(0.0)).sum();
        let own_objective = (!self.own_ms.is_empty()).then(|| OwnObjective {
            turns: self.own_ms.len() as u64,
            late: self.own_late,
            p95_ms: Sorted::new(self.own_ms).percentile(95.0),
        });
        let sorted = Sorted::new(self.ttft_ms);
        FleetReport {
            policy: config.settings.policy.to_string(),
            cache: config.cache.to_string(),
            routers: config.routers.to_string(),
            turns: turns as u64,
            unserved,
            p50_ms: sorted.percentile(50.0),
            p95_ms: sorted.percentile(95.0),
            p99_ms: sorted.percentile(99.0),
            mean_ms,
            tel_ms,
            hit_ratio: self.cached as f64 / self.prompt.max(1) as f64,
            utilisation: busy_ms / (ended.0 * config.workers.len() as f64).max(1e-9),
            slo_share: 1.0 - sorted.above(objective) as f64 / n,
            own_objective,
            prediction_error_ms: median(self.errors_ms),
            per_turn: config.per_turn.then_some(self.records),
        }
    }
}
