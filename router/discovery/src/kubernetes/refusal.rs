//! The reason why a request to the API server has no usable response.

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{code}: {message}")]
    Answered {
        code: u16,
        /// The server's message; empty if it sent none.
        message: String,
    },
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    OutOfBounds(String),
}
