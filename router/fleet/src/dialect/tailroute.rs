//! tailroute's own dialect: `POST /v1/tailroute/hints`, `PUT /v1/tailroute/objective`, and a hint within each request.
//! The simulated engine reads the request's hint from a header. vLLM passes no header to its engine core, so its
//! capability document names a member of `vllm_xargs` instead.

use http::{HeaderValue, Method};
use serde_json::{Value, json};

use super::{Carried, Dialect, Message, TurnHint};
use crate::hints::{OBJECTIVE_TTL, SentObjective};
use protocol::headers;

/// The body field that vLLM passes to its engine core.
const XARGS: &str = "vllm_xargs";
const EVICT_FIRST: &str = "tailroute_evict_first_tokens";

/// A worker that serves `/v1/tailroute`.
#[derive(Debug)]
pub struct Tailroute {
    by_xarg: bool,
    by_header: bool,
    objective: bool,
}

impl Tailroute {
    /// Creates the dialect of a worker that reads the header and accepts hints and objectives.
    pub fn by_header() -> Self {
        Self {
            by_xarg: false,
            by_header: true,
            objective: true,
        }
    }

    /// Reads a capability document; `None` for any other document, as from a server that answers 200 to any path.
    pub fn of(document: &[u8]) -> Option<Self> {
        let says: Value = serde_json::from_slice(document).ok()?;
        (says["dialect"] == "tailroute").then(|| Self {
            by_xarg: says["evict_first_xarg"] == EVICT_FIRST,
            by_header: says["evict_first_header"].as_str() == Some(headers::EVICT_FIRST.as_str()),
            objective: says["objective"] != false,
        })
    }
}

impl Dialect for Tailroute {
    fn name(&self) -> &'static str {
        if self.by_xarg {
            "tailroute (xargs)"
        } else {
            "tailroute"
        }
    }

    fn in_request(&self, hint: &TurnHint) -> Option<Carried> {
        if self.by_xarg {
            return VllmXargs.in_request(hint);
        }
        let value = HeaderValue::from(hint.evict_first.0);
        self.by_header
            .then_some(Carried::Header(headers::EVICT_FIRST, value))
    }

    fn hears_hints(&self) -> bool {
        true
    }

    fn hints(&self, hints: &[Value]) -> Option<Message> {
        Some(Message {
            method: Method::POST,
            path: "/v1/tailroute/hints",
            body: json!({ "hints": hints }),
        })
    }

    fn objective(&self, objective: &SentObjective, epoch: u64) -> Option<Message> {
        if !self.objective {
            return None;
        }
        let mut body = serde_json::to_value(objective).ok()?;
        body["epoch"] = epoch.into();
        body["ttl_ms"] = OBJECTIVE_TTL.0.into();
        Some(Message {
            method: Method::PUT,
            path: "/v1/tailroute/objective",
            body,
        })
    }

    fn takes_objective(&self) -> bool {
        self.objective
    }
}

/// vLLM with the KV connector of `tailroute-vllm`: hints within requests, and no HTTP of its own.
#[derive(Debug)]
pub struct VllmXargs;

impl Dialect for VllmXargs {
    fn name(&self) -> &'static str {
        "vllm_xargs"
    }

    fn in_request(&self, hint: &TurnHint) -> Option<Carried> {
        Some(Carried::Member {
            object: XARGS,
            key: EVICT_FIRST,
            value: hint.evict_first.0.to_string(),
        })
    }
}
