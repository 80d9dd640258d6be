//! The worker caches prefixes: its answers to turns report cached tokens, or of two identical prompts, the second is
//! mostly cached. Answers to turns outweigh the prompts, which a busy worker may have evicted in between.

use super::super::facts::{Engine, Prompt};
use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::{CheckVerdict, counted};
use super::unreached;

/// Share of the prompt that has to be found again. The last block is always computed.
const FOUND: f64 = 0.5;
/// Time of the second prompt, as a share of the first one's, up to which caching is evident.
const FASTER: f64 = 0.6;
/// Share from which on caching is excluded.
const AS_SLOW: f64 = 0.9;
/// Shortest first time that the comparison of times is based on.
const MEASURABLE_MS: f64 = 20.0;
/// Wait from which on the prompts prove nothing against a worker.
const BUSY_MS: f64 = 500.0;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    if let Some(shown) = facts
        .shown_by(&worker.name)
        .filter(|shown| shown.caches_prefixes())
    {
        let share = shown.cached_tokens as f64 / shown.prompt_tokens.max(1) as f64 * 100.0;
        return CheckVerdict::ok(format!(
            "{} found {share:.0} % of their prompts in the cache",
            counted(shown.turns, "turn")
        ));
    }
    match (&worker.direct.prompts, worker.direct.caches_prefixes) {
        (_, Some(false)) => off(worker, "its settings switch prefix caching off".to_owned()),
        (Some(Ok(prompts)), _) => judge(worker, prompts),
        (_, Some(true)) => on(),
        (Some(Err(error)), None) => CheckVerdict::unknown(
            format!("the test prompt failed: {error}"),
            "401: give --worker-key-file; otherwise see the worker's log",
        ),
        (None, None) => unreached(worker),
    }
}

fn judge(worker: &WorkerFacts, [first, second]: &[Prompt; 2]) -> CheckVerdict {
    let (tokens, before, after) = (second.prompt_tokens, first.took_ms, second.took_ms);
    // SGLang, and older vLLM, omit a figure of zero.
    let reports = first.cached_tokens.is_some()
        || worker.cached_tokens_reported == Some(true)
        || worker.direct.reports_cached_tokens == Some(true);
    if let Some(cached) = second.cached_tokens.or(reports.then_some(0)) {
        return match cached as f64 >= FOUND * tokens as f64 {
            true => CheckVerdict::ok(format!(
                "a repeated prompt of {tokens} tokens found {cached} in the cache"
            )),
            false => off(
                worker,
                format!("a repeated prompt of {tokens} tokens found {cached} in the cache"),
            ),
        };
    }
    if worker.direct.caches_prefixes == Some(true) {
        return on();
    }
    let times =
        format!("a repeated prompt took {after:.0} ms after {before:.0} ms; cached tokens are not reported");
    if before >= MEASURABLE_MS && after <= FASTER * before {
        return CheckVerdict::ok(times);
    }
    if before >= MEASURABLE_MS && after >= AS_SLOW * before && worker.wait_ms < before / 2.0 {
        return off(worker, times);
    }
    CheckVerdict::unknown(times, "let the worker report cached tokens, and run doctor again")
}

fn on() -> CheckVerdict {
    CheckVerdict::ok("its settings switch prefix caching on")
}

fn off(worker: &WorkerFacts, found: String) -> CheckVerdict {
    let is_certain = worker.direct.caches_prefixes == Some(false);
    if worker.wait_ms > BUSY_MS && !is_certain {
        return CheckVerdict::unknown(
            format!("{found}, while {:.0} ms of other work waited", worker.wait_ms),
            "run doctor again under less load",
        );
    }
    CheckVerdict::problem(
        found,
        match worker.direct.engine {
            Engine::Vllm => {
                "start vLLM with --enable-prefix-caching; without it no routing by cache can help"
            }
            Engine::Sglang => {
                "start SGLang without --disable-radix-cache; without it no routing by cache can help"
            }
            Engine::Other => "switch the engine's prefix caching on; without it no routing by cache can help",
        },
    )
}
