//! The worker takes hints about what to evict first.

use super::super::facts::Engine;
use super::super::facts::{Facts, WorkerFacts};
use super::super::verdict::CheckVerdict;
use super::unreached;

pub(in super::super) fn check(_: &Facts, worker: &WorkerFacts) -> CheckVerdict {
    match worker.dialect.as_str() {
        "none" if !worker.is_up() => unreached(worker),
        "none" => CheckVerdict::warning(
            "it takes no hints about what to evict first",
            match worker.direct.engine {
                Engine::Vllm => {
                    "pip install ./deploy/engines/vllm, and start vLLM with VLLM_PLUGINS=tailroute (docs/engines.md)"
                }
                Engine::Sglang => {
                    "pip install ./deploy/engines/sglang, and start SGLang with --radix-eviction-policy tlru \
                     (docs/engines.md)"
                }
                Engine::Other => {
                    "vLLM and SGLang have a plugin for it (docs/engines.md); other engines work without hints"
                }
            },
        ),
        "sglang (fixed)" => CheckVerdict::note(
            "it evicts by a threshold that is fixed at its start",
            "install deploy/engines/sglang so that the router can adjust the threshold (docs/engines.md)",
        ),
        dialect => CheckVerdict::ok(format!("it takes hints (dialect {dialect})")),
    }
}
