//! The commands: arguments in, exit code out.

pub mod gpu;
pub mod python;
pub mod serve;
pub mod worker;
