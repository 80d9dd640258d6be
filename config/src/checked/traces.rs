//! Traces.

use std::time::Duration;

use http::Uri;

use super::base_url::base_url;
use super::checker::Checker;
use crate::written::{self, OtlpProtocol};

/// Where traces go, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Base url of the collector.
    pub endpoint: Uri,
    /// How it takes them.
    pub protocol: OtlpProtocol,
    /// What the router is called there.
    pub service_name: String,
    /// Whether a client's sampled flag is enough.
    pub keep_sampled: bool,
    /// Share of the slowest that is kept.
    pub slowest_share: f64,
    /// Share of all the others that is kept.
    pub share: f64,
    /// How many may wait to be sent.
    pub queue: usize,
    /// For the collector to take a batch.
    pub timeout: Duration,
}

/// Checks the section; `None` if nothing is to be traced.
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
    Some(Traces {
        endpoint,
        protocol: written.protocol,
        service_name: written.service_name,
        keep_sampled: written.keep_sampled,
        slowest_share: written.slowest_share,
        share: written.share,
        queue: written.queue as usize,
        timeout,
    })
}
