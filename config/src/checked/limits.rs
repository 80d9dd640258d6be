//! Limits on sizes, times and numbers.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::checker::Checker;
use crate::written;

/// Limits on sizes, times and numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body in bytes.
    pub max_body_bytes: NonZeroUsize,
    /// Bytes of all requests without a response so far; at least one body.
    pub max_unread_bytes: NonZeroUsize,
    /// Largest head of a request in bytes; at least 8 KiB, hyper's minimum.
    pub max_header_bytes: NonZeroUsize,
    /// Largest message of a worker's cache events in bytes.
    pub max_kv_message_bytes: NonZeroUsize,
    /// Time limit for a client to send a request's head.
    pub header_timeout: Duration,
    /// Time limit for a client to send a request's body.
    pub body_timeout: Duration,
    /// Time limit for connecting to a worker.
    pub connect_timeout: Duration,
    /// Total time limit for the head of a worker's response.
    pub first_byte_timeout: Duration,
    /// Longest silence of a stream, and longest time for a client to take available data.
    pub idle_timeout: Duration,
    /// Largest number of client connections.
    pub max_connections: NonZeroUsize,
    /// Largest number of requests in flight.
    pub max_in_flight: NonZeroUsize,
    /// Time between the start of a drain and the closing of the port, in which clients can learn of it; may be zero.
    pub drain_delay: Duration,
    /// Time limit for requests in flight to end after the start of a drain; may be zero.
    pub drain_timeout: Duration,
    /// Largest number of other workers to try.
    pub retries: u32,
}

pub(super) fn limits(written: &written::Limits, checker: &mut Checker<'_>) -> Limits {
    // An idle connection is kept for the delay, and connections still open at the timeout are cut.
    if written.drain_delay_s > written.drain_timeout_s {
        let what = format!(
            "{} s is longer than drain_timeout_s ({} s), which would cut every drain off",
            written.drain_delay_s, written.drain_timeout_s
        );
        let hint = "raise limits.drain_timeout_s or lower this".to_owned();
        checker.report("limits.drain_delay_s", what, Some(hint));
    }
    Limits {
        max_body_bytes: checker.bytes("limits.max_body_bytes", written.max_body_bytes),
        max_unread_bytes: checker
            .bytes("limits.max_unread_bytes", written.max_unread_bytes)
            .max(checker.bytes("limits.max_body_bytes", written.max_body_bytes)),
        max_header_bytes: checker.bytes("limits.max_header_bytes", written.max_header_bytes),
        max_kv_message_bytes: checker.bytes("limits.max_kv_message_bytes", written.max_kv_message_bytes),
        header_timeout: checker.seconds("limits.header_timeout_s", written.header_timeout_s),
        body_timeout: checker.seconds("limits.body_timeout_s", written.body_timeout_s),
        connect_timeout: checker.seconds("limits.connect_timeout_s", written.connect_timeout_s),
        first_byte_timeout: checker.seconds("limits.first_byte_timeout_s", written.first_byte_timeout_s),
        idle_timeout: checker.seconds("limits.idle_timeout_s", written.idle_timeout_s),
        max_connections: checker.bytes("limits.max_connections", written.max_connections.into()),
        max_in_flight: checker.bytes("limits.max_in_flight", written.max_in_flight.into()),
        drain_delay: checker.seconds("limits.drain_delay_s", written.drain_delay_s),
        drain_timeout: checker.seconds("limits.drain_timeout_s", written.drain_timeout_s),
        retries: written.retries,
    }
}
