//! The commands of the program.

pub mod compare;
pub mod decode;
pub mod gpu;
pub mod push;
pub mod python;
pub mod serve;
pub mod tiers;
pub mod worker;
