//! One cache in front of one idle worker, turn by turn: the setting of the caching papers. A turn's uncached tokens are
//! its prompt less the resident part of its history. Its time to first token is their prefill, and then the policy
//! makes room. Without a queue the figures depend on the policy alone.

use serde::Serialize;

use crate::cache::{CacheConfig, CachePolicy, Future, PolicySpec, Served};
use policy::cost::PrefillCost;
use policy::stats::Sorted;
use policy::units::{Millis, Tokens};
use simulator::trace::Turn;

/// The cost of prefill, and the settings of the report.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    pub cost: PrefillCost,
    /// ξ_s: the threshold of TEL.
    pub xi: Millis,
    /// Objective whose violations are counted.
    pub slo: Millis,
    /// Whether to keep every turn's uncached tokens.
    pub per_turn: bool,
}

/// A policy in the course of a trace.
pub struct SingleCache {
    policy: Box<dyn CachePolicy>,
    measure: Measure,
    tally: Tally,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    name: String,
    ttft_ms: Vec<f64>,
    uncached: Vec<u64>,
    sum_uncached: u64,
    sum_input: u64,
}

/// The results of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SingleReport {
    pub policy: String,
    /// Turns served.
    pub turns: u64,
    /// Prompt tokens that were computed.
    pub sum_uncached: u64,
    /// Σ max(TTFT − ξ_s, 0).
    pub tel_ms: f64,
    /// Mean TTFT.
    pub mean_ms: f64,
    /// Median TTFT; percentiles are linearly interpolated.
    pub p50_ms: f64,
    /// 90th percentile of TTFT.
    pub p90_ms: f64,
    /// 95th percentile of TTFT.
    pub p95_ms: f64,
    /// 99th percentile of TTFT.
    pub p99_ms: f64,
    /// Turns whose TTFT exceeds the objective.
    pub slo_violations: u64,
    /// Share of prompt tokens that were resident.
    pub hit_ratio: f64,
    /// Uncached tokens turn by turn, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncached: Option<Vec<u64>>,
}

impl SingleCache {
    /// Creates an empty cache under a policy.
    pub fn new(spec: &PolicySpec, config: CacheConfig, measure: Measure) -> Self {
        Self::with_policy(spec.to_string(), spec.build(config), measure)
    }

    /// Creates an empty cache under a given policy.
    pub fn with_policy(name: String, policy: Box<dyn CachePolicy>, measure: Measure) -> Self {
        Self {
            policy,
            measure,
            tally: Tally::new(name),
        }
    }

    /// Serves the next turn and returns its time to first token.
    pub fn turn(&mut self, turn: &Turn, future: Future) -> Millis {
        let input = turn.input_tokens();
        let cached = self.policy.cached(turn.conversation, turn.history_tokens);
        let loading = self.policy.load_time(turn.conversation, cached);
        self.policy.served(&served(turn, future));
        // Checking walks the whole cache, so only some turns are checked.
        let due = self.tally.turns().is_multiple_of(64);
        debug_assert!(!due || self.policy.check().is_ok(), "{:?}", self.policy.check());
        self.tally.count(&self.measure, input, cached, loading)
    }

    /// Returns the figures.
    pub fn report(self) -> SingleReport {
        self.tally.report(&self.measure)
    }
}

pub(super) fn served(turn: &Turn, future: Future) -> Served {
    Served {
        conversation: turn.conversation,
        turn: turn.turn,
        class: turn.class,
        at: turn.at(),
        prompt: turn.prompt_tokens,
        length: turn.total_tokens(),
        future,
    }
}

impl Tally {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }

    pub(super) fn turns(&self) -> usize {
        self.ttft_ms.len()
    }

    /// Counts a turn, and returns its time to first token.
    pub(super) fn count(
        &mut self,
        measure: &Measure,
        input: Tokens,
        cached: Tokens,
        loading: Millis,
    ) -> Millis {
        let uncached = input.saturating_sub(cached);
        let ttft = measure.cost.prefill(uncached, cached) + loading;
        self.ttft_ms.push(ttft.0);
        self.sum_uncached += uncached.0;
        self.sum_input += input.0;
        if measure.per_turn {
            self.uncached.push(uncached.0);
        }
        ttft
    }

    /// Returns the share of prompt tokens that were resident; 0 without prompt tokens.
    fn hit_ratio(&self) -> f64 {
        if self.sum_input == 0 {
            return 0.0;
        }
        1.0 - self.sum_uncached as f64 / self.sum_input as f64
    }

    pub(super) fn report(self, measure: &Measure) -> SingleReport {
        let hit_ratio = self.hit_ratio();
        let turns = self.ttft_ms.len();
        let xi = measure.xi.0;
        // An empty `sum` of floats is −0.
        let tel_ms = self
            .ttft_ms
            .iter()
            .map(|ttft| (ttft - xi).max(0.0))
            .fold(0.0, |sum, tel| sum + tel);
        let mean_ms = self.ttft_ms.iter().fold(0.0, |sum, ttft| sum + ttft) / turns.max(1) as f64;
        let sorted = Sorted::new(self.ttft_ms);
        SingleReport {
            policy: self.name,
            turns: turns as u64,
            sum_uncached: self.sum_uncached,
            tel_ms,
            mean_ms,
            p50_ms: sorted.percentile(50.0),
            p90_ms: sorted.percentile(90.0),
            p95_ms: sorted.percentile(95.0),
            p99_ms: sorted.percentile(99.0),
            slo_violations: sorted.above(measure.slo.0) as u64,
            hit_ratio,
            uncached: measure.per_turn.then_some(self.uncached),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_served_is_no_hit_and_no_negative_zero() {
        let measure = Measure {
            cost: PrefillCost::linear(0.1, 20.0),
            xi: Millis(100.0),
            slo: Millis(100.0),
            per_turn: false,
        };
        let config = CacheConfig::new(Tokens(10));
        let report = SingleCache::new(&PolicySpec::Lru, config, measure).report();
        assert_eq!((report.turns, report.hit_ratio), (0, 0.0));
        assert!(report.tel_ms.is_sign_positive() && report.mean_ms.is_sign_positive());
    }
}
