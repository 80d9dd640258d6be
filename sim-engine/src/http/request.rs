//! Converts a request, with the fields of chat and plain completions, into a submission for the scheduler.

mod extent;
mod known;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ::http::HeaderMap;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use self::extent::Extent;
use super::api::Api;
use super::error::ApiError;
use crate::config::{Dialect, EngineConfig};
use crate::hints::CacheTerms;
use crate::prompt::{self, Message};
use crate::scheduler::Submission;
use crate::script::Script;
use crate::tokens::{BlockHasher, push_text, special_token};

/// In-request hint: number of tokens at the end of the finished turn that may be evicted first.
const EVICT_FIRST_HEADER: &str = "x-tailroute-evict-first-tokens";

#[derive(Debug, Default, Deserialize)]
pub(super) struct Fields {
    pub(super) model: Option<String>,
    pub(super) messages: Option<Vec<Message>>,
    pub(super) prompt: Option<Prompt>,
    pub(super) tools: Option<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    pub(super) max_tokens: Option<u32>,
    pub(super) max_completion_tokens: Option<u32>,
    pub(super) n: Option<u32>,
    pub(super) stop: Option<Stop>,
    pub(super) seed: Option<i64>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) priority: Option<i64>,
    pub(super) cache_salt: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) vllm_xargs: Option<Xargs>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) return_cached_tokens_details: Option<bool>,
    /// Whether the reply ends by itself before a high limit, since the API requires every request to have a limit.
    #[serde(skip)]
    pub(super) ends_by_itself: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
pub(super) struct Xargs {
    session_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) finish: Finish,
    /// Bytes of text before a stop string.
    pub(super) cut: Option<usize>,
    /// The tool calls that replace words.
    pub(super) script: Option<Arc<Script>>,
    pub(super) seed: u64,
    pub(super) prompt_tokens: u64,
    /// Whether to report the tiers of cached tokens, as SGLang does.
    pub(super) tells_tiers: bool,
}

pub(super) fn parse<T: DeserializeOwned>(
    config: &EngineConfig,
    api: Api,
    body: &[u8],
) -> Result<T, ApiError> {
    let malformed = |error: serde_json::Error| ApiError::bad_request(format!("Invalid JSON body: {error}"));
    if config.strict {
        let names: BTreeMap<Cow<'_, str>, IgnoredAny> = serde_json::from_slice(body).map_err(malformed)?;
        if let Some(unknown) = names.keys().find(|name| !known::is_known(api, name)) {
            return Err(ApiError::bad_request(format!("Unknown field `{unknown}`.")));
        }
    }
    serde_json::from_slice(body).map_err(malformed)
}

/// Parses a body of chat or plain completions.
pub(super) fn fields(config: &EngineConfig, body: &[u8]) -> Result<Fields, ApiError> {
    let fields: Fields = parse(config, Api::Chat, body)?;
    check_model(config, fields.model.as_deref())?;
    Ok(fields)
}

pub(super) fn check_model(config: &EngineConfig, named: Option<&str>) -> Result<(), ApiError> {
    match named {
        Some(model) if *model != config.model => Err(ApiError::unknown_model(model)),
        _ => Ok(()),
    }
}

impl Fields {
    /// Returns the prompt's tokens, by the chat template or as a plain prompt.
    pub(super) fn prompt_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let mut tokens = Vec::new();
        match (&self.messages, &self.prompt) {
            (Some(messages), _) => {
                prompt::render(self.tools.as_ref(), messages, &mut tokens);
                if self.add_generation_prompt.unwrap_or(true) {
                    tokens.push(special_token("assistant"));
                }
            }
            (None, Some(Prompt::Text(text))) => push_text(text, &mut tokens),
            (None, Some(Prompt::Tokens(given))) => tokens.extend_from_slice(given),
            (None, Some(Prompt::Texts(texts))) => match texts.as_slice() {
                [text] => push_text(text, &mut tokens),
                _ => {
                    return Err(ApiError::bad_request(
                        "Exactly one prompt per request is supported.",
                    ));
                }
            },
            (None, None) => return Err(ApiError::bad_request("`messages` or `prompt` is required.")),
        }
        if tokens.is_empty() {
            return Err(ApiError::bad_request("The prompt is empty."));
        }
        Ok(tokens)
    }

    pub(super) fn submission(
        self,
        config: &EngineConfig,
        headers: &HeaderMap,
    ) -> Result<(Submission, Reply), ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad_request("`n` must be 1."));
        }
        let wanted = self.max_completion_tokens.or(self.max_tokens);
        if wanted == Some(0) {
            return Err(ApiError::bad_request("`max_tokens` must be at least 1."));
        }
        let tokens = self.prompt_tokens()?;
        let prompt_tokens = tokens.len() as u64;
        let limit = wanted.unwrap_or(config.default_output_tokens);
        if prompt_tokens.saturating_add(u64::from(limit)) > config.max_model_len {
            return Err(ApiError::too_long(config.max_model_len, prompt_tokens, limit));
        }

        let mut hasher = BlockHasher::new(&config.model, self.cache_salt.as_deref(), config.block_size);
        let chain = tokens.iter().filter_map(|&token| hasher.push(token)).collect();
        let seed = hasher.digest().wrapping_add(self.seed.unwrap_or(0) as u64);
        let Extent {
            output_tokens,
            finish,
            cut,
            script,
        } = self.extent(config, wanted, seed);
        let reply = Reply {
            stream: self.stream.unwrap_or(false),
            include_usage: self
                .stream_options
                .as_ref()
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
            finish,
            cut,
            script: script.clone(),
            seed,
            prompt_tokens,
            tells_tiers: self.return_cached_tokens_details.unwrap_or(false) && config.host_blocks > 0,
        };
        let submission = Submission {
            prompt_tokens,
            chain,
            hasher,
            tokens: config.kv_events.is_some().then(|| Arc::from(tokens)),
            seed,
            script,
            output_tokens,
            runs_out: reply.finish == Finish::Length,
            priority: self.priority.unwrap_or(0),
            terms: self.terms(config, headers)?,
        };
        Ok((submission, reply))
    }

    fn terms(self, config: &EngineConfig, headers: &HeaderMap) -> Result<CacheTerms, ApiError> {
        let session = header_text(headers, "x-session-id")
            .map(str::to_owned)
            .or(self.session_id)
            .or(self.vllm_xargs.and_then(|xargs| xargs.session_id));
        let tail = header_text(headers, EVICT_FIRST_HEADER).filter(|_| config.dialect == Dialect::Tailroute);
        let evict_first_tail = match tail.map(str::parse) {
            None => None,
            Some(Ok(tokens)) => Some(tokens),
            Some(Err(_)) => {
                let message = format!("`{EVICT_FIRST_HEADER}` must be a whole number of tokens.");
                return Err(ApiError::bad_request(message));
            }
        };
        Ok(CacheTerms {
            session: session.map(Arc::from),
            salt: self.cache_salt.map(Arc::from),
            evict_first_tail,
        })
    }
}

pub(super) fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
