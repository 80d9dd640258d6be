//! The models that an engine lists.

use serde_json::Value;

use protocol::names;

/// Largest number of models kept per worker: more than an engine has adapters.
const MOST_MODELS: usize = 1024;

/// Whether an engine serves a model. A later variant is preferred to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serves {
    /// The engine denied having the model.
    Denied,
    /// The engine's list does not have the model.
    No,
    /// The engine's list is not known.
    Unknown,
    /// The name is `BASE:ADAPTER`, as SGLang has it, and the list has only the base.
    Base,
    /// The engine's list has the model.
    Yes,
}

impl Serves {
    /// Returns whether the worker is known to serve the model.
    #[must_use]
    pub fn is_known(self) -> bool {
        self >= Self::Base
    }
}

/// A list of models.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    cards: Vec<Value>,
    /// Sorted names.
    names: Vec<String>,
}

impl Listed {
    /// Reads the answer to `GET /v1/models`, up to a limit and with names that fit; `None` if it is not such a list. An
    /// empty list is not accepted either, since an engine serves something.
    #[must_use]
    pub fn read(answer: &[u8]) -> Option<Self> {
        let mut answer: Value = serde_json::from_slice(answer).ok()?;
        let Some(Value::Array(cards)) = answer.get_mut("data").map(Value::take) else {
            return None;
        };
        let listed = Self::of(cards);
        (!listed.names.is_empty()).then_some(listed)
    }

    /// Creates a list of these model cards.
    #[must_use]
    pub fn of(mut cards: Vec<Value>) -> Self {
        cards.retain(|card| card["id"].as_str().is_some_and(names::is_fit));
        cards.truncate(MOST_MODELS);
        cards.shrink_to_fit();
        let mut names: Vec<String> = cards
            .iter()
            .filter_map(|card| card["id"].as_str().map(str::to_owned))
            .collect();
        names.sort_unstable();
        names.dedup();
        Self { cards, names }
    }

    /// Returns the model cards, as the engine wrote them.
    #[must_use]
    pub fn cards(&self) -> &[Value] {
        &self.cards
    }

    /// Returns the names, in order and without repetition.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns whether the engine serves this model, by its list.
    #[must_use]
    pub fn serves(&self, model: &str) -> Serves {
        serves(&self.names, model, |base, adapter| {
            self.has_adapter(base, adapter)
        })
    }

    pub(super) fn has(&self, model: &str) -> bool {
        has(&self.names, model)
    }

    pub(super) fn has_adapter(&self, base: &str, adapter: &str) -> bool {
        let mut cards = self.cards.iter();
        cards.any(|card| card["id"] == adapter && card["parent"] == base)
    }

    /// Returns the longest context, prompt and response together, that is listed for this model, else for another one.
    #[must_use]
    pub fn context(&self, model: &str) -> Option<u64> {
        let told = self
            .cards
            .iter()
            .filter_map(|card| Some((card["id"] == model, card["max_model_len"].as_u64()?)));
        told.max().map(|(_, length)| length)
    }
}

/// Returns whether a worker of these names, in order, serves a model. `has_adapter` answers for the adapter of
/// `BASE:ADAPTER`; a base may contain colons itself.
pub(super) fn serves(names: &[String], model: &str, has_adapter: impl Fn(&str, &str) -> bool) -> Serves {
    if has(names, model) {
        return Serves::Yes;
    }
    let mut splits = model
        .match_indices(':')
        .map(|(at, _)| (&model[..at], &model[at + 1..]));
    match splits.find(|(base, adapter)| !adapter.is_empty() && has(names, base)) {
        Some((base, adapter)) if has_adapter(base, adapter) => Serves::Yes,
        Some(_) => Serves::Base,
        None => Serves::No,
    }
}

fn has(names: &[String], model: &str) -> bool {
    names.binary_search_by(|known| known.as_str().cmp(model)).is_ok()
}
