//! Connections of clients: request framing, timeouts, limits, and a fast path for streamed responses.
//!
//! [`ConnectionServer`] serves a connection of the data port. The other ports use parts of it: [`connections`] bounds the
//! number of their connections, [`client_io`] the time of their writes.

mod answers;
mod check;
pub mod client_io;
mod connection;
pub mod connections;
mod events;
mod fast_path;
pub mod framing;
pub mod progress;
mod shared_socket;
pub mod socket;

use tokio::time::Instant;

pub use self::connection::{ConnectionServer, H2_CONNECTION_BYTES, H2_SEND_BYTES, H2_STREAM_BYTES};

/// Phase of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No shutdown.
    Serving,
    /// No new connections are accepted. Open ones announce that they close, and close when idle.
    Draining,
    /// All connections are closed. On the data port streams end with an error event first.
    Cut,
}

/// Deadline of the whole response, as a response extension.
#[derive(Clone, Copy, Debug)]
pub struct Due(pub Instant);
