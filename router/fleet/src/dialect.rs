//! How cache hints are sent to a worker: one trait, one file per dialect, selected per worker by probing.
//!
//! Engines differ in the hints they take and in how they treat an unknown field: some ignore it, some answer 400. So *a
//! worker is sent only what it was seen to accept.* With `dialect = "auto"`, a capability document at
//! `GET /v1/tailroute` selects [`Tailroute`], and a `/server_info` with `--radix-eviction-policy tlru` selects
//! [`SglangTlru`]; otherwise requests are forwarded unchanged ([`Silent`]). The other dialects cannot be detected and
//! are used where the operator configures them. [`KvHints`] and [`TensorrtLlm`] are not yet tested on an engine.
//!
//! A field that a dialect adds to a body is spliced into its bytes (`protocol::splice`); a body is never reserialised.

mod kv_hints;
pub mod sglang;
mod tailroute;
mod tensorrt_llm;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use config::HintRule;
use http::{HeaderName, HeaderValue, Method};
use policy::units::Tokens;
use serde_json::Value;

pub use self::kv_hints::KvHints;
pub use self::sglang::SglangTlru;
pub use self::tailroute::{Tailroute, VllmXargs};
pub use self::tensorrt_llm::TensorrtLlm;
use crate::hints::SentObjective;

/// The hint that a turn's request carries about its conversation's cache.
#[derive(Clone, Copy, Debug)]
pub struct TurnHint {
    /// Tokens at the end of the conversation, including the response, to evict first. More than 0.
    pub evict_first: Tokens,
    /// Tokens of the prompt, as far as they are known.
    pub prompt: Tokens,
    /// Number of the decision, which identifies the hint.
    pub sequence: u64,
}

/// The place of a hint in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A header.
    Header(HeaderName, HeaderValue),
    /// A field of the body. A field that the client set is kept.
    Field {
        key: &'static str,
        /// Value in JSON.
        value: String,
    },
    /// A member of a body field that is an object, beside the client's members.
    Member {
        /// Name of the field that is an object.
        object: &'static str,
        key: &'static str,
        /// Value in JSON.
        value: String,
    },
}

/// A call to a worker outside of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub method: Method,
    pub path: &'static str,
    pub body: Value,
}

/// The objectives from which [`Dialect::own_tail`] can take the tail.
pub struct OwnTail<'a> {
    /// Returns the tail of the objective that the engine accepted last; `None` before the first.
    pub told: &'a dyn Fn() -> Option<Tokens>,
    /// Returns the tail of the router's objective for the worker.
    pub ours: &'a dyn Fn() -> Tokens,
}

/// The hints that a worker accepts, and their encoding.
pub trait Dialect: Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Returns the tail of a conversation that the engine evicts first by its own rule. `None` if the engine follows hints.
    fn own_tail(&self, _by: &OwnTail<'_>) -> Option<Tokens> {
        None
    }

    /// Returns how a request carries its hint; `None` if it cannot.
    fn in_request(&self, _hint: &TurnHint) -> Option<Carried> {
        None
    }

    /// Returns the call that carries hints about conversations; `None` if there is none.
    fn hints(&self, _hints: &[Value]) -> Option<Message> {
        None
    }

    /// Returns whether [`Dialect::hints`] can carry anything.
    fn hears_hints(&self) -> bool {
        false
    }

    /// Returns whether the engine's answer to a call says that it did what the call asks.
    fn accepts(&self, _answer: &[u8]) -> bool {
        true
    }

    /// Returns the call that carries the objective; `None` if there is none. The epoch increases with each objective
    /// that is sent to a worker.
    fn objective(&self, _objective: &SentObjective, _epoch: u64) -> Option<Message> {
        None
    }

    /// Returns whether [`Dialect::objective`] carries anything.
    fn takes_objective(&self) -> bool {
        false
    }
}

/// Returns whether hints about what to evict first are sent to a worker of this dialect under this rule.
pub fn is_told(dialect: &dyn Dialect, rule: HintRule, hints: &config::Hints) -> bool {
    rule != HintRule::Off && (hints.in_request || (hints.out_of_band && dialect.hears_hints()))
}

/// Returns whether a worker of this dialect evicts a free tail first, by hints or by its own rule.
pub fn trims(dialect: &dyn Dialect, rule: HintRule, hints: &config::Hints) -> bool {
    let own = dialect.own_tail(&OwnTail {
        told: &|| None,
        ours: &|| Tokens(1),
    });
    own.map_or_else(|| is_told(dialect, rule, hints), |tail| tail > Tokens::ZERO)
}

/// The dialect of a worker that gets no hints.
#[derive(Debug)]
pub struct Silent {
    /// Whether the worker runs Tail-Optimized LRU by itself, with an objective like the router's.
    pub trims: bool,
}

impl Dialect for Silent {
    fn name(&self) -> &'static str {
        "none"
    }

    fn own_tail(&self, by: &OwnTail<'_>) -> Option<Tokens> {
        Some(if self.trims { (by.ours)() } else { Tokens::ZERO })
    }
}

/// Returns the dialect of a worker before its first probe.
pub fn before_probe(worker: &config::Worker) -> Arc<dyn Dialect> {
    let trims = worker.cache_policy == config::CachePolicy::TLru;
    match worker.dialect {
        config::Dialect::Auto | config::Dialect::None => Arc::new(Silent { trims }),
        config::Dialect::Tailroute => Arc::new(Tailroute::by_header()),
        config::Dialect::VllmXargs => Arc::new(VllmXargs),
        config::Dialect::KvHints => Arc::new(KvHints),
        config::Dialect::TensorrtLlm => Arc::new(TensorrtLlm),
    }
}
