//! Limits on sizes, times and numbers: `[limits]`.

use std::num::NonZeroUsize;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsSeconds, at_least_one};
use super::checker::Checker;

/// Limits on sizes, times and numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest size of a request body in bytes; a longer one is answered 413.
    #[schemars(with = "u64", range(min = 1_024))]
    pub max_body_bytes: NonZeroUsize,
    /// Largest size of all requests without a response so far, in bytes, unfinished heads included; a request that
    /// would exceed it is answered 503. One body of `max_body_bytes` always fits.
    #[schemars(with = "u64", range(min = 1_024))]
    pub max_unread_bytes: NonZeroUsize,
    /// Largest size of a request's head in bytes; a longer one is answered 431.
    #[schemars(with = "u64", range(min = 8_192, max = 16_777_216))]
    pub max_header_bytes: NonZeroUsize,
    /// Largest size of a message of a worker's cache events (`kv_events`), in bytes; a longer one ends the stream, and
    /// the worker's mirror is used until the stream is followed again.
    #[schemars(with = "u64", range(min = 65_536, max = 1_073_741_824))]
    pub max_kv_message_bytes: NonZeroUsize,
    /// Seconds that a client may take to send a request's head, from its first byte; a slower one is answered 408. Also
    /// bounds a TLS handshake.
    #[serde(rename = "header_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub header_timeout: Duration,
    /// Seconds that a client connection may be open without a request before it is closed. Longer than clients keep
    /// idle connections, so that they do not send a request into the close: aiohttp 15 s, Node.js and httpx 5 s.
    #[serde(rename = "client_idle_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub client_idle_timeout: Duration,
    /// Seconds that a client may take to send a request's body; a slower one is answered 408.
    #[serde(rename = "body_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub body_timeout: Duration,
    /// Time limit in seconds for connecting to a worker.
    #[serde(rename = "connect_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub connect_timeout: Duration,
    /// Seconds from sending a request to a worker until the first token of its response, or the first byte of a
    /// response without tokens; then 504, or a stream whose head was forwarded ends with an error event. Comments and
    /// pings in a stream do not extend it.
    #[serde(rename = "first_byte_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub first_byte_timeout: Duration,
    /// Seconds that a response may be silent after its first token, or that its client may take no available data,
    /// before it is cut.
    #[serde(rename = "idle_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub idle_timeout: Duration,
    /// Largest number of client connections. A further one replaces an idle one, and is accepted later while none is
    /// idle. Lowered at the start if the limit on open files requires it.
    #[schemars(with = "u32", range(min = 1, max = 1_000_000))]
    pub max_connections: NonZeroUsize,
    /// Largest number of requests in flight; further ones are answered 503. Lowered at the start if the limit on open
    /// files requires it.
    #[schemars(with = "u32", range(min = 1, max = 1_000_000))]
    pub max_in_flight: NonZeroUsize,
    /// Seconds for which a router that is shutting down still accepts connections, so that load balancers learn that it
    /// is not ready before its port closes. 0: the port closes at once. At most `drain_timeout_s`.
    #[serde(rename = "drain_delay_s", with = "AsSeconds")]
    #[schemars(range(min = 0, max = 3_600))]
    pub drain_delay: Duration,
    /// Seconds for requests in flight to end when the router shuts down, not counting `drain_delay_s`.
    #[serde(rename = "drain_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_timeout: Duration,
    /// Number of other workers to try when one fails before it can have started on the request.
    #[schemars(range(max = 16))]
    pub retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: at_least_one(32 << 20),
            max_unread_bytes: at_least_one(1 << 30),
            max_header_bytes: at_least_one(64 << 10),
            max_kv_message_bytes: at_least_one(64 << 20),
            header_timeout: Duration::from_secs(10),
            client_idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(2),
            first_byte_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(120),
            max_connections: at_least_one(10_000),
            max_in_flight: at_least_one(4_096),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(130),
            retries: 2,
        }
    }
}

impl Limits {
    pub(crate) fn checked(mut self, checker: &mut Checker<'_>) -> Self {
        // An idle connection is kept for the delay, and connections still open at the timeout are cut.
        if self.drain_delay > self.drain_timeout {
            let what = format!(
                "{} s is longer than drain_timeout_s ({} s), which would cut off every drain",
                self.drain_delay.as_secs_f64(),
                self.drain_timeout.as_secs_f64()
            );
            let hint = "raise limits.drain_timeout_s or lower this".to_owned();
            checker.report("limits.drain_delay_s", what, Some(hint));
        }
        self.max_unread_bytes = self.max_unread_bytes.max(self.max_body_bytes);
        self
    }
}
