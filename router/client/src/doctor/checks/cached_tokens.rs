//! The worker reports cached tokens, by which predictions are checked.

use super::super::facts::Engine;
use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::CheckVerdict;
use super::{unreached, untold};

/// Answered turns without a report from which on it is missing.
const TURNS: usize = 20;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    if is_reported(worker) {
        return CheckVerdict::ok("its responses report cached tokens");
    }
    let is_off = worker.direct.reports_cached_tokens == Some(false);
    if is_off || matches!(worker.direct.prompts, Some(Ok(_))) {
        return missing(worker, "its responses do not report cached tokens".to_owned());
    }
    let turns = facts
        .turns
        .iter()
        .filter(|turn| turn.worker == worker.name)
        .count();
    match worker.cached_tokens_reported {
        None => untold(),
        // A worker whose probes fail starts anew.
        Some(_) if worker.is_up() && turns >= TURNS => missing(
            worker,
            format!("none of {turns} responses reported cached tokens"),
        ),
        Some(_) => unreached(worker),
    }
}

/// Returns whether the worker reports cached tokens. SGLang's settings count as well, because its responses omit a
/// figure of zero.
fn is_reported(worker: &WorkerFacts) -> bool {
    let seen = match &worker.direct.prompts {
        Some(Ok(prompts)) => prompts.iter().any(|prompt| prompt.cached_tokens.is_some()),
        _ => false,
    };
    seen || worker.cached_tokens_reported == Some(true) || worker.direct.reports_cached_tokens == Some(true)
}

fn missing(worker: &WorkerFacts, found: String) -> CheckVerdict {
    CheckVerdict::warning(
        found,
        match worker.direct.engine {
            Engine::Vllm => "start vLLM with --enable-prompt-tokens-details",
            Engine::Sglang => "start SGLang with --enable-cache-report",
            Engine::Other => "vLLM: --enable-prompt-tokens-details. SGLang: --enable-cache-report",
        },
    )
}
