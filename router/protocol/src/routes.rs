//! Finds the route of a path.
//!
//! Engines also serve paths that empty caches, load weights, sleep or profile, so only known inference paths and
//! `http.extra_paths` are forwarded (`docs/http.md`). Paths are compared with escapes decoded, as engines read them. A
//! path that is ambiguous after decoding (`//`, `..`, an escaped slash) has no route.

use std::borrow::Cow;

use http::Method;

use crate::api::{Endpoint, GenAiOperation, responses};
use crate::error::ApiError;

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

impl Upload {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Audio => "audio",
            Self::Files => "files",
            Self::Images => Endpoint::Images.as_str(),
        }
    }
}

const MODELS: &str = "models";
const TUNNEL: &str = "realtime";
const OTHER: &str = "other";

/// Name in metrics of requests without a route.
pub const NONE: &str = "none";

/// Names of routes in metrics that are no endpoint's.
const OTHER_NAMES: [&str; 6] = [
    Upload::Audio.as_str(),
    Upload::Files.as_str(),
    MODELS,
    TUNNEL,
    OTHER,
    NONE,
];

impl Route {
    /// Every name in metrics.
    pub const NAMES: [&'static str; Endpoint::ALL.len() + OTHER_NAMES.len()] = {
        let mut names = [""; Endpoint::ALL.len() + OTHER_NAMES.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = match at.checked_sub(Endpoint::ALL.len()) {
                None => Endpoint::ALL[at].as_str(),
                Some(at) => OTHER_NAMES[at],
            };
            at += 1;
        }
        names
    };

    /// Returns the route's name in metrics.
    pub fn endpoint(&self) -> &'static str {
        match self {
            Self::Turn(endpoint) => endpoint.as_str(),
            Self::Upload(upload) => upload.as_str(),
            Self::Models | Self::Model(_) => MODELS,
            Self::Kept(_) => Endpoint::Responses.as_str(),
            Self::Tunnel => TUNNEL,
            Self::Server | Self::Preflight | Self::Health | Self::Other => OTHER,
        }
    }

    /// Returns the operation's name in OpenTelemetry's conventions, or else the route's name in metrics.
    pub fn operation(&self) -> &'static str {
        let operation = match self {
            Self::Turn(endpoint) => endpoint.operation(),
            Self::Kept(_) => Endpoint::Responses.operation(),
            _ => None,
        };
        operation.map_or(self.endpoint(), GenAiOperation::as_str)
    }

    /// Returns the path of all requests that have the route's name in metrics, if they have one path.
    pub fn path(&self) -> Option<&'static str> {
        match self {
            // Stored responses and edits of images have these names, too.
            Self::Turn(Endpoint::Responses | Endpoint::Images) => None,
            Self::Turn(endpoint) => match endpoint.facts().paths {
                [path] => Some(path),
                _ => None,
            },
            Self::Tunnel => Some(REALTIME),
            _ => None,
        }
    }

    /// Returns whether a caller needs an API key, where there are keys. Browsers send none with a preflight, and load
    /// balancers none with a health check.
    pub fn needs_key(&self) -> bool {
        !matches!(self, Self::Preflight | Self::Health)
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
    if let Some(id) = responses::stored(path) {
        return Ok(Route::Kept(id.to_owned()));
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
            || responses::stored(path).is_some()
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

#[cfg(test)]
mod tests;
