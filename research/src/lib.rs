//! The laboratory: it plays traces through [`policy`]'s code in front of simulated caches and fleets
//! ([`simulator::fleet`]), and prints the tables of the documents.

pub mod cache;
pub mod convert;
pub mod sim;
pub mod simulate;
pub mod tables;
