//! Settings of traces.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::base_url::base_url;
use super::checker::Checker;
use crate::written::{self, OtlpProtocol};

const MOST_HEADERS: usize = 32;
/// Largest file of headers in bytes.
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
    /// Roots in place of the system's.
    pub ca: Option<PathBuf>,
    /// Headers for the collector; secret.
    pub headers: HeaderMap,
    /// File of these headers.
    pub headers_file: Option<PathBuf>,
    /// Service name of the router.
    pub service_name: String,
    /// Whether a client's sampled flag keeps a trace.
    pub keep_sampled: bool,
    /// Share of the slowest turns that is kept.
    pub slowest_share: f64,
    /// Share of all other turns that is kept.
    pub share: f64,
    /// Traces that may be queued.
    pub queue: usize,
    /// Time limit for the collector to accept a batch.
    pub timeout: Duration,
}

/// Checks the section; `None` if traces are disabled.
pub(super) fn traces(written: written::Traces, checker: &mut Checker<'_>) -> Option<Traces> {
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
        let what =
            "stands beside an endpoint that is not `https`, whose certificate nobody looks at".to_owned();
        checker.report(
            "traces.ca_file",
            what,
            Some("leave one of the two out".to_owned()),
        );
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
            let what = format!("{file} is no file of headers: it has more than {MOST_HEADER_BYTES} bytes");
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
    let name: HeaderName = name.trim().parse().map_err(|_| "its name is no header's name")?;
    if OURS.contains(&name.as_str()) || name.as_str().starts_with("grpc-") {
        return Err(format!("`{name}` is set by the router itself"));
    }
    let mut value: HeaderValue = value
        .trim()
        .parse()
        .map_err(|_| "its value is no header's value")?;
    value.set_sensitive(true);
    Ok((name, value))
}
