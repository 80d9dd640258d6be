//! The worker caches prefixes: of two identical prompts, the second is mostly cached.

use super::super::facts::{Engine, Prompt};
use super::super::facts::{Facts, Worker};
use super::super::verdict::Verdict;
use super::unreached;

/// Share of the prompt that is found again at least. The last block is always computed.
const FOUND: f64 = 0.5;
/// Second time as a share of the first, from which caching is evident, and up to which it is not excluded.
const FASTER: f64 = 0.6;
const AS_SLOW: f64 = 0.9;
/// Shortest first time that the comparison of times is based on.
const MEASURABLE_MS: f64 = 20.0;

pub(in super::super) fn check(_: &Facts, worker: &Worker) -> Verdict {
    match (&worker.direct.prompts, worker.direct.caches_prefixes) {
        (_, Some(false)) => off(worker, "its settings switch prefix caching off".to_owned()),
        (Some(Ok(prompts)), _) => judge(worker, prompts),
        (_, Some(true)) => on(),
        (Some(Err(error)), None) => Verdict::unknown(
            format!("the test prompt failed: {error}"),
            "401: give --worker-key-file; otherwise see the worker's log",
        ),
        (None, None) => unreached(worker),
    }
}

fn judge(worker: &Worker, [first, second]: &[Prompt; 2]) -> Verdict {
    let (tokens, before, after) = (second.prompt_tokens, first.took_ms, second.took_ms);
    // SGLang, and older vLLM, omit a figure of zero.
    let reports = first.cached_tokens.is_some()
        || worker.cached_tokens_reported == Some(true)
        || worker.direct.reports_cached_tokens == Some(true);
    if let Some(cached) = second.cached_tokens.or(reports.then_some(0)) {
        return match cached as f64 >= FOUND * tokens as f64 {
            true => Verdict::ok(format!(
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
        return Verdict::ok(times);
    }
    if before >= MEASURABLE_MS && after >= AS_SLOW * before && worker.wait_ms < before / 2.0 {
        return off(worker, times);
    }
    Verdict::unknown(times, "let the worker report cached tokens, and run doctor again")
}

fn on() -> Verdict {
    Verdict::ok("its settings switch prefix caching on")
}

fn off(worker: &Worker, found: String) -> Verdict {
    Verdict::problem(
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
