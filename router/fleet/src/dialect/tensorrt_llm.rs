//! TensorRT-LLM's `KvCacheRetentionConfig`, built to its documentation: ranges of tokens with priorities from 1 to 100,
//! 35 by default, lowest evicted first, and a priority for what decoding adds.
//!
//! It is an argument of the engine's Python API. No HTTP field for it was merged when this was written, so the dialect
//! is for front ends that take the argument as a body field of its name.

use serde_json::json;

use super::{Carried, Dialect, TurnHint};

/// What a block has that nobody spoke about.
const DEFAULT: u32 = 35;
/// What goes first.
const LOWEST: u32 = 1;

/// A worker that takes `kv_cache_retention_config` in a request's body.
#[derive(Debug)]
pub struct TensorrtLlm;

impl Dialect for TensorrtLlm {
    fn name(&self) -> &'static str {
        "tensorrt_llm"
    }

    /// The tail is counted from the prompt's end, since ranges have to be given before the answer's length is known.
    fn in_request(&self, hint: &TurnHint) -> Option<Carried> {
        let keep = hint.prompt.saturating_sub(hint.evict_first).0;
        let range = |start: u64, end: Option<u64>, priority: u32| json!({ "token_start": start, "token_end": end, "priority": priority, "duration_ms": null });
        let mut ranges = vec![range(keep, None, LOWEST)];
        if keep > 0 {
            ranges.insert(0, range(0, Some(keep), DEFAULT));
        }
        let retention = json!({
            "token_range_retention_configs": ranges, "decode_retention_priority": LOWEST, "decode_duration_ms": null
        });
        Some(Carried::Field {
            key: "kv_cache_retention_config",
            value: retention.to_string(),
        })
    }
}
