//! Workers: their state and the operator's overrides.

use std::sync::Arc;

use axum::http::Method;
use config::Role;
use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::{Call, Reply};
use super::operation::Operation;
use super::policy::LONGEST_S;
use super::problem::Problem;
use super::reason::{Because, Reason};
use super::worker_facts::FactView;
use super::worker_sources::FigureSources;
use crate::Admin;
use fleet::Worker;
use fleet::overrides::{AdminState, PinnedAlpha};
use fleet::source::WorkerSource;

pub(super) const NAME: &str = "The worker's name, as the list gives it";

/// Part of the list of workers to return.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct WorkersQuery {
    /// Most workers to return; 200 unless given.
    #[schemars(range(min = 1, max = 1000))]
    limit: usize,
    /// Number of workers to skip; 0 unless given.
    #[schemars(range(max = 1_000_000))]
    offset: usize,
}

impl Default for WorkersQuery {
    fn default() -> Self {
        Self {
            limit: 200,
            offset: 0,
        }
    }
}

/// Part of the fleet's workers.
#[derive(Debug, Serialize, JsonSchema)]
struct WorkersPage {
    /// The requested part of the workers.
    workers: Vec<WorkerDetails>,
    /// Number of all workers.
    total: usize,
}

/// Whether a worker receives turns, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum WorkerStatus {
    /// The worker receives turns.
    Ready,
    /// The worker has not been probed yet, or too few probes have succeeded since it was unwell.
    Starting,
    /// The worker's engine sleeps: it receives turns only if no other worker can take them.
    Asleep,
    /// The worker's probes fail.
    Unwell,
    /// The discovery source of the worker reports that it is not ready.
    NotReady,
    /// An operator has cordoned the worker: it receives only turns that no other worker can serve.
    Cordoned,
    /// An operator drains the worker, and some of its requests have not ended.
    Draining,
    /// An operator has drained the worker, and all of its requests have ended.
    Drained,
    /// The worker leaves the fleet when all of its requests have ended.
    Leaving,
}

impl WorkerStatus {
    fn of(worker: &Worker, in_flight: u32) -> Self {
        match (worker.admin_state(), worker.is_well()) {
            (AdminState::Leaving | AdminState::Gone, _) => Self::Leaving,
            (AdminState::Draining, _) if in_flight == 0 => Self::Drained,
            (AdminState::Draining, _) => Self::Draining,
            (AdminState::Cordoned, _) => Self::Cordoned,
            (AdminState::None, _) if !worker.is_offered() => Self::NotReady,
            (AdminState::None, true) if worker.facts.is_asleep() => Self::Asleep,
            (AdminState::None, true) => Self::Ready,
            (AdminState::None, false) if worker.failing().is_none() => Self::Starting,
            (AdminState::None, false) => Self::Unwell,
        }
    }
}

/// State of a worker.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WorkerDetails {
    /// Name of the worker.
    name: String,
    /// Base URL of the worker.
    url: String,
    /// Source that registered the worker.
    source: WorkerSource,
    /// Whether the worker receives turns, and if not, why.
    state: WorkerStatus,
    /// Whether probes find the worker healthy.
    well: bool,
    /// Error of the last probe; absent if it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Time since which probes have failed, in milliseconds since 1970; absent if the last one succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    since_unix_ms: Option<f64>,
    /// State of the worker's breaker: `closed` (all requests pass), `half_open` (one trial request passes) or `open`
    /// (none passes).
    breaker: &'static str,
    /// Requests sent to the worker and not finished.
    in_flight: u32,
    /// Predicted time before a request sent now would start its prefill, in milliseconds.
    wait_ms: f64,
    /// ρ: prefill work routed to the worker, as a share of its time.
    utilisation: f64,
    /// Cost of a prefill by which turns are routed.
    cost: Cost,
    /// Slowdown of the worker; absent unless it has become slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    slow: Option<SlowState>,
    /// Override of α by an operator; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    alpha_set: Option<AlphaSet>,
    /// Last calibration sent to the running router; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrated: Option<Calibrated>,
    /// ξ: uncached tokens with which a turn on the worker is expected to meet the objective.
    xi_tokens: f64,
    /// Number of silent conversations on the worker.
    silent: u64,
    /// Size of the worker's cache in tokens.
    capacity_tokens: u64,
    /// Tokens believed to be in the worker's cache.
    held_tokens: u64,
    /// Whether the worker's cache events are being followed.
    events_live: bool,
    /// Dialect in which hints are sent to the worker; `none` if it takes none.
    dialect: &'static str,
    /// Whether the worker takes hints outside of requests.
    hears_hints: bool,
    /// Number of hints queued for the worker.
    hints_waiting: usize,
    /// Objective in force at the worker; `null` if there is none.
    told: Option<TokenBudget>,
    /// Models that the worker serves, at most 32; empty if unknown.
    models: Vec<String>,
    /// Facts about the worker's engine, with sources and ages.
    facts: Vec<FactView>,
    #[serde(flatten)]
    sources: FigureSources,
}

