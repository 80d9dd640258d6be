//! The discovery sources and their state.

use discovery::SourceState;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply};
use super::operation::Operation;

/// State of discovery.
#[derive(Debug, Serialize, JsonSchema)]
struct Sources {
    /// Sources of workers, in order of precedence; empty if none is configured.
    sources: Vec<SourceState>,
    /// Most workers taken from all sources together.
    max_workers: usize,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation::get::<Sources, _, _>(
        "discovery.get",
        "/admin/v1/discovery",
        "The sources of workers: when each last responded, its error, and the entries that were refused",
        |call: Call| async move {
            Reply::json(&Sources {
                sources: call.admin.state.operations.discovery.states(),
                max_workers: call.admin.state.config.discovery.max_workers,
            })
        },
    )]
}
