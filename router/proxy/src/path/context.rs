//! The context that every stage shares.

use std::sync::Arc;

use policy::units::Millis;

use super::deadline::Deadline;
use crate::admission::keys::Caller;
use crate::{Proxy, RequestPermit};
use protocol::error::ApiError;
use telemetry::traces::Trace;

/// The context of a request whose head was accepted.
#[derive(Clone, Copy)]
pub struct RequestContext<'a> {
    /// The request path.
    pub proxy: &'a Arc<Proxy>,
    /// The authenticated caller.
    pub caller: &'a Caller,
    /// Measures the request for the metrics.
    pub timer: RequestTimer,
    /// The client's deadline.
    pub deadline: Deadline,
    /// The request's trace.
    pub trace: &'a Trace,
}

/// Measures one request for the metrics.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimer {
    /// The endpoint's name in metrics.
    pub endpoint: &'static str,
    /// When the request head was complete.
    pub started: Millis,
}

impl RequestTimer {
    /// Counts the request with its outcome and its duration until now.
    pub fn record(&self, proxy: &Proxy, outcome: &'static str) {
        let duration = proxy.state.clock.now() - self.started;
        proxy
            .state
            .metrics
            .request(self.endpoint, outcome, duration.0 / 1e3);
    }
}

impl RequestContext<'_> {
    /// Takes a permit. Fails if `limits.max_in_flight` is reached.
    pub fn permit(&self) -> Result<RequestPermit, ApiError> {
        self.proxy.acquire().ok_or(ApiError::Overloaded)
    }
}