/// Cost of a first token: `wait + overhead + max(floor, β + α·u + γ·u·(h + u/2))`, with u uncached and h cached tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
struct Cost {
    /// α: milliseconds per uncached token.
    alpha_ms_per_token: f64,
    /// β: milliseconds that every prompt takes.
    beta_ms: f64,
    /// γ: milliseconds per (uncached token × context token).
    gamma_ms_per_token2: f64,
    /// Least time of a prefill in milliseconds; 0 if no floor is known.
    floor_ms: f64,
    /// Time of a first token beyond queue and prefill in milliseconds, for engines that report those; otherwise 0, and
    /// part of β.
    overhead_ms: f64,
    /// Error of the predicted time of a typical prefill, in milliseconds.
    error_ms: f64,
}

/// Slowdown of a worker.
#[derive(Debug, Serialize, JsonSchema)]
struct SlowState {
    /// Time of a typical prefill, as a multiple of that at the baseline cost.
    factor: f64,
    /// The baseline: `own past` (the measured or configured cost, else the learned cost of the last hour in use) or
    /// `fleet` (the median worker).
    against: &'static str,
    /// Seconds since the worker became slow.
    since_s: f64,
    /// Time of a typical prefill at the learned cost, in milliseconds.
    typical_prompt_ms: f64,
    /// Time of a typical prefill at the baseline cost, in milliseconds.
    baseline_typical_prompt_ms: f64,
    /// Learned α, in milliseconds per uncached token.
    alpha_ms_per_token: f64,
    /// α of the baseline cost, in milliseconds per uncached token.
    baseline_alpha_ms_per_token: f64,
}

/// Override of a worker's α by an operator.
#[derive(Debug, Serialize, JsonSchema)]
struct AlphaSet {
    /// Learned α in milliseconds per uncached token, which applies again when the override ends.
    learned_alpha_ms_per_token: f64,
    /// Seconds until the override ends; `null` if it is permanent.
    reverts_in_s: Option<f64>,
}

/// Calibration from which learning was restarted.
#[derive(Debug, Serialize, JsonSchema)]
struct Calibrated {
    /// Measured α, in milliseconds per uncached token.
    alpha_ms_per_token: f64,
    /// β: milliseconds that every prompt takes.
    beta_ms: f64,
    /// γ: milliseconds per (uncached token × context token).
    gamma_ms_per_token2: f64,
    /// Least time of a prefill in milliseconds; 0 if no floor was found.
    floor_ms: f64,
    /// Time of the measurement, in seconds since 1970.
    measured_at_unix_s: u64,
    /// Share of the measured variance that these coefficients explain.
    r_squared: f64,
}

/// Objective in force at a worker, for requests without a separate hint.
#[derive(Debug, Serialize, JsonSchema)]
struct TokenBudget {
    /// ξ: uncached tokens that fit in the objective.
    xi_tokens: f64,
    /// Q̂: tokens that the next prompt is expected to add.
    next_prompt_tokens: u64,
    /// Whether the worker evicts by T-LRU with this ξ; otherwise by hints and LRU alone.
    t_lru: bool,
}

/// Body of an override of a worker's α.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SetAlpha {
    /// α in milliseconds per uncached token.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    alpha_ms_per_token: f64,
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
    /// Seconds after which the learned α applies again; if absent, the override is permanent.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = LONGEST_S))]
    revert_after_s: Option<f64>,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<WorkersPage, _, _>(
            "workers.list",
            "/admin/v1/workers",
            "The workers: state, load, cost, cache, breaker, hints",
            list,
        )
        .query::<WorkersQuery>(),
        Operation::get::<WorkerDetails, _, _>(
            "workers.get",
            "/admin/v1/workers/{name}",
            "One worker",
            |call: Call| async move { Reply::json(&shown_by_name(&call)?) },
        )
        .parameter("name", NAME)
        .fails(&[404]),
        Operation::new::<WorkerDetails, _, _>(
            "workers.alpha",
            Method::PUT,
            "/admin/v1/workers/{name}/alpha",
            Role::Operate,
            "Override a worker's learned α, permanently or for a limited time",
            set_alpha,
        )
        .parameter("name", NAME)
        .body::<SetAlpha>()
        .fails(&[404]),
        Operation::new::<WorkerDetails, _, _>(
            "workers.alpha_revert",
            Method::POST,
            "/admin/v1/workers/{name}/alpha/revert",
            Role::Operate,
            "Use a worker's learned α again",
            revert_alpha,
        )
        .parameter("name", NAME)
        .body::<Because>()
        .fails(&[404, 409]),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let part: WorkersQuery = call.query()?;
    let admin = &call.admin;
    let workers = admin.state.routing.fleet.present();
    let part = workers.iter().skip(part.offset).take(part.limit);
    Reply::json(&WorkersPage {
        workers: part.map(|worker| shown(admin, worker)).collect(),
        total: workers.len(),
    })
}

