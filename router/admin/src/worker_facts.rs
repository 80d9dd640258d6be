//! The router's facts about a worker's engine, with sources and ages.

use fleet::Worker;
use fleet::facts::{Fact, FactSource};
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

/// Longest value that is shown, in characters.
const SHOWN_CHARS: usize = 256;

/// A fact about a worker's engine.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FactView {
    /// Name of the fact.
    fact: Fact,
    /// Value as text, cut at 256 characters; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// Source of the value; absent if the value is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<FactSource>,
    /// Seconds since the value was last confirmed; absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_s: Option<f64>,
    /// Seconds until the engine is next queried for the fact; absent if no query is scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_in_s: Option<f64>,
    /// Reason why the fact cannot be read at present; `value` is the last one that was read. Absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Seconds for which the fact could not be read; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    failing_for_s: Option<f64>,
}

impl FactView {
    pub(super) fn all(worker: &Worker, now: Millis) -> Vec<Self> {
        let seconds = |time: Millis| (time.0 / 1e3).max(0.0);
        let facts = worker.facts.report().into_iter();
        facts
            .map(|report| Self {
                fact: report.fact,
                age_s: report.known.as_ref().map(|known| seconds(now - known.confirmed)),
                source: report.known.as_ref().map(|known| known.source),
                value: report
                    .known
                    .map(|known| known.value.chars().take(SHOWN_CHARS).collect()),
                // A query that is on its way has no next time.
                next_in_s: report
                    .next
                    .map(|next| seconds(next - now))
                    .filter(|next| next.is_finite()),
                failing_for_s: report
                    .failing
                    .as_ref()
                    .map(|failing| seconds(now - failing.since)),
                error: report.failing.map(|failing| failing.error),
            })
            .collect()
    }
}
