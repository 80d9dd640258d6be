//! TensorRT-LLM's `KvCacheRetentionConfig`, built from its documentation: ranges of tokens with priorities from 1 to
//! 100, 35 by default, lowest evicted first, and a priority for decoded tokens. As of November 2026 no HTTP field for
//! it is merged; front ends may take the argument as a body field of its name.

use serde_json::json;

use super::{Carried, Dialect, TurnHint};

/// Priority of a block without one.
const DEFAULT: u32 = 35;
/// Priority of a block that is evicted first.
const LOWEST: u32 = 1;

/// A worker that takes `kv_cache_retention_config` in a request's body.
#[derive(Debug)]
pub struct TensorrtLlm;

impl Dialect for TensorrtLlm {
    fn name(&self) -> &'static str {
        "tensorrt_llm"
    }

    /// Counts the tail from the end of the prompt, since ranges must be given before the response's length is known.
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