pub(super) fn named(call: &Call) -> Result<Arc<Worker>, Problem> {
    let name = call.parameter("name");
    call.admin.state.routing.fleet.find(name).ok_or_else(|| {
        let workers = call.admin.state.routing.fleet.present();
        let some: Vec<&str> = workers.iter().take(8).map(|worker| worker.name()).collect();
        Problem::not_found(format!(
            "no worker has this name; there are {}: {}{}",
            workers.len(),
            some.join(", "),
            if workers.len() > some.len() { ", …" } else { "" }
        ))
    })
}

fn shown_by_name(call: &Call) -> Result<WorkerDetails, Problem> {
    let worker = named(call)?;
    Ok(shown(&call.admin, &worker))
}

pub(super) fn shown(admin: &Admin, worker: &Worker) -> WorkerDetails {
    let gauges = admin.state.routing.worker_gauges(worker);
    let now = admin.state.routing.clock.now();
    let failing = worker.failing();
    let learned = worker.with_load(|load| load.learned);
    let alpha_set = worker.pinned_alpha().map(|pinned| AlphaSet {
        learned_alpha_ms_per_token: learned.alpha_ms_per_token,
        reverts_in_s: pinned.until.map(|until| ((until - now).0 / 1e3).max(0.0)),
    });
    WorkerDetails {
        name: worker.name().to_owned(),
        url: worker.spec.url.to_string(),
        source: worker.source,
        state: WorkerStatus::of(worker, gauges.in_flight),
        well: worker.is_well(),
        since_unix_ms: failing
            .as_ref()
            .map(|failure| admin.state.routing.clock.unix_ms(failure.since).round()),
        last_error: failing.map(|failure| failure.error),
        breaker: gauges.breaker.as_str(),
        in_flight: gauges.in_flight,
        wait_ms: gauges.wait.0,
        utilisation: gauges.utilisation,
        cost: Cost {
            alpha_ms_per_token: gauges.cost.alpha_ms_per_token,
            beta_ms: gauges.cost.beta_ms,
            gamma_ms_per_token2: gauges.cost.gamma_ms_per_token2,
            floor_ms: gauges.cost.floor_ms,
            overhead_ms: gauges.overhead.0,
            error_ms: gauges.cost_error.0,
        },
        slow: worker.slowdown().own.map(|slow| SlowState {
            factor: slow.factor,
            against: slow.against.as_str(),
            since_s: ((now - slow.since).0 / 1e3).max(0.0),
            typical_prompt_ms: slow.typical.0,
            baseline_typical_prompt_ms: slow.baseline_typical.0,
            alpha_ms_per_token: slow.cost.alpha_ms_per_token,
            baseline_alpha_ms_per_token: slow.baseline.alpha_ms_per_token,
        }),
        alpha_set,
        calibrated: worker.calibration().map(|measured| Calibrated {
            alpha_ms_per_token: measured.cost.alpha_ms_per_token,
            beta_ms: measured.cost.beta_ms,
            gamma_ms_per_token2: measured.cost.gamma_ms_per_token2,
            floor_ms: measured.cost.floor_ms,
            measured_at_unix_s: measured.at_unix_s,
            r_squared: measured.r_squared,
        }),
        xi_tokens: gauges.xi_tokens,
        silent: gauges.silent,
        capacity_tokens: admin.state.routing.capacity_of(worker).0,
        held_tokens: gauges.resident.0,
        events_live: gauges.kv_live,
        dialect: worker.dialect().name(),
        hears_hints: worker.hears_hints(),
        hints_waiting: worker.hints.waiting(),
        told: worker.hints.sent_objective(now).map(|told| TokenBudget {
            xi_tokens: told.objective.xi_tokens,
            next_prompt_tokens: told.next_prompt_tokens,
            t_lru: told.t_lru,
        }),
        models: models(worker),
        facts: FactView::all(worker, now),
        sources: FigureSources::of(admin, worker),
    }
}

fn models(worker: &Worker) -> Vec<String> {
    if !worker.spec.models.is_empty() {
        return worker.spec.models.iter().take(32).cloned().collect();
    }
    let listed = worker.models();
    listed.map_or_else(Vec::new, |listed| {
        listed.names().iter().take(32).cloned().collect()
    })
}

async fn set_alpha(call: Call) -> Result<Reply, Problem> {
    let worker = named(&call)?;
    let asked: SetAlpha = call.body()?;
    let before = worker.cost().alpha_ms_per_token;
    worker.pin_alpha(Some(PinnedAlpha {
        alpha_ms_per_token: asked.alpha_ms_per_token,
        until: asked
            .revert_after_s
            .map(|seconds| call.admin.state.routing.clock.now() + Millis(seconds * 1e3)),
    }));
    call.admin.state.operations.operator.alphas_set.notify_one();
    Ok(Reply::json(&shown(&call.admin, &worker))?.changed(&before, &asked.alpha_ms_per_token))
}

async fn revert_alpha(call: Call) -> Result<Reply, Problem> {
    let worker = named(&call)?;
    let _: Because = call.body()?;
    let Some(before) = worker.pin_alpha(None) else {
        return Err(Problem::conflict("this worker's α is not overridden"));
    };
    let after = worker.cost().alpha_ms_per_token;
    Ok(Reply::json(&shown(&call.admin, &worker))?.changed(&before.alpha_ms_per_token, &after))
}
