//! What every stage knows of a request.

use std::sync::Arc;

use policy::units::Millis;

use super::forward::Deadline;
use crate::admission::keys::Caller;
use crate::app::{App, RequestPermit};
use protocol::error::ApiError;
use telemetry::traces::Trace;

/// A request that was let in by its head.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    /// The router.
    pub(crate) app: &'a Arc<App>,
    /// The key that it came with.
    pub(crate) caller: &'a Caller,
    /// The name of its endpoint in metrics.
    pub(crate) endpoint: &'static str,
    /// When its head was here.
    pub(crate) started: Millis,
    /// By when it has to be answered.
    pub(crate) deadline: Deadline,
    /// Its trace.
    pub(crate) trace: &'a Trace,
}

impl RequestContext<'_> {
    /// Takes a place among the requests in flight.
    ///
    /// # Errors
    /// If `limits.max_in_flight` is reached.
    pub(crate) fn place(&self) -> Result<RequestPermit, ApiError> {
        self.app.place().ok_or(ApiError::Overloaded)
    }
}
