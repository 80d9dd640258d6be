use policy::stats::Sorted;
use serde::Serialize;
use simulator::fleet::TurnRecord;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Median TTFT in ms; percentiles are linear-interpolated.
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) mean_ms: f64,
    /// Σ max(TTFT − objective, 0), each turn by its class's objective.
    pub(super) tel_ms: f64,
    /// Share of prompt tokens that were resident.
    pub(super) hit_ratio: f64,
    pub(super) slo_share: f64,
}

impl Figures {
    pub(super) fn of(turns: &[(TurnRecord, f64)]) -> Self {
        let n = turns.len().max(1) as f64;
        let ttft = || turns.iter().map(|(record, _)| record.ttft_ms);
        let sorted = Sorted::new(ttft().collect());
        let cached: u64 = turns.iter().map(|(record, _)| record.cached.0).sum();
        let uncached: u64 = turns.iter().map(|(record, _)| record.uncached.0).sum();
        let late = |(record, objective): &(TurnRecord, f64)| (record.ttft_ms - objective).max(0.0);
        Self {
            p50_ms: sorted.percentile(50.0),
            p95_ms: sorted.percentile(95.0),
            p99_ms: sorted.percentile(99.0),
            mean_ms: ttft().sum::<f64>() / n,
            tel_ms: turns.iter().map(late).sum(),
            hit_ratio: cached as f64 / (cached + uncached).max(1) as f64,
            slo_share: 1.0 - turns.iter().filter(|turn| late(turn) > 0.0).count() as f64 / n,
        }
    }
}
