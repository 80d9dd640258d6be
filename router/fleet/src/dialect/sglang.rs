//! SGLang's own T-LRU: `--radix-eviction-policy tlru` with a threshold and an estimate of the next prompt, in tokens.
//!
//! The engine trims by itself, so requests carry no hints. The plugin `tailroute-sglang` makes both numbers settable
//! through `/set_internal_state`, for a time to live, and reports that in the server's info, for each data-parallel rank.

use http::Method;
use policy::units::Tokens;
use serde_json::{Value, json};

use super::{Dialect, Message, OwnTail};
use crate::hints::{OBJECTIVE_TTL, SentObjective};

/// An SGLang server that runs T-LRU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SglangTlru {
    threshold: u64,
    next_prompt: u64,
    settable: bool,
    /// Whether what was set expires.
    expires: bool,
}

/// Returns whether a `/server_info` is of an SGLang that serves an embedding model and caches its inputs. Requests for
/// embeddings have no field that would divide that cache.
pub fn caches_inputs(server_info: &[u8]) -> bool {
    let Ok(info) = serde_json::from_slice::<Value>(server_info) else {
        return false;
    };
    info["is_embedding"] == true && info["disable_radix_cache"] != true
}

impl SglangTlru {
    /// Reads `/server_info`; `None` if it is not SGLang, or runs another policy.
    pub fn of(server_info: &[u8]) -> Option<Self> {
        let info: Value = serde_json::from_slice(server_info).ok()?;
        if info["radix_eviction_policy"] != "tlru" {
            return None;
        }
        // A JSON object, or its text as given on the command line.
        let config = match &info["radix_eviction_policy_config"] {
            Value::String(text) => serde_json::from_str(text).ok()?,
            other => other.clone(),
        };
        let plugin = &info["internal_states"][0]["tailroute"];
        Some(Self {
            threshold: config["threshold"].as_u64()?,
            next_prompt: config["next_prompt_estimate"].as_u64()?,
            settable: plugin["tlru_settable"] == true,
            expires: plugin["tlru_ttl_settable"] == true,
        })
    }
}

impl Dialect for SglangTlru {
    fn name(&self) -> &'static str {
        if self.settable {
            "sglang (settable)"
        } else {
            "sglang (fixed)"
        }
    }

    fn own_tail(&self, by: &OwnTail<'_>) -> Option<Tokens> {
        let at_start = Tokens(self.threshold.saturating_sub(self.next_prompt));
        let told = self.settable.then(by.told).flatten();
        Some(told.unwrap_or(at_start))
    }

    /// SGLang answers 200 with a list that says of each data-parallel rank whether it took the values.
    fn accepts(&self, answer: &[u8]) -> bool {
        let ranks: Vec<bool> = serde_json::from_slice(answer).unwrap_or_default();
        !ranks.contains(&false)
    }

    fn objective(&self, objective: &SentObjective, epoch: u64) -> Option<Message> {
        if !self.settable {
            return None;
        }
        let next_prompt = objective.next_prompt_tokens;
        let mut set = json!({
            "tlru_threshold": next_prompt + objective.tail().0, "tlru_next_prompt_estimate": next_prompt
        });
        if self.expires {
            set["tlru_ttl_ms"] = OBJECTIVE_TTL.0.into();
            set["tlru_epoch"] = epoch.into();
        }
        Some(Message {
            method: Method::POST,
            path: "/set_internal_state",
            body: json!({ "server_args": set }),
        })
    }

    fn takes_objective(&self) -> bool {
        self.settable
    }
}
