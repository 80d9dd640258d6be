//! Accounting of cache hits: whether the workload, the routing or eviction costs them (docs/explain.md).

use metrics::HIT_STAGES;
use policy::units::Millis;
use serde::Serialize;

use super::Admin;

/// Longest window of an account in milliseconds: an hour.
const WINDOW_MS: f64 = 3_600_000.0;
/// Share of the prompt tokens below which a loss is not reported.
const LITTLE: f64 = 0.05;

/// Account of the prompt tokens of turns whose worker reports cached tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hits {
    /// Length of the window in seconds: the last hour, or the time since the router's start.
    pub window_s: f64,
    /// Prompt tokens of those turns.
    pub prompt_tokens: u64,
    /// Tokens that the best ready worker was believed to hold at the choice.
    pub available_tokens: u64,
    /// Tokens that the chosen worker was believed to hold.
    pub captured_tokens: u64,
    /// Tokens that the chosen worker reported as cached.
    pub delivered_tokens: u64,
    /// The largest loss; `null` if all are small.
    pub loss: Option<Loss>,
    /// The losses in one sentence.
    pub verdict: String,
}

/// Cause of lost cache hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// No ready worker held the tokens.
    Workload,
    /// A ready worker that was not chosen held the tokens.
    Routing,
    /// The chosen worker was believed to hold the tokens and did not report them as cached.
    Eviction,
}

impl Hits {
    /// Returns the account of the last hour, or of the time since the start.
    #[must_use]
    pub fn recent(admin: &Admin) -> Self {
        let state = &admin.state;
        let now = operator::unix_ms() as f64;
        let started = state.routing.clock.unix_ms(Millis::ZERO);
        let counted = state.routing.metrics.counted_hits();
        let from = now - WINDOW_MS;
        // A sample from before the start is of other counters.
        let before = (from > started)
            .then(|| admin.history.first_since(from as u64))
            .flatten();
        let Some(before) = before else {
            return Self::of(counted, (now - started) / 1e3);
        };
        let mut stages = HIT_STAGES.iter().zip(counted);
        let grown = std::array::from_fn(|_| {
            let (stage, now) = stages.next().unwrap_or((&"", 0));
            now.saturating_sub(before.hits.get(*stage).copied().unwrap_or(0))
        });
        Self::of(grown, (now - before.at_unix_ms as f64) / 1e3)
    }

    fn of([prompt, available, captured, delivered]: [u64; 4], window_s: f64) -> Self {
        let window_s = window_s.max(0.0).round();
        let share = |tokens: u64| tokens as f64 / prompt.max(1) as f64;
        let losses = [
            (Loss::Workload, prompt.saturating_sub(available)),
            (Loss::Routing, available.saturating_sub(captured)),
            (Loss::Eviction, captured.saturating_sub(delivered)),
        ];
        let largest = losses
            .into_iter()
            .max_by_key(|(_, tokens)| *tokens)
            .filter(|(_, tokens)| share(*tokens) >= LITTLE);
        let time = span(window_s);
        let verdict = if prompt == 0 {
            format!("No response of the last {time} reported cached tokens.")
        } else {
            let percent = |tokens| format!("{:.0} %", 100.0 * share(tokens));
            let why = match largest {
                None => "little is lost".to_owned(),
                Some((Loss::Workload, lost)) => {
                    format!(
                        "the workload costs most hits: no ready worker held {} of the tokens",
                        percent(lost)
                    )
                }
                Some((Loss::Routing, lost)) => format!(
                    "the routing costs most hits: another ready worker held {} more of the tokens",
                    percent(lost)
                ),
                Some((Loss::Eviction, lost)) => format!(
                    "eviction costs most hits: {} of the tokens were believed cached and were not",
                    percent(lost)
                ),
            };
            format!(
                "Of the prompt tokens of the last {time}, {} were available in some cache, {} were captured by the \
                 choice of the worker and {} were delivered; {why}.",
                percent(available),
                percent(captured),
                percent(delivered)
            )
        };
        Self {
            window_s,
            prompt_tokens: prompt,
            available_tokens: available,
            captured_tokens: captured,
            delivered_tokens: delivered,
            loss: largest.map(|(loss, _)| loss),
            verdict,
        }
    }
}

fn span(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        _ => format!("{:.0} min", seconds / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_loss_is_named() {
        for (tokens, loss, says) in [
            (
                [0; 4],
                None,
                "No response of the last 60 min reported cached tokens.",
            ),
            ([1000, 980, 970, 960], None, "little is lost."),
            (
                [1000, 600, 590, 580],
                Some(Loss::Workload),
                "no ready worker held 40 % of the tokens.",
            ),
            (
                [1000, 900, 600, 590],
                Some(Loss::Routing),
                "another ready worker held 30 % more of the tokens.",
            ),
            (
                [1000, 900, 890, 300],
                Some(Loss::Eviction),
                "59 % of the tokens were believed cached and were not.",
            ),
            // More than was believed: no loss.
            (
                [1000, 500, 490, 990],
                Some(Loss::Workload),
                "no ready worker held 50 % of the tokens.",
            ),
        ] {
            let hits = Hits::of(tokens, 3600.0);
            assert_eq!(hits.loss, loss, "{tokens:?}");
            assert!(hits.verdict.ends_with(says), "{}", hits.verdict);
        }
        let hits = Hits::of([1000, 900, 600, 590], 95.4);
        let begins = "Of the prompt tokens of the last 95 s, 90 % were available in some cache, 60 % were captured by \
            the choice of the worker and 59 % were delivered; ";
        assert!(hits.verdict.starts_with(begins), "{}", hits.verdict);
    }
}
