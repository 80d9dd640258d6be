//! Recent decisions, by page or by request.

use axum::http::Method;
use config::Role;
use policy::slo::Cause;
use schemars::JsonSchema;
use serde::Deserialize;

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use crate::Admin;
use proxy::decisions::Filter;
use proxy::decisions::view::{Explained, Page};
use telemetry::context::TraceId;

/// Largest page.
const MOST: usize = 200;

/// Which decisions are wanted.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// That chose this worker.
    worker: Option<String>,
    /// Whose objective is of this class.
    class: Option<String>,
    /// Of this trace: 32 hexadecimal digits.
    trace: Option<String>,
    /// With the number that the answer carried in `x-tailroute-decision`.
    decision: Option<u64>,
    /// That missed their objective (true), or have not by now (false).
    late: Option<bool>,
    /// That missed it for this reason.
    #[schemars(with = "CauseName")]
    cause: Option<CauseName>,
    /// Older ones: the `next` of the page before.
    before: Option<u64>,
    /// Most decisions of the page.
    #[schemars(range(min = 1, max = 200))]
    limit: usize,
}

/// Why a turn was late.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CauseName {
    /// It waited.
    Queue,
    /// Tokens that could have been cached were not.
    Miss,
    /// The engine was slower than its fitted cost.
    Engine,
    /// Time passed that the engine knows nothing of.
    Network,
    /// Its own new tokens take longer than the objective.
    Prompt,
    /// Its answer came in one piece.
    Whole,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            worker: None,
            class: None,
            trace: None,
            decision: None,
            late: None,
            cause: None,
            before: None,
            limit: 50,
        }
    }
}

impl From<CauseName> for Cause {
    fn from(name: CauseName) -> Self {
        match name {
            CauseName::Queue => Self::Queue,
            CauseName::Miss => Self::Miss,
            CauseName::Engine => Self::Engine,
            CauseName::Network => Self::Network,
            CauseName::Prompt => Self::Prompt,
            CauseName::Whole => Self::Whole,
        }
    }
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new::<Page, _, _>(
            "decisions.list",
            Method::GET,
            "/admin/v1/decisions",
            Role::Read,
            "Recent decisions, newest first: every worker's terms, the choice, the runner-up, the outcome",
            list,
        )
        .query::<Wanted>(),
        Operation::new::<Page, _, _>(
            "decisions.get",
            Method::GET,
            "/admin/v1/decisions/{request}",
            Role::Read,
            "The decisions of one request, one for each attempted worker",
            of_request,
        )
        .parameter("request", "its `x-request-id`")
        .fails(&[404]),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let wanted: Wanted = call.query()?;
    let admin = &call.admin;
    let trace = wanted.trace.map(|digits| {
        let read = TraceId::read(digits.as_bytes());
        read.ok_or_else(|| {
            Problem::malformed(format!("trace: expected 32 hexadecimal digits, found `{digits}`"))
        })
    });
    let worker = wanted.worker.map(|name| {
        let known = admin.state.fleet.find(&name);
        known.map(|worker| (worker.id.0, worker.joined)).ok_or_else(|| {
            Problem::malformed(format!(
                "worker: there is no `{name}`; GET /admin/v1/slo names them all"
            ))
        })
    });
    let filter = Filter {
        request: None,
        trace: trace.transpose()?,
        decision: wanted.decision,
        worker: worker.transpose()?,
        class: wanted.class,
        late: wanted.late,
        cause: wanted.cause.map(Cause::from),
    };
    Reply::json(&page(admin, &filter, wanted.before, wanted.limit.clamp(1, MOST)))
}

async fn of_request(call: Call) -> Result<Reply, Problem> {
    let filter = Filter {
        request: Some(call.parameter("request").to_owned()),
        ..Filter::default()
    };
    let page = page(&call.admin, &filter, None, MOST);
    if page.decisions.is_empty() {
        return Err(Problem::not_found(format!(
            "no decision of this request is kept; the router keeps the last {} (explain.max_bytes)",
            page.capacity
        )));
    }
    Reply::json(&page)
}

fn page(admin: &Admin, filter: &Filter, before: Option<u64>, limit: usize) -> Page {
    let (slots, next) = admin.proxy.decisions.page(filter, before, limit);
    Page {
        decisions: slots
            .iter()
            .map(|slot| Explained::of(&admin.proxy, slot))
            .collect(),
        next,
        capacity: admin.proxy.decisions.capacity(),
    }
}
