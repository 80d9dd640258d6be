//! The state and the decisions of tailroute.
//!
//! Pure by contract: no async, no clock, no I/O, no HTTP, no metrics. Callers pass in `now`, bytes and seeds.

#![warn(missing_docs)]

pub mod admission;
pub mod cache;
pub mod cost;
pub mod estimate;
pub mod evidence;
pub mod exposition;
pub mod fingerprint;
pub mod fleet_record;
pub mod hint_rule;
pub mod ids;
pub mod index;
pub mod recent;
pub mod residency;
pub mod route;
pub mod set_associative;
pub mod slo;
pub mod stats;
pub mod tail;
pub mod text;
pub mod units;

mod sync;
