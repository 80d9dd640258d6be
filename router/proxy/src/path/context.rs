//! The context that every stage shares.

use std::sync::Arc;

use policy::units::Millis;

use super::forward::Deadline;
use crate::admission::keys::Caller;
use crate::{Proxy, RequestPermit};
use protocol::error::ApiError;
use telemetry::traces::Trace;

/// The context of a request whose head was accepted.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) proxy: &'a Arc<Proxy>,
    pub(crate) caller: &'a Caller,
    /// The endpoint's name in metrics.
    pub(crate) endpoint: &'static str,
    /// When the request head was complete.
    pub(crate) started: Millis,
    pub(crate) deadline: Deadline,
    pub(crate) trace: &'a Trace,
}

impl RequestContext<'_> {
    /// Takes a permit. Fails if `limits.max_in_flight` is reached.
    pub(crate) fn place(&self) -> Result<RequestPermit, ApiError> {
        self.proxy.place().ok_or(ApiError::Overloaded)
    }
}
