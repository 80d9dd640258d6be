//! Finds the route of a path.
//!
//! Engines also serve paths that empty caches, load weights, sleep or profile, so only known inference paths and
//! `http.extra_paths` are forwarded (`docs/http.md`). Paths are compared with escapes decoded, as engines read them. A
//! path that is ambiguous after decoding (`//`, `..`, an escaped slash) has no route.

use std::borrow::Cow;

use http::Method;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::ApiError;
use crate::family::Family;

/// Kind of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// A request with a JSON body that names the model.
    Turn(Endpoint),
    /// A request with a multipart body.
    Upload(Upload),
    /// The list of models, merged over all workers.
    Models,
    /// One model, by name.
    Model(String),
    /// A response stored on a worker, by id.
    Kept(String),
    /// A WebSocket.
    Tunnel,
    /// `OPTIONS *`: capabilities of the server as a whole.
    Server,
    /// A CORS preflight, by which a browser asks whether a page may send a request.
    Preflight,
    /// A check whether a worker is ready.
    Health,
    /// Any other request, forwarded unchanged to one worker.
    Other,
}

/// Endpoints with JSON bodies.
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

/// Endpoints with multipart bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    /// `/v1/audio/transcriptions`, `/v1/audio/translations`
    Audio,
    /// `/v1/files`, `/v1/uploads`
    Files,
    /// `/v1/images/edits`, `/v1/images/variations`
    Images,
}

impl Route {
    /// Returns the route's name in metrics.
    pub fn endpoint(&self) -> &'static str {
        match self {
            Self::Turn(endpoint) => endpoint.as_str(),
            Self::Upload(Upload::Audio) => "audio",
            Self::Upload(Upload::Files) => "files",
            Self::Upload(Upload::Images) => "images",
            Self::Models | Self::Model(_) => "models",
            Self::Kept(_) => "responses",
            Self::Tunnel => "realtime",
            Self::Server | Self::Preflight | Self::Health | Self::Other => "other",
        }
    }

    /// Returns whether a caller needs an API key, where there are keys. Browsers send none with a preflight, and load
    /// balancers none with a health check.
    pub fn needs_key(&self) -> bool {
        !matches!(self, Self::Preflight | Self::Health)
    }
}

impl Endpoint {
    /// Returns the endpoint's name in metrics.
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

    /// Returns whether the endpoint generates tokens from a prompt. Only such endpoints have a first token and a next
    /// turn.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat | Self::Completions | Self::Responses | Self::Messages | Self::Generate
        )
    }

    /// Returns whether the endpoint leaves a prompt in an engine's cache for later requests.
    pub fn is_cached(self) -> bool {
        self.generates()
            || matches!(
                self,
                Self::Embeddings | Self::Rerank | Self::Score | Self::Classify | Self::Pooling
            )
    }

    /// Returns whether the endpoint runs no model.
    pub fn only_counts(self) -> bool {
        matches!(self, Self::CountTokens | Self::Tokenize | Self::Detokenize)
    }

    /// Returns whether engines accept extra fields in bodies of the endpoint; others may refuse unknown fields.
    #[must_use]
    pub fn takes_fields(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Returns the family of the endpoint's API.
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

/// Paths below `/v1/` that control an engine.
const CONTROL: [&str; 4] = [
    "/v1/tailroute",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/loads",
];

const REALTIME: &str = "/v1/realtime";

/// Other paths that the router understands: no endpoint with a JSON body serves them.
const UNDERSTOOD: [&str; 5] = [
    "/v1/models",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/edits",
    "/v1/images/variations",
];

/// Paths of forms that engines may store.
const STORES: [&str; 2] = ["/v1/files", "/v1/uploads"];

/// Safe paths outside `/v1/`.
const HARMLESS: [&str; 3] = ["/health", "/ping", "/version"];

/// Largest number of prefixes of a path that are left out to find a similar path.
const TRIED_PREFIXES: usize = 4;

/// Returns the path without its trailing slash, if that is a known path: engines redirect from the slash.
pub fn without_slash<'a>(path: &'a str, extra: &[String]) -> Option<&'a str> {
    let short = path.strip_suffix('/')?;
    if short.starts_with("/v1/models/") {
        return Some(short);
    }
    let plain = plain(short)?;
    let is_known = [false, true]
        .iter()
        .any(|is_upgrade| is_understood(&plain, *is_upgrade, extra));
    (is_known || STORES.contains(&&*plain)).then_some(short)
}

