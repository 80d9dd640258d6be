//! The worker reports cached tokens, which predictions are checked by.

use super::super::facts::Engine;
use super::super::facts::{Facts, Worker};
use super::super::verdict::Verdict;
use super::{unreached, untold};

/// Answered turns without a report from which on it is missing.
const TURNS: usize = 20;

pub(in super::super) fn check(facts: &Facts, worker: &Worker) -> Verdict {
    match &worker.direct.prompts {
        Some(Ok(prompts)) if prompts.iter().any(|prompt| prompt.cached_tokens.is_some()) => {
            return Verdict::ok("its responses report cached tokens");
        }
        _ if worker.cached_tokens_reported == Some(true) => {
            return Verdict::ok("its responses report cached tokens");
        }
        Some(Ok(_)) => return missing(worker, "its responses do not report cached tokens".to_owned()),
        _ => {}
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

fn missing(worker: &Worker, found: String) -> Verdict {
    Verdict::warning(
        found,
        match worker.direct.engine {
            Engine::Vllm => "start vLLM with --enable-prompt-tokens-details",
            Engine::Sglang => "start SGLang with --enable-cache-report",
            Engine::Other => "vLLM: --enable-prompt-tokens-details. SGLang: --enable-cache-report",
        },
    )
}
