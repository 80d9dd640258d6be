//! Converts a request body into a submission for the scheduler.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ::http::HeaderMap;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::error::ApiError;
use crate::config::{Dialect, EngineConfig};
use crate::hints::CacheTerms;
use crate::scheduler::Submission;
use crate::script::{self, Script};
use crate::text;
use crate::tokens::{BlockHasher, push_text, special_token};

/// In-request hint: number of tokens at the end of the finished turn that may be evicted first.
const EVICT_FIRST_HEADER: &str = "x-tailroute-evict-first-tokens";

/// Body fields that are implemented, or known from OpenAI's and vLLM's documentation; `--strict` rejects others.
const KNOWN_FIELDS: &[&str] = &[
    "add_generation_prompt",
    "add_special_tokens",
    "audio",
    "best_of",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "guided_json",
    "ignore_eos",
    "include_reasoning",
    "kv_transfer_params",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "mm_processor_kwargs",
    "modalities",
    "model",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "priority",
    "prompt",
    "prompt_cache_key",
    "prompt_logprobs",
    "reasoning_effort",
    "repetition_penalty",
    "request_id",
    "response_format",
    "return_cached_tokens_details",
    "return_token_ids",
    "return_token_strs",
    "safety_identifier",
    "seed",
    "service_tier",
    "session_id",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "store",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "temperature",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate_prompt_tokens",
    "user",
    "verbosity",
    "vllm_xargs",
];

#[derive(Debug, Deserialize)]
pub(super) struct Fields {
    pub(super) model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Prompt>,
    tools: Option<Value>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    pub(super) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    n: Option<u32>,
    stop: Option<Stop>,
    seed: Option<i64>,
    ignore_eos: Option<bool>,
    priority: Option<i64>,
    cache_salt: Option<String>,
    session_id: Option<String>,
    vllm_xargs: Option<Xargs>,
    add_generation_prompt: Option<bool>,
    return_cached_tokens_details: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<Value>,
    name: Option<String>,
    tool_calls: Option<Value>,
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct Xargs {
    session_id: Option<String>,
}

/// The finish reason.
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

/// The format of the reply.
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
    /// Reports the tiers of cached tokens, as SGLang does.
    pub(super) tells_tiers: bool,
}

pub(super) fn fields(config: &EngineConfig, body: &[u8]) -> Result<Fields, ApiError> {
    let malformed = |error: serde_json::Error| ApiError::bad_request(format!("Invalid JSON body: {error}"));
    if config.strict {
        let names: BTreeMap<Cow<'_, str>, IgnoredAny> = serde_json::from_slice(body).map_err(malformed)?;
        if let Some(unknown) = names
            .keys()
            .find(|name| KNOWN_FIELDS.binary_search(&name.as_ref()).is_err())
        {
            return Err(ApiError::bad_request(format!("Unknown field `{unknown}`.")));
        }
    }
    let fields: Fields = serde_json::from_slice(body).map_err(malformed)?;
    match &fields.model {
        Some(model) if *model != config.model => Err(ApiError::unknown_model(model)),
        _ => Ok(fields),
    }
}

impl Fields {
    /// Returns the prompt's tokens, by the chat template or as a plain prompt.
    pub(super) fn prompt_tokens(&self) -> Result<Vec<u32>, ApiError> {
        let mut tokens = Vec::new();
        match (&self.messages, &self.prompt) {
            (Some(messages), _) => self.template(messages, &mut tokens),
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

    /// Appends `<|role|>content<|end|>` for each message, tools first. Content parts are rendered as JSON, tool calls
    /// as they are generated.
    fn template(&self, messages: &[Message], tokens: &mut Vec<u32>) {
        if let Some(tools) = self.tools.as_ref().filter(|tools| !tools.is_null()) {
            tokens.push(special_token("tools"));
            push_text(&tools.to_string(), tokens);
        }
        for message in messages {
            tokens.push(special_token(&message.role));
            if let Some(name) = &message.name {
                push_text(name, tokens);
            }
            match &message.content {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => push_text(text, tokens),
                Some(Value::Array(parts)) => {
                    for part in parts {
                        match part.get("text").and_then(Value::as_str) {
                            Some(text) => push_text(text, tokens),
                            None => push_text(&part.to_string(), tokens),
                        }
                    }
                }
                Some(other) => push_text(&other.to_string(), tokens),
            }
            if let Some(id) = &message.tool_call_id {
                push_text(id, tokens);
            }
            if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_null()) {
                script::render(calls, tokens);
            }
            tokens.push(special_token("<|end|>"));
        }
        if self.add_generation_prompt.unwrap_or(true) {
            tokens.push(special_token("assistant"));
        }
    }

    /// Returns the submission and the format of the reply.
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
        let stops = match &self.stop {
            None => &[][..],
            Some(Stop::One(stop)) => std::slice::from_ref(stop),
            Some(Stop::Many(stops)) => stops,
        };
        let stopped = if stops.is_empty() {
            None
        } else {
            text::stop_at(seed, limit, config.multibyte, stops)
        };
        let script = self.script(seed, limit, config.multibyte).map(Arc::new);
        let (output_tokens, cut) = stopped.map_or((limit, None), |(tokens, bytes)| (tokens, Some(bytes)));
        // Without a limit in the request the model ends the reply itself.
        let natural_end = wanted.is_none() && !self.ignore_eos.unwrap_or(false);
        let (output_tokens, finish) = match &script {
            Some(script) if script.len() <= limit => (script.len(), Finish::ToolCalls),
            None if natural_end || cut.is_some() => (output_tokens, Finish::Stop),
            _ => (limit, Finish::Length),
        };
        let reply = Reply {
            stream: self.stream.unwrap_or(false),
            include_usage: self
                .stream_options
                .as_ref()
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
            finish,
            cut: cut.filter(|_| script.is_none()),
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

    /// Returns the tool calls of the reply. They are made only where `tool_choice` names a function or is `required`:
    /// to the first two functions, or to one if parallel calls are disabled.
    fn script(&self, seed: u64, limit: u32, multibyte: bool) -> Option<Script> {
        let named = self.tool_choice.as_ref()?;
        let names: Vec<&str> = match named["function"]["name"].as_str() {
            Some(name) => vec![name],
            None if named == "required" => {
                let most = if self.parallel_tool_calls == Some(false) {
                    1
                } else {
                    2
                };
                let tools = self.tools.as_ref()?.as_array()?.iter();
                tools
                    .filter_map(|tool| tool["function"]["name"].as_str())
                    .take(most)
                    .collect()
            }
            None => return None,
        };
        (!names.is_empty()).then(|| Script::new(seed, limit, multibyte, &names))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_fields_are_sorted_because_they_are_searched() {
        assert!(KNOWN_FIELDS.is_sorted());
    }
}
