//! Outcomes of attempts.

use http::StatusCode;
use protocol::verdict::{PushBack, Verdict};

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The response is complete.
    Ok,
    /// The response reports an error of the client: its status is 4xx, or its body holds an error with such a code.
    ClientError,
    /// The worker had no room.
    Declined(PushBack),
    /// The worker failed: it answered 5xx, did not answer, or timed out.
    WorkerError,
    /// The worker failed: the body of a successful response is an error.
    ErrorInBody,
    /// The response was cut short.
    Broken,
    /// The client left.
    Aborted,
    /// The request's deadline passed.
    Deadline,
    /// The drain limit passed.
    Cut,
    /// The worker did not begin, or the request is retried on another one.
    NotReached,
    /// A hedged attempt was faster.
    Outrun,
}

impl AttemptOutcome {
    /// Returns the outcome of a response that is relayed completely.
    pub fn of(status: StatusCode, verdict: Verdict) -> Self {
        match verdict {
            Verdict::Ok => Self::Ok,
            Verdict::ClientError => Self::ClientError,
            Verdict::Declined(push_back) => Self::Declined(push_back),
            Verdict::Failed if status.is_success() => Self::ErrorInBody,
            Verdict::Failed => Self::WorkerError,
            Verdict::Broken => Self::Broken,
        }
    }

    /// Returns the name in metrics and traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ClientError => "client_error",
            Self::Declined(_) => "declined",
            Self::WorkerError => "worker_error",
            Self::ErrorInBody => "error_in_body",
            Self::Broken => "broken",
            Self::Aborted => "aborted",
            Self::Deadline => "deadline",
            Self::Cut => "cut",
            Self::NotReached => "not_reached",
            Self::Outrun => "outrun",
        }
    }

    /// Returns whether the outcome ends the request, and not only the attempt.
    pub(super) fn is_final(self) -> bool {
        !matches!(self, Self::NotReached | Self::Outrun)
    }

    /// Returns whether the outcome counts as a failure of the worker.
    pub(super) fn is_the_workers(self) -> bool {
        matches!(self, Self::WorkerError | Self::ErrorInBody | Self::Broken)
    }

    /// Returns whether the worker may have computed a reply. An error is no observation of costs or caches.
    pub(super) fn may_be_computed(self) -> bool {
        !matches!(
            self,
            Self::ClientError | Self::Declined(_) | Self::WorkerError | Self::ErrorInBody
        )
    }
}
