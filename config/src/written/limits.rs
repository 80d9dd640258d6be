//! Bounds on sizes, times and numbers: `[limits]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body; a longer one is answered 413.
    #[schemars(range(min = 1_024))]
    pub max_body_bytes: u64,
    /// Bytes of all requests together whose answers have not begun, unfinished heads included; the request that would need
    /// more is answered 503. One body of `max_body_bytes` always fits.
    #[schemars(range(min = 1_024))]
    pub max_unread_bytes: u64,
    /// Bytes of a request's head; a longer one is answered 431.
    #[schemars(range(min = 8_192, max = 16_777_216))]
    pub max_header_bytes: u64,
    /// Bytes of one message of a worker's cache events (`kv_events`); a longer one ends the stream, and the worker's mirror is
    /// believed until it is followed again.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub max_kv_message_bytes: u64,
    /// Seconds that a client may take to send a request's head.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub header_timeout_s: f64,
    /// Seconds that a client may take to send a request's body; a slower one is answered 408.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub body_timeout_s: f64,
    /// Seconds that a connection to a worker may take to come up.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub connect_timeout_s: f64,
    /// Seconds that a worker may take, all in all, until the head of its answer is there; then 504.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub first_byte_timeout_s: f64,
    /// Seconds that a stream may be silent, or its client not take what there is of it, before it is given up; and that an
    /// HTTP/2 connection may be without a stream before it is closed.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub idle_timeout_s: f64,
    /// Open client connections. A new one beyond it takes the place of an idle one, and waits to be accepted while none is
    /// idle. Lowered at the start to what the limit on open files allows.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Requests in flight; beyond it new ones are answered 503. Lowered at the start to what the limit on open files allows.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_flight: u32,
    /// Seconds that a router which was told to stop goes on taking connections, so that whoever sends clients here learns
    /// that it is not ready any more before its port closes. 0: the port closes at once. Not
    /// more than `drain_timeout_s`.
    #[schemars(range(min = 0, max = 3_600))]
    pub drain_delay_s: f64,
    /// Seconds that requests in flight are given to end when the router is told to stop, `drain_delay_s` not counted.
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_timeout_s: f64,
    /// Other workers that are tried when one fails before it can have started on the request.
    #[schemars(range(max = 16))]
    pub retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 << 20,
            max_unread_bytes: 1 << 30,
            max_header_bytes: 64 << 10,
            max_kv_message_bytes: 64 << 20,
            header_timeout_s: 10.0,
            body_timeout_s: 60.0,
            connect_timeout_s: 2.0,
            first_byte_timeout_s: 600.0,
            idle_timeout_s: 120.0,
            max_connections: 10_000,
            max_in_flight: 4_096,
            drain_delay_s: 0.0,
            drain_timeout_s: 130.0,
            retries: 2,
        }
    }
}
