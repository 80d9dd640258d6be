//! The workers, objective and settings of a router at one moment, as a line of a capture that a replay simulates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cost::PrefillCost;
use crate::hint_rule::HintRule;
use crate::route::Settings;
use crate::units::{Millis, Tokens};

/// Prompt by which two costs are compared: uncached tokens, and the cached tokens before them.
const TYPICAL: (Tokens, Tokens) = (Tokens(1000), Tokens(4000));
const MATERIAL: f64 = 0.05;

/// A fleet as a router knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetRecord {
    /// Time of the record in seconds, on the clock of the captured turns.
    pub at_s: f64,
    /// Time since which `settings` are in force, on the same clock.
    pub settings_since_s: f64,
    /// Policy and weights.
    pub settings: Settings,
    /// Window over which utilisation is measured.
    pub utilisation_window_ms: Millis,
    /// Objective of turns without a class of their own.
    pub objective_ms: Millis,
    /// Share of turns that have to meet it.
    pub objective_share: f64,
    /// Q̂: expected tokens that a conversation's next prompt adds.
    pub next_prompt_tokens: Tokens,
    /// Whether most workers follow hints.
    pub follows_hints: bool,
    /// Rule of the hints.
    #[serde(default)]
    pub hint_rule: HintRule,
    /// All workers of the fleet.
    pub workers: Vec<WorkerRecord>,
}

/// A worker as a router knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// The worker's name.
    pub name: String,
    /// Prefill cost in force.
    #[serde(flatten)]
    pub cost: PrefillCost,
    /// Time to first token beside queue and prefill.
    pub overhead_ms: Millis,
    /// Source of the prefill cost.
    pub cost_source: CostSource,
    /// Tokens that fit into the worker's cache.
    pub capacity_tokens: Tokens,
    /// Source of the capacity.
    pub capacity_source: CapacitySource,
}

/// Source of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// A calibration that was sent to the running router.
    Calibrated,
    /// The configuration: a calibration file, or coefficients.
    Configured,
    /// Responses.
    Learned,
    /// The median of the other workers.
    Fleet,
    /// The default.
    Default,
}

/// Source of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapacitySource {
    /// `capacity_tokens` of the configuration.
    Configured,
    /// The worker.
    Reported,
    /// Responses, which have changed the initial value.
    Learned,
    /// The initial value: no response has shown the size so far.
    Assumed,
}

impl FleetRecord {
    /// Returns the name of the first field whose value no fleet can have.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        let positive = |number: f64| number > 0.0 && number < 1e12;
        let not_negative = |number: f64| (0.0..1e12).contains(&number);
        let of_worker = |worker: &WorkerRecord| {
            let cost = &worker.cost;
            [
                ("alpha_ms_per_token", positive(cost.alpha_ms_per_token)),
                ("beta_ms", not_negative(cost.beta_ms)),
                ("gamma_ms_per_token2", not_negative(cost.gamma_ms_per_token2)),
                ("floor_ms", not_negative(cost.floor_ms)),
                ("overhead_ms", not_negative(worker.overhead_ms.0)),
                ("capacity_tokens", worker.capacity_tokens.0 <= 1 << 50),
            ]
        };
        let of_fleet = [
            ("settings_since_s", not_negative(self.settings_since_s)),
            ("utilisation_window_ms", positive(self.utilisation_window_ms.0)),
            ("objective_ms", positive(self.objective_ms.0)),
            ("objective_share", (0.0..=1.0).contains(&self.objective_share)),
            ("next_prompt_tokens", self.next_prompt_tokens.0 <= 1 << 32),
            ("workers", !self.workers.is_empty()),
        ];
        let all = of_fleet
            .into_iter()
            .chain(self.workers.iter().flat_map(of_worker));
        all.filter(|(_, is_sound)| !is_sound)
            .map(|(field, _)| field)
            .next()
    }

    /// Returns whether a replay of this fleet could differ from one of `other`; numbers may differ by a twentieth.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        let alike = self.settings_since_s == other.settings_since_s
            && self.settings == other.settings
            && self.utilisation_window_ms == other.utilisation_window_ms
            && self.objective_ms == other.objective_ms
            && self.objective_share == other.objective_share
            && self.follows_hints == other.follows_hints
            && self.hint_rule == other.hint_rule
            && near(
                self.next_prompt_tokens.as_f64(),
                other.next_prompt_tokens.as_f64(),
            )
            && self.workers.len() == other.workers.len();
        !alike || (self.workers.iter().zip(&other.workers)).any(|(one, other)| one.differs_from(other))
    }
}

impl WorkerRecord {
    fn differs_from(&self, other: &Self) -> bool {
        let ttft = |worker: &Self, (uncached, cached)| {
            (worker.cost.prefill(uncached, cached) + worker.overhead_ms).0
        };
        let alike = self.name == other.name
            && self.cost_source == other.cost_source
            && self.capacity_source == other.capacity_source
            && near(self.capacity_tokens.as_f64(), other.capacity_tokens.as_f64())
            && near(ttft(self, TYPICAL), ttft(other, TYPICAL))
            && near(
                ttft(self, (Tokens(1), Tokens::ZERO)),
                ttft(other, (Tokens(1), Tokens::ZERO)),
            );
        !alike
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= MATERIAL * a.abs().max(b.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(alpha: f64) -> FleetRecord {
        FleetRecord {
            at_s: 1.0,
            settings_since_s: 0.0,
            settings: Settings::default(),
            utilisation_window_ms: Millis(60_000.0),
            objective_ms: Millis(500.0),
            objective_share: 0.95,
            next_prompt_tokens: Tokens(200),
            follows_hints: true,
            hint_rule: HintRule::default(),
            workers: vec![WorkerRecord {
                name: "a".to_owned(),
                cost: PrefillCost::linear(alpha, 20.0),
                overhead_ms: Millis(3.0),
                cost_source: CostSource::Learned,
                capacity_tokens: Tokens(100_000),
                capacity_source: CapacitySource::Reported,
            }],
        }
    }

    #[test]
    fn a_record_survives_json() {
        let text = serde_json::to_string(&record(0.05)).unwrap();
        assert_eq!(serde_json::from_str::<FleetRecord>(&text).unwrap(), record(0.05));
        assert_eq!(
            (record(0.05).fault(), record(-1.0).fault()),
            (None, Some("alpha_ms_per_token"))
        );
    }

    #[test]
    fn small_changes_of_numbers_are_not_material() {
        let before = record(0.05);
        let mut later = record(0.051);
        later.at_s = 99.0;
        assert!(!later.differs_from(&before));
        assert!(record(0.06).differs_from(&before));
        later.workers[0].cost_source = CostSource::Calibrated;
        assert!(later.differs_from(&before));
        let mut gone = record(0.05);
        gone.workers.clear();
        assert!(gone.differs_from(&before));
    }
}
