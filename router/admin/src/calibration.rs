//! A worker's measured cost, as `gpu-bench --push` sends it to a running router.

use axum::http::Method;
use config::Role;
use policy::cost::PrefillCost;
use schemars::JsonSchema;
use serde::Deserialize;

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use super::workers::{NAME, WorkerDetails, named, shown};
use fleet::facts::Serves;
use fleet::overrides::Measured;
use replicas::calibrations::Calibration;

/// Body of a calibration: a measured prefill cost.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Calibrate {
    /// α: milliseconds per uncached token.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    alpha_ms_per_token: f64,
    /// β: milliseconds that every prompt takes.
    #[schemars(range(min = 0, max = 1e9))]
    beta_ms: f64,
    /// γ: milliseconds per (uncached token × context token).
    #[schemars(range(min = 0, max = 1e3))]
    gamma_ms_per_token2: f64,
    /// Least time of a prefill in milliseconds; 0 if no floor was found.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1e9))]
    floor_ms: f64,
    /// Model that was measured. The calibration is refused if the worker is known not to serve it.
    #[serde(default)]
    #[schemars(length(max = 500))]
    model: Option<String>,
    /// Time of the measurement, in seconds since 1970.
    measured_at_unix_s: u64,
    /// Share of the measured variance that these coefficients explain.
    #[schemars(range(min = 0, max = 1))]
    r_squared: f64,
    /// Reason for the change, recorded in the audit log.
    #[schemars(length(min = 1, max = 500))]
    reason: String,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new::<WorkerDetails, _, _>(
            "workers.calibrate",
            Method::PUT,
            "/admin/v1/workers/{name}/calibration",
            Role::Operate,
            "Restart a worker's learned cost from a calibration, on all replicas; kept with a snapshot or in the fleet's bucket; the file is not changed",
            calibrate,
        )
        .parameter("name", NAME)
        .body::<Calibrate>()
        .fails(&[404, 409]),
    ]
}

async fn calibrate(call: Call) -> Result<Reply, Problem> {
    let worker = named(&call)?;
    let asked: Calibrate = call.body()?;
    if let Some(model) = &asked.model
        && worker.serves(model) == Serves::No
    {
        return Err(Problem::conflict(format!(
            "the worker does not serve the calibrated model {model:?}; is this the calibration of another worker?"
        )));
    }
    let before = worker.cost();
    let cost = PrefillCost {
        alpha_ms_per_token: asked.alpha_ms_per_token,
        beta_ms: asked.beta_ms,
        gamma_ms_per_token2: asked.gamma_ms_per_token2,
        floor_ms: asked.floor_ms,
    };
    call.admin.state.calibrate(
        &worker,
        Measured {
            cost,
            at_unix_s: asked.measured_at_unix_s,
            r_squared: asked.r_squared,
        },
    );
    if let Some(bus) = &call.admin.bus {
        let told = Calibration {
            alpha_ms_per_token: asked.alpha_ms_per_token,
            beta_ms: asked.beta_ms,
            gamma_ms_per_token2: asked.gamma_ms_per_token2,
            floor_ms: asked.floor_ms,
            measured_at_unix_s: asked.measured_at_unix_s,
            r_squared: asked.r_squared,
            by: call.who.name.to_string(),
            reason: asked.reason,
        };
        bus.calibrated(worker.name(), told);
    }
    Ok(Reply::json(&shown(&call.admin, &worker))?.changed(&before, &cost))
}
