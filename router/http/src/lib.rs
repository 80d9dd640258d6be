//! HTTP between the router and its peers: TLS, bodies, exchanges with workers.

pub mod body;
pub mod byte_reservation;
pub mod error;
pub mod rare_waker;
pub mod tls;
pub mod upstream;
pub mod via;
