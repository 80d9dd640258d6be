//! The envelope that engines are converging on: `kv_hints {protocol_version, message_id, actions}`. Built from vLLM's
//! RFC 53421, SGLang's RFC 36224 and TensorRT-LLM's RFC 18153 as of November 2026. None has an action for an
//! evict-first tail yet, so its type is named after tailroute, and no engine acts on it.

use serde_json::json;

use super::{Carried, Dialect, TurnHint};

/// A worker that takes `kv_hints` in a request's body.
#[derive(Debug)]
pub struct KvHints;

impl Dialect for KvHints {
    fn name(&self) -> &'static str {
        "kv_hints"
    }

    fn in_request(&self, hint: &TurnHint) -> Option<Carried> {
        let envelope = json!({
            "protocol_version": "0.1",
            "message_id": format!("tailroute-{}", hint.sequence),
            "actions": [{
                "action_id": format!("tailroute-{}-0", hint.sequence),
                "action_type": "tailroute.evict_first",
                "action_version": "0.1",
                "payload": { "evict_first_tokens": hint.evict_first.0 },
            }],
        });
        Some(Carried::Field {
            key: "kv_hints",
            value: envelope.to_string(),
        })
    }
}