/// Returns the error for a path without a route, with the path that the client may have meant.
fn missing(path: &str) -> ApiError {
    let ends = path.match_indices('/').take(TRIED_PREFIXES);
    let mut likely = ends.flat_map(|(at, _)| {
        let end = path[at..].trim_end_matches('/');
        [end.to_owned(), format!("/v1{end}")]
    });
    let meant = likely.find(|likely| {
        likely.starts_with("/v1/")
            && likely != path
            && (Endpoint::at(likely).is_some() || UNDERSTOOD.contains(&&**likely))
    });
    meant.map_or(ApiError::NotFound, ApiError::WrongPrefix)
}

/// Finds the route of a method and path. With several tenants, only understood paths are forwarded, because others
/// cannot be isolated. Fails with 404 if the path has no route, with 405 if it takes other methods.
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
    // Answered by the router: model names contain slashes, which clients escape and engines may read differently.
    if let Some(model) = path
        .strip_prefix("/v1/models/")
        .filter(|model| is_read && !model.is_empty())
    {
        return decoded(model).map(Route::Model).ok_or(ApiError::NotFound);
    }
    // An endpoint's own path has no escapes.
    let path = match Endpoint::at(path) {
        Some(_) => Cow::Borrowed(path),
        None => plain(path).ok_or(ApiError::NotFound)?,
    };
    let path = &*path;
    if !is_passed(path, extra) || (has_tenants && !is_understood(path, is_upgrade, extra)) {
        return Err(missing(path));
    }
    if is_upgrade {
        return Ok(Route::Tunnel);
    }
    // Workers decide which origins may use an API in a browser.
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
    if is_read && matches!(path, "/health" | "/ping") {
        return Ok(Route::Health);
    }
    if let Some(rest) = path.strip_prefix("/v1/responses/") {
        return Ok(Route::Kept(rest.split('/').next().unwrap_or_default().to_owned()));
    }
    Ok(match path {
        "/v1/audio/transcriptions" | "/v1/audio/translations" => Route::Upload(Upload::Audio),
        "/v1/images/edits" | "/v1/images/variations" => Route::Upload(Upload::Images),
        path if STORES.contains(&path) && *method == Method::POST => Route::Upload(Upload::Files),
        _ => Route::Other,
    })
}

fn is_passed(path: &str, extra: &[String]) -> bool {
    // No engine has `/v1` twice: the client's base URL ends with it already.
    if CONTROL.iter().any(|control| is_below(path, control)) || path.starts_with("/v1/v1/") {
        return false;
    }
    path.starts_with("/v1/")
        || Endpoint::at(path).is_some()
        || HARMLESS.contains(&path)
        || extra.iter().any(|extra| is_below(path, extra))
}

/// Returns whether the path is understood or configured. Engines may redirect from a trailing slash.
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

/// Decodes a path as engines do; `None` if it is ambiguous.
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
        // A trailing slash is a different path, which engines may redirect.
        if matches!(segment, "." | "..") || (segment.is_empty() && !is_last) {
            return None;
        }
    }
    (!path.contains(['\\', '%']) && !path.contains(char::is_control)).then_some(path)
}

/// Decodes percent escapes; `None` if an escape is invalid or the result is not UTF-8.
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

/// Returns the key under which a response's id is stored.
pub fn response_key(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

#[cfg(test)]
mod tests;
