//! The objective to be met, and by which turns: `[objective]`.

use policy::units::{Millis, Tokens};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::worker;

/// The objective: a share of turns whose first token comes within a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Time to first token to be met, in milliseconds.
    #[serde(rename = "ttft_ms")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft: Millis,
    /// Share of turns that has to meet it.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub share: f64,
    /// Q̂: tokens that a conversation's next prompt is expected to add, until answers have shown it.
    #[serde(rename = "next_prompt_tokens")]
    #[schemars(with = "u64")]
    pub next_prompt: Tokens,
    /// Classes of turns with an objective of their own. A turn's own `x-slo-ttft-ms` (or `x-llm-d-slo-ttft-ms`) header,
    /// in milliseconds, comes before its class.
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

/// A class of turns with an objective of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "ttft_ms"]))]
pub struct Class {
    /// Its name: a turn is of it whose `x-slo-class` header says so.
    pub name: String,
    /// Time to first token to be met, in milliseconds.
    #[serde(rename = "ttft_ms")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub ttft: Millis,
    /// Models whose turns are of this class if they name none.
    pub models: Vec<String>,
}

impl Objective {
    /// Checks the names of its classes.
    pub(super) fn checked(self, checker: &mut Checker<'_>) -> Self {
        for (at, class) in self.classes.iter().enumerate() {
            let key = |key: &str| format!("objective.classes[{at}].{key}");
            let before = &self.classes[..at];
            worker::check_name(&class.name, &key("name"), checker);
            if before.iter().any(|known| known.name == class.name) {
                let what = format!("`{}` is the name of another class already", class.name);
                checker.report(&key("name"), what, None);
            }
            for model in &class.models {
                if before.iter().any(|known| known.models.contains(model)) {
                    let what = format!("`{model}` is of another class already");
                    checker.report(&key("models"), what, None);
                }
            }
        }
        self
    }
}
