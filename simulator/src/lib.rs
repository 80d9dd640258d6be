//! Traces, the workloads that are generated from a seed, and a simulated fleet ([`fleet`]) behind [`policy`]'s routing.
//! `tailroute replay` and the previews of the admin API play captures with it, and `tailroute drive` reads its traces.

pub mod agentic;
pub mod args;
mod draw;
pub mod fleet;
pub mod generate;
pub mod hot;
pub mod progress;
pub mod served;
pub mod side_by_side;
pub mod terminal;
pub mod trace;
pub mod trace_file;
pub mod trace_source;
