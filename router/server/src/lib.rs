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

pub use self::answers::Due;
pub use self::connection::{ConnectionServer, H2_CONNECTION_BYTES, H2_SEND_BYTES, H2_STREAM_BYTES};
pub use self::events::Phase;
