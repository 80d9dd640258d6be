//! The router's estimates when it chose a worker.

use policy::cost::PrefillCost;
use policy::units::{Millis, Tokens};

use super::super::select::Choice;
use learning::knowledge::{PredictionSource, Scale};

#[derive(Clone, Debug)]
pub(super) struct Prediction {
    pub(super) prompt: Tokens,
    pub(super) cached: Tokens,
    pub(super) source: PredictionSource,
    pub(super) mirrored: usize,
    pub(super) scale: Scale,
    /// Predicted time to first token, counted from sending.
    pub(super) ttft: Millis,
    pub(super) wait: Millis,
    /// Time during which the worker computes nothing else.
    pub(super) prefill: Millis,
    pub(super) cost: PrefillCost,
    /// Time to first token beside queue and prefill.
    pub(super) overhead: Millis,
    pub(super) evict_first: Tokens,
}

impl Prediction {
    pub(super) fn of(choice: &Choice) -> Self {
        let terms = choice.decision.chosen();
        let (matched, view) = (&choice.matched, &choice.view);
        Self {
            prompt: matched.prompt,
            cached: terms.cached,
            source: matched.source,
            mirrored: matched.mirrored,
            scale: matched.scale.clone(),
            ttft: terms.predicted_ttft(),
            wait: view.wait,
            prefill: terms.prefill(),
            cost: view.cost,
            overhead: view.overhead,
            evict_first: choice.evict_first,
        }
    }

    /// Returns the cached tokens of a prompt of `prompt` tokens by the engine's count, to which a mirror's estimate is
    /// scaled.
    pub(super) fn cached_of(&self, prompt: Tokens) -> Tokens {
        let share = match self.source {
            PredictionSource::Mirror { .. } => prompt.as_f64() / self.prompt.as_f64().max(1.0),
            _ => 1.0,
        };
        Tokens((self.cached.as_f64() * share).round() as u64).min(prompt)
    }
}

#[cfg(test)]
mod tests {
    use policy::units::Tokens;

    use super::*;
    use crate::testing::Seat;

    #[tokio::test(start_paused = true)]
    async fn a_mirrors_estimate_is_scaled_to_the_counted_prompt_and_events_are_not() {
        let events = PredictionSource::Events { edge: None };
        let mirror = PredictionSource::Mirror { edge: 0 };
        let seat = Seat::new();
        let choice = seat.choose(&seat.turn("hi"));
        for (source, prompt, cached, counted, expected) in [
            (mirror, 300, 150, 300, 150),
            (mirror, 300, 150, 600, 300),
            (mirror, 300, 150, 100, 50),
            (mirror, 0, 150, 100, 100),
            (events, 300, 150, 600, 150),
            (events, 300, 150, 100, 100),
        ] {
            let prediction = Prediction {
                source,
                prompt: Tokens(prompt),
                cached: Tokens(cached),
                ..Prediction::of(&choice)
            };
            let scaled = prediction.cached_of(Tokens(counted));
            assert_eq!(scaled, Tokens(expected), "{source:?} {prompt} {cached} {counted}");
        }
    }
}
