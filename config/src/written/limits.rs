//! Limits on sizes, times and numbers: `[limits]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on sizes, times and numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body; a longer one is answered 413.
    #[schemars(range(min = 1_024))]
    pub max_body_bytes: u64,
    /// Bytes of all requests without a response so far, unfinished heads included; a request that would exceed it is
    /// answered 503. One body of `max_body_bytes` always fits.
    #[schemars(range(min = 1_024))]
    pub max_unread_bytes: u64,
    /// Bytes of a request's head; a longer one is answered 431.
    #[schemars(range(min = 8_192, max = 16_777_216))]
    pub max_header_bytes: u64,
    /// Bytes of one message of a worker's cache events (`kv_events`); a longer one ends the stream, and the worker's
    /// mirror is used until the stream is followed again.
    #[schemars(range(min = 65_536, max = 1_073_741_824))]
    pub max_kv_message_bytes: u64,
    /// Seconds that a client may take to send a request's head.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub header_timeout_s: f64,
    /// Seconds that a client may take to send a request's body; a slower one is answered 408.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub body_timeout_s: f64,
    /// Seconds to connect to a worker.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub connect_timeout_s: f64,
    /// Seconds in total until a worker's response head must have arrived; then 504.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub first_byte_timeout_s: f64,
    /// Seconds that a stream may be silent, or its client not take available data, before it is cut; and that an HTTP/2
    /// connection may have no stream before it is closed.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub idle_timeout_s: f64,
    /// Client connections. A further one replaces an idle one, and is accepted later while none is idle. Lowered at the
    /// start if the limit on open files requires it.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_connections: u32,
    /// Requests in flight; further ones are answered 503. Lowered at the start if the limit on open files requires it.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_in_flight: u32,
    /// Seconds for which a router that is shutting down still accepts connections, so that load balancers learn that it
    /// is not ready before its port closes. 0: the port closes at once. At most `drain_timeout_s`.
    #[schemars(range(min = 0, max = 3_600))]
    pub drain_delay_s: f64,
    /// Seconds for requests in flight to end when the router shuts down, not counting `drain_delay_s`.
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_timeout_s: f64,
    /// Other workers to try when one fails before it can have started on the request.
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
