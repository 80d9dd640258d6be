//! Who may come in, and who is next.
//!
//! Two questions that a router in front of a full fleet has to answer, without a clock or a lock:
//!
//! - [`Bucket`]: has this key used up what it may use? A token bucket: refilled at a rate, emptied by use, and allowed
//!   to go below zero, because what a request really costs is known only when it has been answered.
//! - [`FairQueue`]: whose request is served when a place becomes free? Start-time fair queueing, within classes of
//!   strict priority. [`naive`] is the same rule written so that it is plainly right; a property test drives both.

mod bucket;
mod fair;
pub mod naive;

pub use bucket::Bucket;
pub use fair::{FairQueue, Flow, Ticket};

#[cfg(test)]
mod tests;
