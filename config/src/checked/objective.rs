//! Objectives for times to first token.

use policy::units::{Millis, Tokens};

use super::checker::Checker;
use super::worker;
use crate::written;

/// The objective: `share` of turns have their first token within `ttft`.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Time to first token; positive.
    pub ttft: Millis,
    /// Share of turns, between 0 and 1, both excluded.
    pub share: f64,
    /// Initial Q̂.
    pub next_prompt: Tokens,
    /// Classes with an objective of their own; their names are unique.
    pub classes: Vec<Class>,
}

/// A class of turns with an objective of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// 1 to 64 visible ASCII characters.
    pub name: String,
    /// Time to first token; positive.
    pub ttft: Millis,
    /// Models whose turns belong to the class unless they name one.
    pub models: Vec<String>,
}

pub(super) fn objective(written: written::Objective, checker: &mut Checker<'_>) -> Objective {
    let mut classes: Vec<Class> = Vec::with_capacity(written.classes.len());
    for (at, class) in written.classes.into_iter().enumerate() {
        let key = |key: &str| format!("objective.classes[{at}].{key}");
        worker::check_name(&class.name, &key("name"), checker);
        if classes.iter().any(|known| known.name == class.name) {
            let what = format!("`{}` is the name of another class already", class.name);
            checker.report(&key("name"), what, None);
        }
        for model in &class.models {
            if classes.iter().any(|known| known.models.contains(model)) {
                let what = format!("`{model}` is of another class already");
                checker.report(&key("models"), what, None);
            }
        }
        classes.push(Class {
            name: class.name,
            ttft: Millis(class.ttft_ms),
            models: class.models,
        });
    }
    Objective {
        ttft: Millis(written.ttft_ms),
        share: written.share,
        next_prompt: Tokens(written.next_prompt_tokens),
        classes,
    }
}
