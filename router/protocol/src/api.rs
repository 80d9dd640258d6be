//! The HTTP APIs of inference engines: a file per API, and the table of endpoints.
//!
//! An API's file has all that the router knows of it: paths, the members that are the prompt, the events of a response
//! with their usage, and the form of errors. Endpoints that generate no tokens have only a row in the table.

mod anthropic;
pub(crate) mod completions;
pub(crate) mod openai_chat;
pub mod responses;
mod sglang;

use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::fingerprint::Draft;
use crate::json::{Malformed, Scanner};
use crate::reply::Piece;
use crate::watch::Watch;

/// Deserializes a response or an event; `None` if it is not of this type. Text that is not UTF-8 is not JSON (RFC 8259,
/// section 8.1): it is checked once, which is cheaper than a check of each string.
fn parsed<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    serde_json::from_str(std::str::from_utf8(json).ok()?).ok()
}

/// Facts about an endpoint.
#[derive(Debug)]
pub struct EndpointFacts {
    /// Name in metrics.
    pub name: &'static str,
    /// Paths, as clients write them.
    pub paths: &'static [&'static str],
    /// Work of one request.
    pub work: Work,
    /// Family of the API.
    pub family: Family,
    /// Whether engines accept extra fields in bodies; others may refuse unknown fields.
    pub takes_fields: bool,
    /// Whether engines accept a salt of their cache.
    pub takes_salt: bool,
    /// Member that holds the bounds of the response, where it is not the body.
    pub nested_bounds: Option<NestedBounds>,
    /// Whether streams end with `[DONE]`.
    pub is_ended_by_done: bool,
    /// Whether the next turn sends a call's arguments as an object instead of text.
    pub calls_are_objects: bool,
    /// Whether engines store responses, which later requests continue.
    pub stores_responses: bool,
    /// Whether engines run tools, so that one request has several prompts.
    pub runs_tools: bool,
}

impl EndpointFacts {
    const fn new(name: &'static str, paths: &'static [&'static str], work: Work) -> Self {
        Self {
            name,
            paths,
            work,
            family: Family::OpenAi,
            takes_fields: false,
            takes_salt: true,
            nested_bounds: None,
            is_ended_by_done: false,
            calls_are_objects: false,
            stores_responses: false,
            runs_tools: false,
        }
    }
}

/// Work that a request causes in an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Generates tokens from a prompt, which stays in the engine's cache.
    Generation(GenAiOperation),
    /// Computes a result from a prompt, which stays in the engine's cache.
    Encoding,
    /// Computes a result and caches nothing.
    Judgement,
    /// Runs no model.
    Counting,
    /// Creates speech or images.
    Creation,
}

/// Operations that generate tokens, by their names in OpenTelemetry's conventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenAiOperation {
    Chat,
    TextCompletion,
}

impl GenAiOperation {
    /// Every operation's name.
    pub const NAMES: [&'static str; 2] = [Self::Chat.as_str(), Self::TextCompletion.as_str()];

    /// Returns the operation's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::TextCompletion => "text_completion",
        }
    }
}

/// Member of a body that holds the bounds of the response.
#[derive(Debug)]
pub struct NestedBounds {
    /// Name of the member.
    pub member: &'static str,
    /// Name of its member with the largest number of tokens.
    pub tokens: &'static str,
    /// Name of its member with the number of choices.
    pub choices: &'static str,
}

/// Family of APIs with one form of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's API, and all others without a form of their own.
    #[default]
    OpenAi,
    /// Anthropic's API.
    Anthropic,
}

