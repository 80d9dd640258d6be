//! Reasons why an input cannot be translated.

use crate::MOST_BYTES;

/// Reason why an input cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The input is too long.
    #[error("longer than {MOST_BYTES} bytes, the limit for an input")]
    TooLong,
    /// The input does not show which router it is for.
    #[error(
        "no known router is started here; name it with --from sglang-router, vllm-router, production-stack or nginx"
    )]
    Unknown,
    /// nginx is configured by a file.
    #[error("nginx is configured by a file, not by flags; name the file instead")]
    NotNginx,
    /// Several routers are started, and only one becomes a configuration.
    #[error("{first} and {second} both start a router; migrate them one at a time")]
    Several {
        /// Place where one is started.
        first: String,
        /// Place where another one is started.
        second: String,
    },
    /// A flag or directive cannot be understood.
    #[error("{place}: {what}")]
    Wrong {
        /// Flag, or file and line of the directive.
        place: String,
        /// Problem, and the expected value.
        what: String,
    },
}

impl Error {
    pub(crate) fn wrong(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Wrong {
            place: place.into(),
            what: what.into(),
        }
    }
}
