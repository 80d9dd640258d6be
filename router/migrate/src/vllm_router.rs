//! The table of vllm-router, the Rust router of the vLLM project (`vllm-router`, `python -m
//! vllm_router.launch_router`).

use crate::draft::ConfigDraft;
use crate::family::{Defaults, PAIRS};
use crate::given::ParsedOption;
use crate::table::{OptionRow, rows};
use crate::workers;

pub(crate) const DEFAULTS: Defaults = Defaults {
    host: "127.0.0.1",
    prometheus_host: "127.0.0.1",
};

const TREE: &str = "the index evicts by memory (index.max_bytes), not by a timer";
const PROGRAMS: &str = "agents are served as conversations; `tail` keeps each where its prefix is cached";
const WASM: &str = "there are no plugins within the router";

pub(crate) const TABLE: &[OptionRow] = rows! {
    number One "--intra-node-data-parallel-size" => ("workers.ranks", 1.0);
    built_in One "--eviction-interval" "--eviction-interval-secs" => (TREE);
    none One "--config-file" => ("another file, which is not read: give its keys as flags");
    none Nothing "--vllm-pd-disaggregation" => (PAIRS);
    none One "--vllm-discovery-address" "--kv-connector" => (PAIRS);
    none One "--otel-sampling-ratio"
        => ("traces are kept by what happened: set traces.share and traces.slowest_share");
    none Any "--otel-excluded-paths" => ("probes are on the admin port and have no traces");
    secret_by One "--api-key" => ("workers.api_key_file", api_key);
    none Any "--api-key-validation-urls"
        => ("keys are checked against their hashes in [[keys]], without a request; until there is one, every caller is admitted");
    none Nothing "--profile" => ("profiling of an engine is not forwarded: call the engine itself");
    none Nothing "--enable-program-scheduling" => (PROGRAMS);
    none One "--program-scheduling-config-json" => (PROGRAMS);
    none One "--wasm-middleware" "--wasm-middleware-sha256" => (WASM);
    none Any "--wasm-middleware-route" => (WASM);
};

/// Notes the key, which the source sends to workers only.
fn api_key(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    given.one()?;
    workers::note_key_of_workers(draft, &given.shown());
    Ok(())
}
