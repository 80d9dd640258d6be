//! The main cause of missed cache hits: the workload, the routing or eviction.

use super::super::facts::{Facts, HitFacts};
use super::super::verdict::CheckVerdict;

/// Prompt tokens from which on shares mean something.
const ENOUGH: u64 = 20_000;
/// Share of the prompt tokens from which on a loss by routing or eviction is worth an action.
const MUCH: f64 = 0.1;
/// Share that no worker held from which on prompts hardly repeat.
const NEW: f64 = 0.8;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let Some(hits) = &facts.hits else {
        return super::untold();
    };
    let found = hits.verdict.trim_end_matches('.').to_owned();
    if hits.prompt_tokens < ENOUGH {
        return CheckVerdict::ok(found);
    }
    let share = |tokens: u64| tokens as f64 / hits.prompt_tokens as f64;
    let HitFacts {
        prompt_tokens,
        available_tokens,
        captured_tokens,
        delivered_tokens,
        ..
    } = *hits;
    let routing = share(available_tokens.saturating_sub(captured_tokens));
    let eviction = share(captured_tokens.saturating_sub(delivered_tokens));
    if eviction >= MUCH && eviction >= routing {
        return CheckVerdict::warning(
            found,
            "check capacity_tokens against the engines' caches, whether something resets them, and \
             tailroute_mirror_clears_total; cache events (kv_events) show evictions as they happen",
        );
    }
    if routing >= MUCH {
        return CheckVerdict::warning(
            found,
            "workers that hold the prompts are too busy: add workers, or try a higher weights.locality with `tailroute \
             ctl policy preview`",
        );
    }
    if share(prompt_tokens.saturating_sub(available_tokens)) >= NEW {
        return CheckVerdict::note(
            found,
            "if prompts should repeat, look for what differs early in them, such as a time stamp in the system prompt: \
             `tailroute ctl index --order shared`",
        );
    }
    CheckVerdict::ok(found)
}
