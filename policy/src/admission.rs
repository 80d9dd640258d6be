//! Admission and fairness, without a clock or a lock.
//!
//! - [`Bucket`]: a token bucket per key, which may go below zero: a request's cost is known only after its response.
//! - [`FairQueue`]: the order of waiting requests: start-time fair queueing, within classes of strict priority.

mod bucket;
mod fair;
#[cfg(test)]
mod naive;

pub use bucket::Bucket;
pub use fair::{FairQueue, Flow, Ticket};

#[cfg(test)]
mod tests;
