//! Traces of requests: `[traces]`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsPath, AsSeconds};
use super::checker::Checker;

/// Traces of requests, with a span for each stage, sent by OTLP. The router decides whether to keep a trace when its
/// request has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Traces", bound = "Self: Default, Endpoint: Serialize + JsonSchema")]
pub struct Traces<Endpoint = Uri> {
    /// Base url of an OTLP collector, as in `http://127.0.0.1:4317`. Empty: no traces.
    pub endpoint: Endpoint,
    /// OTLP protocol of the collector.
    pub protocol: OtlpProtocol,
    /// Root certificates (PEM) for an `https` collector. Empty: the system's roots.
    #[serde(rename = "ca_file", with = "AsPath")]
    pub ca: Option<PathBuf>,
    /// File with headers for the collector, one per line, as in `authorization: Bearer …`. Read again when it changes.
    /// Empty: none.
    #[serde(with = "AsPath")]
    pub headers_file: Option<PathBuf>,
    /// Headers in that file, with values marked as sensitive.
    #[serde(skip)]
    pub headers: HeaderMap,
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
    #[schemars(with = "u32", range(min = 1, max = 100_000))]
    pub queue: usize,
    /// Time limit in seconds for the collector to accept a batch.
    #[serde(rename = "timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.1, max = 300))]
    pub timeout: Duration,
}

impl Default for Traces<String> {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            protocol: OtlpProtocol::default(),
            ca: None,
            headers_file: None,
            headers: HeaderMap::new(),
            service_name: "tailroute".to_owned(),
            keep_sampled: true,
            slowest_share: 0.01,
            share: 0.01,
            queue: 1_000,
            timeout: Duration::from_secs(10),
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

impl Traces<String> {
    /// Checks the section; `None` if traces are disabled.
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Option<Traces> {
        if self.service_name.trim().is_empty() {
            let hint = Some("leave it out for \"tailroute\"".to_owned());
            checker.report("traces.service_name", "empty; expected a name".to_owned(), hint);
        }
        if self.endpoint.is_empty() {
            return None;
        }
        let endpoint = checker.url("traces.endpoint", &self.endpoint)?;
        if self.protocol == OtlpProtocol::Grpc && !matches!(endpoint.path(), "" | "/") {
            let what = "has a path, which OTLP over gRPC does not use".to_owned();
            let hint = Some("leave the path out, or set traces.protocol = \"http\"".to_owned());
            checker.report("traces.endpoint", what, hint);
        }
        if self.ca.is_some() && endpoint.scheme_str() != Some("https") {
            let what =
                "is set with an endpoint that is not `https`, so no certificate is verified".to_owned();
            checker.report("traces.ca_file", what, Some("remove one of the two".to_owned()));
        }
        let headers_file = self.headers_file.as_deref();
        Some(Traces {
            endpoint,
            protocol: self.protocol,
            ca: self.ca,
            headers: headers_file
                .map(|file| headers(file, checker))
                .unwrap_or_default(),
            headers_file: self.headers_file,
            service_name: self.service_name,
            keep_sampled: self.keep_sampled,
            slowest_share: self.slowest_share,
            share: self.share,
            queue: self.queue,
            timeout: self.timeout,
        })
    }
}

/// Reads the headers in a file, one per line. Problems name the line and do not quote it, since it may be secret.
fn headers(file: &Path, checker: &mut Checker<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let name = file.display();
    let text = match crate::file::read_text(file, MOST_HEADER_BYTES) {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let what = format!("{name} is not a file of headers: it has more than {MOST_HEADER_BYTES} bytes");
            checker.report("traces.headers_file", what, None);
            return headers;
        }
        Ok(text) => text,
        Err(error) => {
            let what = format!("{name} cannot be read: {error}");
            checker.report("traces.headers_file", what, None);
            return headers;
        }
    };
    let lines = (1..).zip(text.lines().map(str::trim));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
        match header(line) {
            Ok((header, value)) => drop(headers.append(header, value)),
            Err(what) => {
                let what = format!("{name}, line {number}: {what}");
                checker.report("traces.headers_file", what, None);
            }
        }
    }
    if headers.len() > MOST_HEADERS {
        let what = format!(
            "{name} has {} headers; expected at most {MOST_HEADERS}",
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
