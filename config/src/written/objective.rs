//! The objective: `[objective]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The objective: a share of turns whose first token arrives within a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Objective for the time to first token, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft_ms: f64,
    /// Share of turns that has to meet it.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub share: f64,
    /// Q̂: initial estimate of the tokens that a conversation's next prompt adds.
    pub next_prompt_tokens: u64,
    /// Classes of turns with an objective of their own. A turn's own `x-slo-ttft-ms` (or `x-llm-d-slo-ttft-ms`) header,
    /// in milliseconds, takes precedence over its class.
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
    /// Name of the class, as in the `x-slo-class` header of its turns.
    pub name: String,
    /// Objective for the time to first token, in milliseconds.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft_ms: f64,
    /// Models whose turns belong to this class unless they name one.
    pub models: Vec<String>,
}
