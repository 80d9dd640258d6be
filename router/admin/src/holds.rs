//! Workers that an operator takes out of service and returns to it.

use axum::http::Method;
use config::Role;

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use super::reason::{Because, Forced};
use super::workers::{NAME, WorkerDetails, named, shown};
use fleet::Worker;
use fleet::overrides::AdminState;

pub(super) fn operations() -> Vec<Operation> {
    let take_out = |id, path, summary, hold| {
        Operation::new::<WorkerDetails, _, _>(id, Method::POST, path, Role::Operate, summary, move |call| {
            take_out(call, hold)
        })
        .parameter("name", NAME)
        .body::<Forced>()
        .fails(&[404, 409])
    };
    vec![
        take_out(
            "workers.cordon",
            "/admin/v1/workers/{name}/cordon",
            "Send a worker only turns that no other worker can serve",
            AdminState::Cordoned,
        ),
        Operation::new::<WorkerDetails, _, _>(
            "workers.uncordon",
            Method::POST,
            "/admin/v1/workers/{name}/uncordon",
            Role::Operate,
            "Send a worker turns again, after a cordon or a drain",
            uncordon,
        )
        .parameter("name", NAME)
        .body::<Because>()
        .fails(&[404, 409]),
        take_out(
            "workers.drain",
            "/admin/v1/workers/{name}/drain",
            "Send a worker no turns; it is `drained` once its turns have finished",
            AdminState::Draining,
        ),
    ]
}

/// Refuses to take the last ready worker out of service, unless that is forced.
pub(super) fn keep_one(call: &Call, worker: &Worker, force: bool) -> Result<(), Problem> {
    let workers = call.admin.state.routing.fleet.present();
    let others = workers
        .iter()
        .filter(|other| other.id != worker.id && other.is_ready());
    if force || !worker.is_ready() || others.count() > 0 {
        return Ok(());
    }
    Err(Problem::last_worker(format!(
        "{} is the last ready worker: without it, clients get 503 until another one is ready. Nothing was changed; \
         repeat with `force: true` (`tailroute ctl … --force`) to do it anyway",
        worker.name()
    )))
}

async fn take_out(call: Call, hold: AdminState) -> Result<Reply, Problem> {
    let worker = named(&call)?;
    let forced: Forced = call.body()?;
    keep_one(&call, &worker, forced.force)?;
    set_admin_state(&call, &worker, hold)
}

async fn uncordon(call: Call) -> Result<Reply, Problem> {
    let worker = named(&call)?;
    let _: Because = call.body()?;
    set_admin_state(&call, &worker, AdminState::None)
}

fn set_admin_state(call: &Call, worker: &Worker, hold: AdminState) -> Result<Reply, Problem> {
    let Some(before) = worker.set_admin_state(hold) else {
        return Err(Problem::conflict("it is leaving the fleet and cannot be kept"));
    };
    call.admin.state.operations.worker_changed(worker);
    Ok(Reply::json(&shown(&call.admin, worker))?.changed(&before, &hold))
}
