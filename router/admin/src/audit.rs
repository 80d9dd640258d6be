//! Returns the newest entries of the audit log.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use operator::audit::Entry;

/// Bound on the number of entries.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Newest {
    /// Most entries to return; 100 unless given.
    #[schemars(range(min = 1, max = 1000))]
    pub(super) limit: usize,
}

impl Default for Newest {
    fn default() -> Self {
        Self { limit: 100 }
    }
}

/// Newest entries of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
struct AuditPage {
    /// Entries, newest first.
    entries: Vec<Arc<Entry>>,
    /// Number of entries that could not be written to the file.
    write_failures: u64,
    /// Number of refused requests that were not recorded because their caller had too many.
    refused_left_out: u64,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<AuditPage, _, _>(
            "audit.list",
            "/admin/v1/audit",
            "Changes that were made or refused, newest first: who, when, why, before, after",
            list,
        )
        .query::<Newest>(),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let query: Newest = call.query()?;
    let audit = &call.admin.state.operations.operator.audit;
    Reply::json(&AuditPage {
        entries: audit.newest(query.limit),
        write_failures: audit.failures(),
        refused_left_out: audit.left_out(),
    })
}
