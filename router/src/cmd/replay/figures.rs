//! The figures of many turns, before and after.

use policy::simulate::fleet::TurnRecord;
use policy::simulate::stats::Sorted;
use serde::Serialize;

/// What a set of turns got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Median TTFT in ms; percentiles are linear-interpolated.
    pub(super) p50_ms: f64,
    /// 95th percentile.
    pub(super) p95_ms: f64,
    /// 99th percentile.
    pub(super) p99_ms: f64,
    /// Mean.
    pub(super) mean_ms: f64,
    /// Σ max(TTFT − objective, 0).
    pub(super) tel_ms: f64,
    /// Share of prompt tokens that were resident.
    pub(super) hit_ratio: f64,
    /// Share of turns that met the objective.
    pub(super) slo_share: f64,
}

impl Figures {
    pub(super) fn of(records: &[TurnRecord], objective_ms: f64) -> Self {
        let n = records.len().max(1) as f64;
        let ttft = || records.iter().map(|record| record.ttft_ms);
        let sorted = Sorted::new(ttft().collect());
        let cached: u64 = records.iter().map(|record| record.cached.0).sum();
        let uncached: u64 = records.iter().map(|record| record.uncached.0).sum();
        Self {
            p50_ms: sorted.percentile(50.0),
            p95_ms: sorted.percentile(95.0),
            p99_ms: sorted.percentile(99.0),
            mean_ms: ttft().sum::<f64>() / n,
            tel_ms: ttft().map(|ttft| (ttft - objective_ms).max(0.0)).sum(),
            hit_ratio: cached as f64 / (cached + uncached).max(1) as f64,
            slo_share: 1.0 - sorted.above(objective_ms) as f64 / n,
        }
    }

    /// Name, value, and whether it is a share: the rows of a table.
    pub(super) fn rows(&self) -> [(&'static str, f64, bool); 7] {
        [
            ("p50 ms", self.p50_ms, false),
            ("p95 ms", self.p95_ms, false),
            ("p99 ms", self.p99_ms, false),
            ("mean ms", self.mean_ms, false),
            ("TEL ms", self.tel_ms, false),
            ("hits", self.hit_ratio, true),
            ("in objective", self.slo_share, true),
        ]
    }
}
