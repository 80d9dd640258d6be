//! How a worker is told what it may drop first: one trait, one file per dialect, chosen for each worker by asking it.
//!
//! Engines differ in what they take and in what they do with a field that they do not know: some ignore it, some answer
//! 400. So the rule is: *a worker is sent only what it was seen to take.* With `dialect = "auto"` that means
//!
//! 1. `GET /v1/tailroute` answers with a capability document: [`Tailroute`], by header or by body field as it says;
//! 2. `GET /server_info` shows SGLang with `--radix-eviction-policy tlru`: [`SglangTlru`], whose threshold was fixed
//!    when it started, unless it says that it can be set;
//! 3. else [`Silent`]: the request goes out as it came.
//!
//! The others have no way to be recognised and are used where the operator names them: [`VllmXargs`] (the KV connector,
//! which has no HTTP of its own), [`KvHints`] and [`TensorrtLlm`] (built to their documents, not yet seen running).
//!
//! What a dialect adds to a body is spliced into its bytes (`path::splice`); a body is never written again.

mod kv_hints;
pub mod sglang;
mod tailroute;
mod tensorrt_llm;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};
use policy::units::Tokens;
use serde_json::Value;

pub use self::kv_hints::KvHints;
pub use self::sglang::SglangTlru;
pub use self::tailroute::{Tailroute, VllmXargs};
pub use self::tensorrt_llm::TensorrtLlm;

/// What a turn's own request says about its conversation's cache.
#[derive(Clone, Copy, Debug)]
pub struct TurnHint {
    /// Tokens at the end of the conversation, the answer included, that may go first. More than 0.
    pub evict_first: Tokens,
    /// Tokens of the prompt, as far as they are known.
    pub prompt: Tokens,
    /// The decision's number, to name the hint by.
    pub sequence: u64,
}

/// How a request carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// In a header.
    Header(HeaderName, HeaderValue),
    /// As a body field; one of the client's own is left alone.
    Field {
        /// The field.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
    },
    /// As a member of a body field that is an object, beside what the client has put there.
    Member {
        /// The field.
        object: &'static str,
        /// The member.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
    },
}

/// A call beside the requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: &'static str,
    /// Its body.
    pub body: Value,
}

/// ξ and Q̂ for an idle worker.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Uncached tokens that fit in the objective.
    pub xi_tokens: f64,
    /// Tokens that the next prompt is expected to add.
    pub next_prompt: Tokens,
    /// Grows with each objective that this worker is told.
    pub epoch: u64,
}

/// What a worker understands.
pub trait Dialect: Debug + Send + Sync {
    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// What the worker will take for the evict-first tail when `asked` is what the router would tell it now: what its
    /// mirror has to assume.
    fn evict_first(&self, asked: Tokens) -> Tokens {
        asked
    }

    /// Whether the worker trims by a rule of its own, whatever it is told.
    fn trims_by_itself(&self) -> bool {
        false
    }

    /// How a request carries its hint; `None` if it cannot.
    fn in_request(&self, _hint: &TurnHint) -> Option<Carried> {
        None
    }

    /// The call that carries hints about conversations; `None` if there is none.
    fn hints(&self, _hints: &[Value]) -> Option<Message> {
        None
    }

    /// Whether [`Dialect::hints`] can carry anything.
    fn hears_hints(&self) -> bool {
        false
    }

    /// The call that carries the objective; `None` if there is none.
    fn objective(&self, _terms: &Terms) -> Option<Message> {
        None
    }
}

/// Whether a worker that speaks it is told what it may drop first, so that it does.
#[must_use]
pub fn is_told(dialect: &dyn Dialect, hints: &config::Hints) -> bool {
    hints.enabled && (hints.in_request || (hints.out_of_band && dialect.hears_hints()))
}

/// Whether such a worker gives a free tail away, told or by itself.
#[must_use]
pub fn trims(dialect: &dyn Dialect, hints: &config::Hints) -> bool {
    let is_asked = is_told(dialect, hints) || dialect.trims_by_itself();
    is_asked && dialect.evict_first(Tokens(1)) > Tokens::ZERO
}

/// Nothing is ever said.
#[derive(Debug)]
pub struct Silent {
    /// It runs Tail-Optimized LRU all the same, with an objective like the router's.
    pub trims: bool,
}

impl Dialect for Silent {
    fn name(&self) -> &'static str {
        "none"
    }

    fn evict_first(&self, asked: Tokens) -> Tokens {
        if self.trims { asked } else { Tokens::ZERO }
    }

    fn trims_by_itself(&self) -> bool {
        self.trims
    }
}

/// What is spoken to a worker that was not asked yet.
#[must_use]
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
