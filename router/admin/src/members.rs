//! Workers that join and leave the fleet.

use axum::http::Method;
use config::{Role, WorkerDocument};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::{Call, Reply};
use super::holds::keep_one;
use super::operation::Operation;
use super::problem::Problem;
use super::reason::{Forced, Reason};
use super::workers::{NAME, WorkerDetails, named, shown};
use fleet::JoinError;

/// Body of a request to add a worker.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Join {
    /// Keys of `[[workers]]`, except for `ranks` and those that name files.
    worker: WorkerDocument,
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
}

/// Record in the audit log of a worker that was added: the requested values, without those that are assumed until the
/// worker reports them.
#[derive(Serialize)]
struct Added {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alpha_ms_per_token: Option<f64>,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new::<WorkerDetails, _, _>(
            "workers.add",
            Method::POST,
            "/admin/v1/workers",
            Role::Admin,
            "Add a worker to the fleet until it is removed; the file is not changed",
            add,
        )
        .body::<Join>()
        .fails(&[409]),
        Operation::new::<WorkerDetails, _, _>(
            "workers.remove",
            Method::POST,
            "/admin/v1/workers/{name}/remove",
            Role::Admin,
            "Drain a worker and remove it from the fleet",
            remove,
        )
        .parameter("name", NAME)
        .body::<Forced>()
        .fails(&[404, 409]),
    ]
}

async fn add(call: Call) -> Result<Reply, Problem> {
    let asked: Join = call.body()?;
    let spec = asked
        .worker
        .check()
        .map_err(|problems| Problem::invalid(&problems))?;
    let added = Added {
        url: spec.url.to_string().trim_end_matches('/').to_owned(),
        capacity_tokens: spec.capacity_is_known.then_some(spec.capacity.0),
        alpha_ms_per_token: spec.cost_is_known.then_some(spec.cost.alpha_ms_per_token),
    };
    let worker = call.admin.state.join(spec).map_err(|error| match error {
        JoinError::NameTaken => Problem::conflict(format!("{error}; give this one another `name`")),
        JoinError::Leaving | JoinError::Full => Problem::conflict(error.to_string()),
    })?;
    Ok(Reply::json(&shown(&call.admin, &worker))?
        .changed(&None::<Added>, &added)
        .target(worker.name()))
}

async fn remove(call: Call) -> Result<Reply, Problem> {
    let worker = named(&call)?;
    let forced: Forced = call.body()?;
    if worker.source.finds() {
        return Err(Problem::conflict(format!(
            "it was discovered by {}, which would add it again: remove it there, or drain it here",
            worker.source.as_str()
        )));
    }
    keep_one(&call, &worker, forced.force)?;
    let Some(before) = call.admin.state.leave(&worker) else {
        return Err(Problem::conflict("it is already leaving the fleet"));
    };
    Ok(Reply::json(&shown(&call.admin, &worker))?.changed(&before, &worker.admin_state()))
}
