//! Admission and fairness, without a clock or a lock.
//!
//! - [`Bucket`]: a token bucket per key. It is refilled at a rate, emptied by use, and may go below zero, because the
//!   cost of a request is known only after its response.
//! - [`FairQueue`]: the order in which waiting requests are served. Start-time fair queueing, within classes of strict
//!   priority. A property test compares it with a reference implementation.

mod bucket;
mod fair;
#[cfg(test)]
mod naive;

pub use bucket::Bucket;
pub use fair::{FairQueue, Flow, Ticket};

#[cfg(test)]
mod tests;
