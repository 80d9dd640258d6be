//! What a path asks for.
//!
//! Engines serve more than inference: paths that empty caches, load weights, put them to sleep or profile them. Who may
//! talk to the router's data port must not reach those. So only what is known to be inference is passed on: everything
//! below `/v1/` but for what controls an engine, the engines' own inference paths, and what is configured beside
//! (`http.extra_paths`). Paths are compared as engines read them, with escapes decoded; what has another shape after that
//! (`//`, `..`, an escaped slash) is of none.

use std::borrow::Cow;

use http::Method;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::ApiError;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// A JSON body, which says what is asked and of which model.
    Turn(Endpoint),
    /// A body with parts, which is passed on as it comes.
    Upload(Upload),
    /// The list of models, merged over the workers.
    Models,
    /// One of them, by its name.
    Model(String),
    /// What a worker keeps: a response, by its id.
    Kept(String),
    /// A WebSocket.
    Tunnel,
    /// What the server as a whole can do: `OPTIONS *`.
    Server,
    /// Anything else that is passed to some worker as it is.
    Other,
}

/// The endpoints that take JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// Anthropic's `/v1/messages`
    Messages,
    /// SGLang's `/generate`
    Generate,
    /// Anthropic's `/v1/messages/count_tokens`
    CountTokens,
    /// `/v1/embeddings`
    Embeddings,
    /// `/rerank`, `/v1/rerank`, `/v2/rerank`
    Rerank,
    /// `/score`, `/v1/score`
    Score,
    /// `/classify`, `/v1/classify`
    Classify,
    /// `/pooling`, `/v1/pooling`, SGLang's `/encode`
    Pooling,
    /// `/tokenize`, `/v1/tokenize`
    Tokenize,
    /// `/detokenize`, `/v1/detokenize`
    Detokenize,
    /// `/v1/audio/speech`
    Speech,
    /// `/v1/images/generations`
    Images,
    /// `/v1/moderations`
    Moderations,
}

/// The endpoints that take parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    /// `/v1/audio/transcriptions`, `/v1/audio/translations`
    Audio,
    /// `/v1/files`, `/v1/uploads`
    Files,
    /// `/v1/images/edits`, `/v1/images/variations`
    Images,
}

/// Whose API a request is of: their errors differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// OpenAI's, and all that has no other.
    #[default]
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Family {
    /// The family of a path.
    #[must_use]
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some("") => Self::Anthropic,
            Some(rest) if rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

impl Route {
    /// The name in metrics.
    #[must_use]
    pub fn endpoint(&self) -> &'static str {
        match self {
            Self::Turn(endpoint) => endpoint.as_str(),
            Self::Upload(Upload::Audio) => "audio",
            Self::Upload(Upload::Files) => "files",
            Self::Upload(Upload::Images) => "images",
            Self::Models | Self::Model(_) => "models",
            Self::Kept(_) => "responses",
            Self::Tunnel => "realtime",
            Self::Server | Self::Other => "other",
        }
    }
}

impl Endpoint {
    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Generate => "generate",
            Self::CountTokens => "count_tokens",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Classify => "classify",
            Self::Pooling => "pooling",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
            Self::Speech => "speech",
            Self::Images => "images",
            Self::Moderations => "moderations",
        }
    }

    /// Whether it has tokens generated from a prompt: only that has a first token, a cache to hit and a next turn.
    #[must_use]
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Generate
        )
    }

    /// Whether it leaves a prompt in an engine's cache, where another request can find it.
    #[must_use]
    pub fn is_cached(self) -> bool {
        self.generates()
            || matches!(
                self,
                Self::Embeddings | Self::Rerank | Self::Score | Self::Classify | Self::Pooling
            )
    }

    /// Whether no model has to run for it.
    #[must_use]
    pub fn only_counts(self) -> bool {
        matches!(self, Self::CountTokens | Self::Tokenize | Self::Detokenize)
    }

    /// Whether engines take fields of their own in its body; others may refuse a field that they do not know.
    #[must_use]
    pub fn takes_fields(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Whose API it is of.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::Messages | Self::CountTokens => Family::Anthropic,
            _ => Family::OpenAi,
        }
    }

    fn at(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/generate" => Self::Generate,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/embeddings" => Self::Embeddings,
            "/rerank" | "/v1/rerank" | "/v2/rerank" => Self::Rerank,
            "/score" | "/v1/score" => Self::Score,
            "/classify" | "/v1/classify" => Self::Classify,
            "/pooling" | "/v1/pooling" | "/encode" => Self::Pooling,
            "/tokenize" | "/v1/tokenize" => Self::Tokenize,
            "/detokenize" | "/v1/detokenize" => Self::Detokenize,
            "/v1/audio/speech" => Self::Speech,
            "/v1/images/generations" => Self::Images,
            "/v1/moderations" => Self::Moderations,
            _ => return None,
        })
    }
}

/// Below `/v1/`, but about an engine instead of its models.
const CONTROL: [&str; 4] = [
    "/v1/tailroute",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/loads",
];

