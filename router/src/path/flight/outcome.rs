//! How attempts end.

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer passed.
    Ok,
    /// The worker refused the request: 4xx.
    ClientError,
    /// The worker failed: 5xx, no answer, none in time.
    WorkerError,
    /// The answer broke off.
    Broken,
    /// The client left.
    Aborted,
    /// The request's own time was up.
    Deadline,
    /// The router had to go.
    Cut,
    /// The worker did not begin; the request may go elsewhere.
    NotReached,
    /// Another worker, asked as well, was faster.
    Outrun,
}

impl Outcome {
    /// Its name in metrics and traces.
    #[must_use]
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

    /// Whether it is the request's end, and not only an attempt's.
    pub(super) fn is_final(self) -> bool {
        !matches!(self, Self::NotReached | Self::Outrun)
    }

    /// Whether it is held against the worker.
    pub(super) fn is_the_workers(self) -> bool {
        matches!(self, Self::WorkerError | Self::Broken)
    }
}