impl Family {
    /// Returns the family of the API at a path.
    pub fn of(path: &str) -> Self {
        if anthropic::has(path) {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// Returns the body of an error.
    pub(crate) fn error(self, error: &ApiError) -> Value {
        match self {
            Self::OpenAi => openai_chat::error(error),
            Self::Anthropic => anthropic::error(error),
        }
    }

    /// Returns the line that precedes the data of an error in a stream.
    pub(crate) fn error_event(self) -> &'static [u8] {
        match self {
            Self::OpenAi => b"",
            Self::Anthropic => anthropic::ERROR_EVENT,
        }
    }
}

macro_rules! endpoints {
    (
        apis { $($api:ident: $module:ident;)+ }
        others { $($other:ident: $facts:expr;)+ }
    ) => {
        /// Endpoints with JSON bodies.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Endpoint {
            $($api,)+
            $($other,)+
        }

        impl Endpoint {
            /// Every endpoint, in the order of the metrics' documentation.
            pub const ALL: &'static [Self] = &[$(Self::$api,)+ $(Self::$other,)+];

            /// Returns the facts about the endpoint.
            pub const fn facts(self) -> &'static EndpointFacts {
                match self {
                    $(Self::$api => &$module::ENDPOINT,)+
                    $(Self::$other => const { &$facts },)+
                }
            }

            /// Reads a member of a body that belongs to the prompt. Returns whether it does; else nothing was read.
            pub(crate) fn read_prompt(
                self,
                member: &[u8],
                scanner: &mut Scanner<'_>,
                draft: &mut Draft,
            ) -> Result<bool, Malformed> {
                match self {
                    $(Self::$api => $module::read_prompt(member, scanner, draft),)+
                    $(Self::$other)|+ => Ok(false),
                }
            }

            /// Reads an event of a stream, or a whole response.
            pub(crate) fn read_response(self, watch: &mut Watch, json: &[u8], reply: &mut impl FnMut(Piece<'_>)) {
                match self {
                    $(Self::$api => $module::read_response(watch, json, reply),)+
                    $(Self::$other)|+ => {}
                }
            }
        }
    };
}

endpoints! {
    apis {
        Chat: openai_chat;
        Completions: completions;
        Responses: responses;
        Messages: anthropic;
        Generate: sglang;
    }
    others {
        CountTokens: anthropic::COUNT_TOKENS;
        Embeddings: EndpointFacts::new("embeddings", &["/v1/embeddings"], Work::Encoding);
        Rerank: EndpointFacts::new("rerank", &["/rerank", "/v1/rerank", "/v2/rerank"], Work::Encoding);
        Score: EndpointFacts::new("score", &["/score", "/v1/score"], Work::Encoding);
        Classify: EndpointFacts::new("classify", &["/classify", "/v1/classify"], Work::Encoding);
        Pooling: EndpointFacts::new("pooling", &["/pooling", "/v1/pooling", "/encode"], Work::Encoding);
        Tokenize: EndpointFacts::new("tokenize", &["/tokenize", "/v1/tokenize"], Work::Counting);
        Detokenize: EndpointFacts::new("detokenize", &["/detokenize", "/v1/detokenize"], Work::Counting);
        Speech: EndpointFacts::new("speech", &["/v1/audio/speech"], Work::Creation);
        Images: EndpointFacts::new("images", &["/v1/images/generations"], Work::Creation);
        Moderations: EndpointFacts::new("moderations", &["/v1/moderations"], Work::Judgement);
    }
}

impl Endpoint {
    /// Returns the endpoint at a path.
    pub fn at(path: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|endpoint| endpoint.facts().paths.contains(&path))
    }

    /// Returns the endpoint's name in metrics.
    pub const fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// Returns the operation, if the endpoint generates tokens from a prompt.
    pub fn operation(self) -> Option<GenAiOperation> {
        match self.facts().work {
            Work::Generation(operation) => Some(operation),
            _ => None,
        }
    }

    /// Returns whether the endpoint generates tokens from a prompt. Only such endpoints have a first token and a next
    /// turn.
    pub fn generates(self) -> bool {
        self.operation().is_some()
    }

    /// Returns whether the endpoint leaves a prompt in an engine's cache for later requests.
    pub fn is_cached(self) -> bool {
        matches!(self.facts().work, Work::Generation(_) | Work::Encoding)
    }

    /// Returns whether the endpoint runs no model.
    pub fn only_counts(self) -> bool {
        self.facts().work == Work::Counting
    }

    /// Returns whether a request may be repeated: it only computes a result from its input.
    pub fn is_idempotent(self) -> bool {
        matches!(
            self.facts().work,
            Work::Encoding | Work::Judgement | Work::Counting
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_by_the_path() {
        assert_eq!(Family::of("/v1/messages"), Family::Anthropic);
        assert_eq!(Family::of("/v1/messages/count_tokens"), Family::Anthropic);
        assert_eq!(Family::of("/v1/messagesx"), Family::OpenAi);
        assert_eq!(Family::of("/v1/chat/completions"), Family::OpenAi);
    }

    #[test]
    fn each_path_has_one_endpoint_and_its_family() {
        for &endpoint in Endpoint::ALL {
            let facts = endpoint.facts();
            for path in facts.paths {
                assert_eq!(Endpoint::at(path), Some(endpoint), "{path}");
                assert_eq!(Family::of(path), facts.family, "{path}");
            }
        }
        assert_eq!(Endpoint::at("/v1/chat"), None);
    }
}
