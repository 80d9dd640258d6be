//! Comparison of the simulation with the measurements, under the policy that was in force.

use policy::stats::Sorted;
use serde::Serialize;
use serde_json::json;
use simulator::side_by_side::{header, rows};
use simulator::trace_source::Trace;

use super::fleet::ReplayFleet;
use super::played::Played;

/// Largest ratio of a simulated percentile to the measured one, either way.
const FACTOR: f64 = 1.5;
/// Difference that is never too large, in milliseconds: HTTP and timers of a busy machine add as much.
const SLACK_MS: f64 = 5.0;
const FEWEST: usize = 20;

/// The measured turns, measured and simulated.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// Number of turns compared: after the warm-up, with a measured TTFT, under the policy in force.
    pub(super) turns: usize,
    pub(super) measured: TtftSummary,
    pub(super) simulated: TtftSummary,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct TtftSummary {
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) slo_share: f64,
    /// Share of prompt tokens that were cached, of turns whose worker reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hit_ratio: Option<f64>,
}

#[derive(Default)]
struct Side {
    ttft_ms: Vec<f64>,
    late: usize,
    cached: u64,
    prompt: u64,
}

impl Side {
    fn add(&mut self, ttft_ms: f64, objective_ms: f64) {
        self.ttft_ms.push(ttft_ms);
        self.late += usize::from(ttft_ms > objective_ms);
    }

    fn add_hit(&mut self, cached: u64, prompt: u64) {
        self.cached += cached.min(prompt);
        self.prompt += prompt;
    }

    fn summary(self) -> TtftSummary {
        let turns = self.ttft_ms.len().max(1) as f64;
        let sorted = Sorted::new(self.ttft_ms);
        TtftSummary {
            p50_ms: sorted.percentile(50.0),
            p95_ms: sorted.percentile(95.0),
            slo_share: 1.0 - self.late as f64 / turns,
            hit_ratio: (self.prompt > 0).then(|| self.cached as f64 / self.prompt as f64),
        }
    }
}

impl Check {
    /// Compares a play under the policy in force with the measurements. Fails with their number if they are too few.
    pub(super) fn of(trace: &Trace, fleet: &ReplayFleet, played: &Played) -> Result<Self, usize> {
        let (mut measured, mut simulated) = (Side::default(), Side::default());
        for record in played.counted() {
            let Some(turn) = trace.turns.get(record.turn as usize) else {
                continue;
            };
            let Some(ttft) = turn.captured.ttft.filter(|_| turn.ts_s >= fleet.settings_since_s) else {
                continue;
            };
            let objective = fleet.objective_of(trace, record.turn as usize).0;
            measured.add(ttft.0, objective);
            simulated.add(record.ttft_ms, objective);
            if let Some(cached) = turn.captured.cached {
                let prompt = turn.input_tokens().0;
                measured.add_hit(cached.0, prompt);
                simulated.add_hit(record.cached.0, prompt);
            }
        }
        let turns = measured.ttft_ms.len();
        if turns < FEWEST {
            return Err(turns);
        }
        Ok(Self {
            turns,
            measured: measured.summary(),
            simulated: simulated.summary(),
        })
    }

    pub(super) fn agrees(&self) -> bool {
        near(self.measured.p50_ms, self.simulated.p50_ms) && near(self.measured.p95_ms, self.simulated.p95_ms)
    }

    pub(super) fn table(&self) -> String {
        let table = rows("", &json!(self.measured), &json!(self.simulated));
        format!("{}{table}", header("measured", "simulated"))
    }

    pub(super) fn difference(&self) -> String {
        let (measured, simulated) = (&self.measured, &self.simulated);
        format!(
            "the simulation does not reproduce the captured turns: p50 {:.1} ms measured and {:.1} ms simulated, p95 {:.1} ms \
             measured and {:.1} ms simulated",
            measured.p50_ms, simulated.p50_ms, measured.p95_ms, simulated.p95_ms
        )
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= SLACK_MS || (a.max(b) <= FACTOR * a.min(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_beyond_the_limit_is_no_agreement_either_way() {
        assert!(near(100.0, 149.0) && near(149.0, 100.0));
        assert!(!near(100.0, 151.0) && !near(151.0, 100.0));
        assert!(near(1.0, 5.0), "a few milliseconds are noise");
        assert!(!near(0.0, 6.0));
    }
}
