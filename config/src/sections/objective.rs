//! The objective of turns, and of classes of turns: `[objective]`.

use policy::units::{Millis, Tokens};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::worker;

/// The objective: a share of turns whose first token arrives within a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Objective for the time to first token, in milliseconds. Responses that do not stream are not counted against it.
    #[serde(rename = "ttft_ms")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft: Millis,
    /// Share of turns that has to meet the objective.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub share: f64,
    /// Q̂: initial estimate of the tokens that a conversation's next prompt adds.
    #[serde(rename = "next_prompt_tokens")]
    #[schemars(with = "u64")]
    pub next_prompt: Tokens,
    /// Classes of turns with a separate objective. A turn's own `x-slo-ttft-ms` (or `x-llm-d-slo-ttft-ms`) header,
    /// in milliseconds, takes precedence over its class.
    pub classes: Vec<Class>,
}

impl Default for Objective {
    fn default() -> Self {
        Self {
            ttft: Millis(500.0),
            share: 0.95,
            next_prompt: Tokens(200),
            classes: Vec::new(),
        }
    }
}

/// A class of turns with a separate objective.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "ttft_ms"]))]
pub struct Class {
    /// Name of the class, as in the `x-slo-class` header of its turns.
    pub name: String,
    /// Objective for the time to first token, in milliseconds.
    #[serde(rename = "ttft_ms")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft: Millis,
    /// Models whose turns belong to this class unless they name a class.
    pub models: Vec<String>,
}

impl Objective {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Self {
        for (at, class) in self.classes.iter().enumerate() {
            let key = |key: &str| format!("objective.classes[{at}].{key}");
            let before = &self.classes[..at];
            worker::check_name(&class.name, &key("name"), checker);
            if before.iter().any(|known| known.name == class.name) {
                let what = format!("`{}` is already the name of another class", class.name);
                checker.report(&key("name"), what, None);
            }
            for model in &class.models {
                if before.iter().any(|known| known.models.contains(model)) {
                    let what = format!("`{model}` already belongs to another class");
                    checker.report(&key("models"), what, None);
                }
            }
        }
        self
    }
}
