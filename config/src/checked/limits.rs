//! Bounds on sizes, times and numbers.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::checker::Checker;
use crate::written;

/// Bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request body.
    pub max_body_bytes: NonZeroUsize,
    /// Bytes of all requests whose answers have not begun; at least those of one body.
    pub max_unread_bytes: NonZeroUsize,
    /// Bytes of a request's head; at least 8 KiB, which is hyper's least.
    pub max_header_bytes: NonZeroUsize,
    /// Bytes of one message of a worker's cache events.
    pub max_kv_message_bytes: NonZeroUsize,
    /// For a client to send a request's head.
    pub header_timeout: Duration,
    /// For a client to send a request's body.
    pub body_timeout: Duration,
    /// For a connection to a worker to come up.
    pub connect_timeout: Duration,
    /// Total wait for the head of a worker's answer.
    pub first_byte_timeout: Duration,
    /// For a stream to be silent, and for a client not to take what there is for it.
    pub idle_timeout: Duration,
    /// Open client connections.
    pub max_connections: NonZeroUsize,
    /// Requests in flight.
    pub max_in_flight: NonZeroUsize,
    /// For whoever sends clients here to learn that the router was told to stop, before its port closes; may be zero.
    pub drain_delay: Duration,
    /// For requests in flight to end after the router was told to stop; may be zero.
    pub drain_timeout: Duration,
    /// Other workers to be tried.
    pub retries: u32,
}

pub(super) fn limits(written: &written::Limits, checker: &mut Checker<'_>) -> Limits {
    // An idle connection is kept for the delay, and whatever is open at the timeout is cut.
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
