//! Facts, their sources, and reports of them.

use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

use crate::health::ProbeFailure;

/// A fact about a worker's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// Models that the engine serves.
    Models,
    /// Hint dialect that the engine accepts.
    Dialect,
    /// Eviction order of the engine's cache.
    CachePolicy,
    /// Capacity of the engine's cache, in tokens.
    Capacity,
    /// Size of a block of the engine's cache, in tokens.
    BlockSize,
    /// Whether the engine caches inputs of an embedding model, which take no salt.
    SharedInputs,
    /// Whether the engine sleeps.
    Sleep,
    /// Start of the engine's process, in seconds since 1970.
    Start,
}

/// Source of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FactSource {
    /// The configuration, which no answer changes.
    Configured,
    /// The engine's list of models.
    Listed,
    /// The engine's answer to a query about its settings or its state.
    Probed,
    /// The engine's metrics.
    Metrics,
    /// The default, because the engine does not report the fact.
    Assumed,
}

/// A query that reports several facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// The list of models.
    Models,
    /// Capability documents, server info and metrics.
    Settings,
}

/// The value of a fact, with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The value as text, for people.
    pub value: String,
    pub source: FactSource,
    /// Time at which the value was last confirmed.
    pub confirmed: Millis,
}

/// A fact as the admin API shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct FactReport {
    pub fact: Fact,
    /// The value; `None` if it is not known.
    pub known: Option<Known>,
    /// Time of the next query for the fact; `None` if there is none.
    pub next: Option<Millis>,
    /// The error, if the fact's query fails.
    pub failing: Option<ProbeFailure>,
}

/// A change of a fact's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactChange {
    /// The value is the same.
    Same,
    /// The value is the first one.
    First,
    /// The value differs from the previous one.
    Changed,
}
