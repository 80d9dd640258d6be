//! The worker's cache events are followed, if it publishes any.

use policy::exposition::samples;

use super::super::facts::Engine;
use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::CheckVerdict;

/// Answered turns without an announced block from which on a stream is silent.
const TURNS: usize = 10;

pub(in super::super) fn check(facts: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    let turns = facts
        .turns
        .iter()
        .filter(|turn| turn.worker == worker.name)
        .count();
    if worker.events_live {
        return match worker.events_stored {
            Some(0) if turns >= TURNS => CheckVerdict::warning(
                format!("they are followed, but no block was announced during {turns} turns"),
                "check enable_kv_cache_events and the topic of the engine's --kv-events-config",
            ),
            _ => CheckVerdict::ok("they are followed"),
        };
    }
    if !worker.is_up() {
        return super::unreached(worker);
    }
    match (worker.events_source.as_deref(), worker.direct.names_publisher) {
        (Some("off"), _) => CheckVerdict::note(
            "they are switched off (kv_events = \"off\"), so its cache is predicted",
            "remove kv_events to follow them where the engine publishes them",
        ),
        (Some("configured"), _) => CheckVerdict::problem(
            "the configured publisher is silent or cannot be reached",
            cause(facts, worker)
                .unwrap_or("check workers[].kv_events and the network from the router to that port"),
        ),
        (_, Some(true)) => CheckVerdict::problem(
            "the engine publishes them, but they are not followed",
            cause(facts, worker).unwrap_or(
                "the engine's endpoint must contain * (tcp://*:5557), and the router must reach that port",
            ),
        ),
        _ => CheckVerdict::note(
            "the engine publishes none, so its cache is predicted",
            match worker.direct.engine {
                Engine::Vllm | Engine::Sglang => "start the engine with --kv-events-config (docs/engines.md)",
                Engine::Other => "vLLM and SGLang publish them (docs/engines.md); other engines work without",
            },
        ),
    }
}

/// Returns the action for the cause that the router has counted, if any.
fn cause(facts: &Facts, worker: &WorkerFacts) -> Option<&'static str> {
    let page = facts.metrics.as_ref()?;
    let counted = |what: &str| {
        samples(page, "tailroute_kv_stream_total").any(|sample| {
            sample.label("worker") == Some(&*worker.name)
                && sample.label("what") == Some(what)
                && sample.value > 0.0
        })
    };
    [
        (
            "refused",
            "the named publisher is on another host: set workers[].kv_events",
        ),
        (
            "ranks",
            "the worker has several data-parallel ranks: set workers[].ranks",
        ),
        (
            "oversized",
            "its batches exceed limits.max_kv_message_bytes: raise it",
        ),
    ]
    .into_iter()
    .find_map(|(what, action)| counted(what).then_some(action))
}
