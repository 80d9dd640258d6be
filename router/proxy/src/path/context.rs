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
    /// The endpoint's name in metrics.
    pub endpoint: &'static str,
    /// When the request head was complete.
    pub started: Millis,
    /// The client's deadline.
    pub deadline: Deadline,
    /// The request's trace.
    pub trace: &'a Trace,
}

impl RequestContext<'_> {
    /// Takes a permit. Fails if `limits.max_in_flight` is reached.
    pub fn place(&self) -> Result<RequestPermit, ApiError> {
        self.proxy.place().ok_or(ApiError::Overloaded)
    }
}
