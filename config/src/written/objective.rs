//! What has to be met: `[objective]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The objective: a share of turns whose first token comes within a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Time to first token to be met, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft_ms: f64,
    /// Share of turns that has to meet it.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub share: f64,
    /// Q̂: tokens that a conversation's next prompt is expected to add, until answers have shown it.
    pub next_prompt_tokens: u64,
    /// Classes of turns with an objective of their own. A turn's own `x-slo-ttft-ms` (or `x-llm-d-slo-ttft-ms`) header,
    /// in milliseconds, comes before its class.
    pub classes: Vec<Class>,
}

impl Default for Objective {
    fn default() -> Self {
        Self {
            ttft_ms: 500.0,
            share: 0.95,
            next_prompt_tokens: 200,
            classes: Vec::new(),
        }
    }
}

/// A class of turns with an objective of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "ttft_ms"]))]
pub struct Class {
    /// Its name: a turn is of it whose `x-slo-class` header says so.
    pub name: String,
    /// Time to first token to be met, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft_ms: f64,
    /// Models whose turns are of this class if they name none.
    pub models: Vec<String>,
}
