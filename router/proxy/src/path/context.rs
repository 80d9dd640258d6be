//! The context that every stage shares.

use std::sync::Arc;

use policy::units::Millis;

use super::deadline::Deadline;
use crate::admission::keys::Caller;
use crate::{Proxy, RequestPermit};
use protocol::error::ApiError;
use state::Routing;
use telemetry::traces::Trace;

/// The context of a request whose head was accepted.
#[derive(Clone, Copy)]
pub struct RequestContext<'a> {
    pub proxy: &'a Arc<Proxy>,
    pub caller: &'a Caller,
    /// Measurement of the request for the metrics.
    pub timer: RequestTimer,
    pub deadline: Deadline,
    pub trace: &'a Trace,
}

/// Measurement of one request for the metrics.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimer {
    /// Name of the endpoint in metrics.
    pub endpoint: &'static str,
    /// Time at which the request head was complete.
    pub started: Millis,
}

impl RequestTimer {
    /// Counts the request with its outcome and its duration until now.
    pub fn record(&self, routing: &Routing, outcome: &'static str) {
        let duration = routing.clock.now() - self.started;
        routing.metrics.request(self.endpoint, outcome, duration.0 / 1e3);
    }
}

impl RequestContext<'_> {
    /// Takes a permit. Fails if `limits.max_in_flight` is reached.
    pub fn permit(&self) -> Result<RequestPermit, ApiError> {
        self.proxy.acquire().ok_or(ApiError::Overloaded)
    }
}