/// Where WebSockets are.
const REALTIME: &str = "/v1/realtime";

/// Understood, beside the endpoints that take JSON.
const UNDERSTOOD: [&str; 5] = [
    "/v1/models",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/variations",
];

/// Outside `/v1/`, and harmless to ask for.
const HARMLESS: [&str; 3] = ["/health", "/ping", "/version"];

/// Finds the route of a method and path. Where tenants are told apart, what is not understood is not passed on: it could not
/// be kept apart.
///
/// # Errors
/// 404 if nothing is served there, 405 if it takes other methods.
pub fn find(
    method: &Method,
    path: &str,
    is_upgrade: bool,
    extra: &[String],
    has_tenants: bool,
) -> Result<Route, ApiError> {
    if matches!(*method, Method::TRACE) || (*method == Method::CONNECT && !is_upgrade) {
        return Err(ApiError::MethodNotAllowed("GET, HEAD, POST, OPTIONS"));
    }
    if path == "*" && *method == Method::OPTIONS {
        return Ok(Route::Server);
    }
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    // Answered here, so that it does not matter how an engine would read an escaped slash: models have slashes in their
    // names, and clients escape them.
    if let Some(model) = path
        .strip_prefix("/v1/models/")
        .filter(|model| is_read && !model.is_empty())
    {
        return decoded(model).map(Route::Model).ok_or(ApiError::NotFound);
    }
    // An endpoint's own path has nothing to decode.
    let path = match Endpoint::at(path) {
        Some(_) => Cow::Borrowed(path),
        None => plain(path).ok_or(ApiError::NotFound)?,
    };
    let path = &*path;
    if !is_passed(path, extra) || (has_tenants && !is_understood(path, is_upgrade, extra)) {
        return Err(ApiError::NotFound);
    }
    if is_upgrade {
        return Ok(Route::Tunnel);
    }
    // Which origins may use an API in a browser is the worker's to say.
    if *method == Method::OPTIONS {
        return Ok(Route::Other);
    }
    if let Some(endpoint) = Endpoint::at(path) {
        return match *method {
            Method::POST => Ok(Route::Turn(endpoint)),
            _ => Err(ApiError::MethodNotAllowed("POST")),
        };
    }
    if path == "/v1/models" {
        return if is_read {
            Ok(Route::Models)
        } else {
            Err(ApiError::MethodNotAllowed("GET, HEAD"))
        };
    }
    if let Some(rest) = path.strip_prefix("/v1/responses/") {
        return Ok(Route::Kept(rest.split('/').next().unwrap_or_default().to_owned()));
    }
    Ok(match path {
        "/v1/audio/transcriptions" | "/v1/audio/translations" => Route::Upload(Upload::Audio),
        "/v1/images/edits" | "/v1/images/variations" => Route::Upload(Upload::Images),
        "/v1/files" | "/v1/uploads" if *method == Method::POST => Route::Upload(Upload::Files),
        _ => Route::Other,
    })
}

fn is_passed(path: &str, extra: &[String]) -> bool {
    if CONTROL.iter().any(|control| is_below(path, control)) {
        return false;
    }
    path.starts_with("/v1/")
        || Endpoint::at(path).is_some()
        || HARMLESS.contains(&path)
        || extra.iter().any(|extra| is_below(path, extra))
}

/// Whether it is known what this path is about, or it is configured all the same. A slash at its end makes it another one,
/// which engines may take for the one without.
fn is_understood(path: &str, is_upgrade: bool, extra: &[String]) -> bool {
    let is_extra = extra.iter().any(|extra| is_below(path, extra));
    let is_known = if is_upgrade {
        path == REALTIME
    } else {
        Endpoint::at(path).is_some()
            || path.starts_with("/v1/responses/")
            || HARMLESS.contains(&path)
            || UNDERSTOOD.contains(&path)
    };
    (is_known || is_extra) && !path.ends_with('/')
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A path as engines read it; `None` if they might read it in several ways.
fn plain(path: &str) -> Option<Cow<'_, str>> {
    let slashes = |path: &str| path.bytes().filter(|byte| *byte == b'/').count();
    let given = path;
    let path = if path.contains('%') {
        Cow::Owned(decoded(path)?)
    } else {
        Cow::Borrowed(path)
    };
    if slashes(&path) != slashes(given) {
        return None;
    }
    let mut segments = path.strip_prefix('/')?.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        // A slash at the end is another path, which engines may redirect from.
        if matches!(segment, "." | "..") || (segment.is_empty() && !is_last) {
            return None;
        }
    }
    (!path.contains(['\\', '%']) && !path.contains(char::is_control)).then_some(path)
}

/// Escapes decoded; `None` if one is none, or the whole is no text.
#[must_use]
pub fn decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, more) = rest.split_at_checked(2)?;
        rest = more;
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let byte = u8::try_from(digit(digits[0])? << 4 | digit(digits[1])?).ok()?;
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

/// The key of a response's id.
#[must_use]
pub fn response_key(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

#[cfg(test)]
mod tests;
