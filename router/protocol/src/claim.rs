//! Upper bounds on the token counts that a worker reports (`docs/admission.md`, section Limits on reported counts).
//! Counts are clamped before any other use.

use policy::units::Millis;

use super::watch::{ResponseReport, Usage};

/// Number of tokens that a chat template may add: a default system prompt, markers, the date.
const TEMPLATE: u64 = 1024;
const LONGEST_CONTEXT: u64 = 1 << 24;
/// Context in tokens that is assumed of a model if no worker reports one.
const UNTOLD_CONTEXT: u64 = 1 << 20;
const MOST_CHOICES: u64 = 1024;
/// Tolerance for rounding and clocks in the times that an engine reports.
const SLACK: Millis = Millis(10.0);

/// Bounds that follow from a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Size of the body in bytes.
    pub bytes: u64,
    /// Whether the prompt refers to media, files, an earlier response or unknown content, so that its bytes do not
    /// bound its tokens.
    pub refers: bool,
    /// Maximum number of tokens per choice, if given.
    pub max_tokens: Option<u64>,
    /// Number of choices requested; 0 if not given.
    pub choices: u64,
}

/// Kinds of reported values that were clamped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clamped {
    pub prompt: bool,
    pub completion: bool,
    pub cached: bool,
    /// Queue and prefill times by the engine's clock.
    pub times: bool,
}

impl Clamped {
    /// Returns the names of the clamped counts.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.prompt, "prompt"),
            (self.completion, "completion"),
            (self.cached, "cached"),
            (self.times, "times"),
        ];
        all.into_iter().filter_map(|(is, name)| is.then_some(name))
    }
}

/// Returns a worker's context in tokens from its reported value, within bounds.
pub fn context(told: Option<u64>) -> u64 {
    told.map_or(UNTOLD_CONTEXT, |told| told.clamp(1, LONGEST_CONTEXT))
}

impl Allowed {
    /// Clamps what was seen of a response of `answered` bytes that took `took`. `context` returns the context of the
    /// model in tokens, and is called only when needed.
    pub fn believed(
        &self,
        mut seen: ResponseReport,
        answered: u64,
        took: Millis,
        context: impl Fn() -> u64,
    ) -> (ResponseReport, Clamped) {
        let mut clamped = Clamped::default();
        if let Some(usage) = &mut seen.usage {
            self.usage(usage, answered, context, &mut clamped);
        }
        let told = seen.queue.unwrap_or_default() + seen.prefill.unwrap_or_default();
        if told > took + SLACK {
            clamped.times = true;
            let share = took.0.max(0.0) / told.0;
            for time in [&mut seen.queue, &mut seen.prefill].into_iter().flatten() {
                time.0 *= share;
            }
        }
        (seen, clamped)
    }

