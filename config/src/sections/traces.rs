use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::base_url::base_url;
use super::checker::Checker;

/// Traces of requests, with a span for each stage, sent by OTLP. The router decides whether to keep a trace when its
/// request has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Traces")]
pub(crate) struct TracesSection {
    /// Base url of an OTLP collector, as in `http://127.0.0.1:4317`. Empty: no traces.
    pub endpoint: String,
    /// OTLP protocol of the collector.
    pub protocol: OtlpProtocol,
    /// Root certificates (PEM) for an `https` collector. Empty: the system's roots.
    pub ca_file: String,
    /// File with headers for the collector, one per line, as in `authorization: Bearer …`. Read again when it changes.
    /// Empty: none.
    pub headers_file: String,
    /// Value of `service.name` in the traces.
    pub service_name: String,
    /// Whether to keep a trace that its client marked by the sampled flag of `traceparent`.
    pub keep_sampled: bool,
    /// Share of turns whose traces are kept because their times to first token are the longest of recent turns.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub slowest_share: f64,
    /// Share that is kept of all other traces: no error, no missed objective, not among the slowest.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: f64,
    /// Largest number of traces queued for sending; further ones are dropped, and counted.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue: u32,
    /// Time limit in seconds for the collector to accept a batch.
    #[schemars(range(min = 0.1, max = 300))]
    pub timeout_s: f64,
}

impl Default for TracesSection {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            protocol: OtlpProtocol::default(),
            ca_file: String::new(),
            headers_file: String::new(),
            service_name: "tailroute".to_owned(),
            keep_sampled: true,
            slowest_share: 0.01,
            share: 0.01,
            queue: 1_000,
            timeout_s: 10.0,
        }
    }
}

/// Protocol of an OTLP collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtlpProtocol {
    /// gRPC: port 4317 of most collectors.
    #[default]
    Grpc,
    /// Protobuf over HTTP, at `/v1/traces` below the endpoint: port 4318 of most collectors.
    Http,
}

const MOST_HEADERS: usize = 32;
const MOST_HEADER_BYTES: u64 = 64 * 1024;
/// Headers that describe the message itself and cannot be configured.
const OURS: [&str; 8] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
];

/// Settings of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Base url of the collector.
    pub endpoint: Uri,
    /// OTLP protocol of the collector.
    pub protocol: OtlpProtocol,
    /// File with roots in place of the system's, if there is one.
    pub ca: Option<PathBuf>,
    /// Headers for the collector, with values marked as sensitive.
    pub headers: HeaderMap,
    /// File of these headers, if there is one.
    pub headers_file: Option<PathBuf>,
    /// Value of `service.name` in the traces.
    pub service_name: String,
    /// Whether a client's sampled flag keeps a trace.
    pub keep_sampled: bool,
    /// Share of the slowest turns that is kept.
    pub slowest_share: f64,
    /// Share of all other turns that is kept.
    pub share: f64,
    /// Largest number of queued traces.
    pub queue: usize,
    /// Time limit for the collector to accept a batch.
    pub timeout: Duration,
}

/// Checks the section; `None` if traces are disabled.
pub(super) fn traces(written: TracesSection, checker: &mut Checker<'_>) -> Option<Traces> {
    let timeout = checker.seconds("traces.timeout_s", written.timeout_s);
    if written.service_name.trim().is_empty() {
        let hint = Some("leave it out for \"tailroute\"".to_owned());
        checker.report("traces.service_name", "empty; expected a name".to_owned(), hint);
    }
    if written.endpoint.is_empty() {
        return None;
    }
    let endpoint = base_url(&written.endpoint);
    let endpoint = endpoint
        .map_err(|(what, hint)| checker.report("traces.endpoint", what, hint.map(str::to_owned)))
        .ok()?;
    if written.protocol == OtlpProtocol::Grpc && !matches!(endpoint.path(), "" | "/") {
        let what = "has a path, which OTLP over gRPC does not use".to_owned();
        let hint = Some("leave the path out, or set traces.protocol = \"http\"".to_owned());
        checker.report("traces.endpoint", what, hint);
    }
    let path = |text: String| (!text.is_empty()).then(|| PathBuf::from(text));
    if !written.ca_file.is_empty() && endpoint.scheme_str() != Some("https") {
        let what = "is set with an endpoint that is not `https`, so no certificate is verified".to_owned();
        checker.report("traces.ca_file", what, Some("remove one of the two".to_owned()));
    }
    Some(Traces {
        endpoint,
        headers: headers(&written.headers_file, checker),
        headers_file: path(written.headers_file),
        ca: path(written.ca_file),
        protocol: written.protocol,
        service_name: written.service_name,
        keep_sampled: written.keep_sampled,
        slowest_share: written.slowest_share,
        share: written.share,
        queue: written.queue as usize,
        timeout,
    })
}

/// Reads the headers in a file, one per line. Problems name the line and do not quote it, since it may be secret.
fn headers(file: &str, checker: &mut Checker<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if file.is_empty() {
        return headers;
    }
    let text = match crate::file::read_text(Path::new(file), MOST_HEADER_BYTES) {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let what = format!("{file} is not a file of headers: it has more than {MOST_HEADER_BYTES} bytes");
            checker.report("traces.headers_file", what, None);
            return headers;
        }
        Ok(text) => text,
        Err(error) => {
            let what = format!("{file} cannot be read: {error}");
            checker.report("traces.headers_file", what, None);
            return headers;
        }
    };
    let lines = (1..).zip(text.lines().map(str::trim));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        match header(line) {
            Ok((name, value)) => drop(headers.append(name, value)),
            Err(what) => {
                let what = format!("{file}, line {number}: {what}");
                checker.report("traces.headers_file", what, None);
            }
        }
    }
    if headers.len() > MOST_HEADERS {
        let what = format!(
            "{file} has {} headers; expected at most {MOST_HEADERS}",
            headers.len()
        );
        checker.report("traces.headers_file", what, None);
    }
    headers
}

fn header(line: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = line.split_once(':').ok_or("expected `name: value`")?;
    let name: HeaderName = name.trim().parse().map_err(|_| "invalid header name")?;
    if OURS.contains(&name.as_str()) || name.as_str().starts_with("grpc-") {
        return Err(format!("`{name}` is set by the router itself"));
    }
    let mut value: HeaderValue = value.trim().parse().map_err(|_| "invalid header value")?;
    value.set_sensitive(true);
    Ok((name, value))
}
