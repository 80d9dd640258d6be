//! The discovery sources and their state.

use discovery::SourceState;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply};
use super::operation::Operation;

/// How it is with discovery.
#[derive(Debug, Serialize, JsonSchema)]
struct Sources {
    /// What finds workers, those before that are believed more; empty if nothing does.
    sources: Vec<SourceState>,
    /// Most workers that are taken of all of them.
    max_workers: usize,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation::get::<Sources, _, _>(
        "discovery.get",
        "/admin/v1/discovery",
        "The sources of workers: when each last responded, its error, and the entries that were refused",
        |call: Call| async move {
            Reply::json(&Sources {
                sources: call.admin.state.discovery.states(),
                max_workers: call.admin.state.config.discovery.max_workers,
            })
        },
    )]
}