    fn usage(&self, usage: &mut Usage, answered: u64, context: impl Fn() -> u64, clamped: &mut Clamped) {
        let clamp = |count: &mut u64, most: u64| {
            let is_more = *count > most;
            *count = (*count).min(most);
            is_more
        };
        let bytes = self.bytes.saturating_add(TEMPLATE);
        if usage.prompt > bytes {
            let most = if self.refers { context().max(bytes) } else { bytes };
            clamped.prompt = clamp(&mut usage.prompt, most);
        }
        if usage.completion > answered {
            let choices = self.choices.clamp(1, MOST_CHOICES);
            let most = self
                .max_tokens
                .map_or_else(&context, |asked| asked.min(LONGEST_CONTEXT));
            clamped.completion = clamp(&mut usage.completion, answered.max(most * choices));
        }
        if let Some(cached) = &mut usage.cached {
            clamped.cached = clamp(cached, usage.prompt);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ABSURD: u64 = u32::MAX as u64;

    fn believed(
        allowed: Allowed,
        claim: [u64; 2],
        answered: u64,
        told: Option<u64>,
    ) -> ([u64; 2], Vec<&'static str>) {
        let usage = Usage {
            prompt: claim[0],
            completion: claim[1],
            cached: None,
        };
        let seen = ResponseReport {
            usage: Some(usage),
            ..ResponseReport::default()
        };
        let (seen, clamped) = allowed.believed(seen, answered, Millis(1e3), || context(told));
        let usage = seen.usage.unwrap();
        ([usage.prompt, usage.completion], clamped.names().collect())
    }

    #[test]
    fn a_count_that_can_be_true_is_believed() {
        let allowed = Allowed {
            bytes: 100,
            ..Allowed::default()
        };
        assert_eq!(believed(allowed, [100, 50], 50, None), ([100, 50], vec![]));
        assert_eq!(
            believed(allowed, [40, 900], 50, Some(8192)),
            ([40, 900], vec![]),
            "reasoning that is not shown"
        );
    }

    #[test]
    fn a_prompt_has_no_more_tokens_than_bytes_unless_it_refers_to_something_else() {
        let mut allowed = Allowed {
            bytes: 60,
            ..Allowed::default()
        };
        let most = 60 + TEMPLATE;
        assert_eq!(
            believed(allowed, [ABSURD, 0], 0, Some(8192)),
            ([most, 0], vec!["prompt"])
        );
        allowed.refers = true;
        assert_eq!(believed(allowed, [8000, 0], 0, Some(8192)), ([8000, 0], vec![]));
        assert_eq!(
            believed(allowed, [ABSURD, 0], 0, Some(8192)),
            ([8192, 0], vec!["prompt"])
        );
        assert_eq!(
            believed(allowed, [ABSURD, 0], 0, None),
            ([UNTOLD_CONTEXT, 0], vec!["prompt"])
        );
        assert_eq!(
            believed(allowed, [ABSURD, 0], 0, Some(u64::MAX)),
            ([LONGEST_CONTEXT, 0], vec!["prompt"]),
            "a context is a claim as well"
        );
    }

    #[test]
    fn an_answer_has_no_more_tokens_than_bytes_or_than_its_request_allows() {
        let mut allowed = Allowed::default();
        assert_eq!(
            believed(allowed, [0, ABSURD], 9, Some(4096)),
            ([0, 4096], vec!["completion"])
        );
        allowed.max_tokens = Some(16);
        assert_eq!(
            believed(allowed, [0, ABSURD], 9, Some(4096)),
            ([0, 16], vec!["completion"])
        );
        assert_eq!(
            believed(allowed, [0, ABSURD], 200, Some(4096)),
            ([0, 200], vec!["completion"])
        );
        allowed.choices = 4;
        assert_eq!(believed(allowed, [0, 64], 9, None), ([0, 64], vec![]));
        allowed.choices = u64::MAX;
        assert_eq!(
            believed(allowed, [0, ABSURD], 9, None),
            ([0, 16 * MOST_CHOICES], vec!["completion"])
        );
    }

    #[test]
    fn times_that_are_longer_than_the_request_took_are_shortened_alike() {
        let seen = |queue, prefill| ResponseReport {
            queue: Some(Millis(queue)),
            prefill: Some(Millis(prefill)),
            ..ResponseReport::default()
        };
        let believed = |queue, prefill| {
            let (seen, clamped) = Allowed::default().believed(seen(queue, prefill), 0, Millis(1e3), || 0);
            let times = seen.engine().unwrap();
            (times.queue.0, times.prefill.0, clamped.times)
        };
        assert_eq!(believed(400.0, 600.0), (400.0, 600.0, false));
        assert_eq!(believed(400.0, 1600.0), (200.0, 800.0, true));
        assert_eq!(believed(f64::MAX, f64::MAX), (0.0, 0.0, true));
    }

    proptest! {
        #[test]
        fn nothing_is_believed_beyond_its_bound_and_nothing_within_it_is_changed(
            bytes in 0..u64::MAX / 4, refers: bool, max_tokens in prop::option::of(any::<u64>()), choices: u64,
            prompt: u64, completion: u64, cached in prop::option::of(any::<u64>()),
            answered in 0..u64::MAX / 4, told in prop::option::of(any::<u64>()),
        ) {
            let allowed = Allowed { bytes, refers, max_tokens, choices };
            let claim = Usage { prompt, completion, cached };
            let seen = ResponseReport { usage: Some(claim), ..ResponseReport::default() };
            let (seen, clamped) = allowed.believed(seen, answered, Millis::ZERO, || context(told));
            let usage = seen.usage.unwrap();
            prop_assert!(usage.prompt <= (bytes + TEMPLATE).max(LONGEST_CONTEXT));
            prop_assert!(usage.completion <= answered.max(LONGEST_CONTEXT * MOST_CHOICES));
            prop_assert!(usage.cached.is_none_or(|cached| cached <= usage.prompt));
            prop_assert_eq!(usage != claim, clamped != Clamped::default());
        }
    }
}
