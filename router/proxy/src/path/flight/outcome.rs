//! Outcomes of attempts.

use http::StatusCode;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response is complete.
    Ok,
    /// The worker rejected the request: 4xx.
    ClientError,
    /// The worker failed: 5xx, no response, or a timeout.
    WorkerError,
    /// The response was cut short.
    Broken,
    /// The client left.
    Aborted,
    /// The request's deadline passed.
    Deadline,
    /// The drain limit passed.
    Cut,
    /// The worker did not begin. The request may be retried.
    NotReached,
    /// A hedged attempt was faster.
    Outrun,
}

impl Outcome {
    /// The outcome of a response with this status, if it is relayed completely.
    pub(in crate::path) fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            500.. => Self::WorkerError,
            400.. => Self::ClientError,
            _ => Self::Ok,
        }
    }

    /// The name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::WorkerError => "worker_error",
            Self::Broken => "broken",
            Self::Aborted => "aborted",
            Self::Deadline => "deadline",
            Self::Cut => "cut",
            Self::NotReached => "not_reached",
            Self::Outrun => "outrun",
        }
    }

    /// Whether the outcome ends the request, and not only the attempt.
    pub(super) fn is_final(self) -> bool {
        !matches!(self, Self::NotReached | Self::Outrun)
    }

    /// Whether the outcome counts as a failure of the worker.
    pub(super) fn is_the_workers(self) -> bool {
        matches!(self, Self::WorkerError | Self::Broken)
    }
}
