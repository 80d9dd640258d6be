//! vllm-router, the Rust router of the vLLM project (`vllm-router`, `python -m vllm_router.launch_router`).

use crate::draft::Draft;
use crate::family::{Defaults, PAIRS};
use crate::given::Given;
use crate::table::{Row, Takes, built_in, by, none, number};
use crate::workers;

use Takes::{Any, Nothing, One};

pub(crate) const DEFAULTS: Defaults = Defaults {
    host: "127.0.0.1",
    prometheus_host: "127.0.0.1",
};

const TREE: &str = "the index evicts by memory (index.max_bytes), not by a timer";
const PROGRAMS: &str = "agents are served as conversations; `tail` keeps each where its prefix is cached";
const WASM: &str = "there are no plugins within the router";

pub(crate) const TABLE: &[Row] = &[
    number("--intra-node-data-parallel-size", "workers.ranks", 1.0),
    built_in("--eviction-interval", One, TREE),
    built_in("--eviction-interval-secs", One, TREE),
    none("--vllm-pd-disaggregation", Nothing, PAIRS),
    none("--vllm-discovery-address", One, PAIRS),
    none("--kv-connector", One, PAIRS),
    none(
        "--otel-sampling-ratio",
        One,
        "traces are kept by what happened: set traces.share and traces.slowest_share",
    ),
    none(
        "--otel-excluded-paths",
        Any,
        "probes are on the admin port and have no traces",
    ),
    by("--api-key", One, "workers.api_key_file", api_key).secret(),
    none(
        "--api-key-validation-urls",
        Any,
        "keys are checked against their hashes in [[keys]], without a request; until there is one, every caller is admitted",
    ),
    none(
        "--profile",
        Nothing,
        "profiling of an engine is not forwarded: call the engine itself",
    ),
    none("--enable-program-scheduling", Nothing, PROGRAMS),
    none("--program-scheduling-config-json", One, PROGRAMS),
    none("--wasm-middleware", One, WASM),
    none("--wasm-middleware-sha256", One, WASM),
    none("--wasm-middleware-route", Any, WASM),
];

/// Only the workers are sent this key.
fn api_key(draft: &mut Draft, given: &Given) -> Result<(), String> {
    given.one()?;
    workers::note_key_of_workers(draft, &given.shown());
    Ok(())
}
