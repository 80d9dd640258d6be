//! HTTP between the router and its peers: TLS, bodies, exchanges with workers.

pub mod body;
pub mod error;
pub mod rare_waker;
pub mod tls;
pub mod unread;
pub mod upstream;
pub mod via;
