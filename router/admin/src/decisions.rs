//! Returns recent decisions, by page or by request.

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
/// Most request ids that are named where several begin with the requested text.
const CANDIDATES: usize = 8;

/// Conditions on decisions. Absent ones match all.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct DecisionsQuery {
    /// Name of the worker that was chosen.
    worker: Option<String>,
    /// Class of the turn's objective.
    class: Option<String>,
    /// Trace of the request, as 32 hexadecimal digits.
    trace: Option<String>,
    /// Number of the decision, as in the response header `x-tailroute-decision`.
    decision: Option<u64>,
    /// Whether the turn missed its objective. Turns without a first token so far have not missed it.
    late: Option<bool>,
    /// Whether the turn has ended.
    finished: Option<bool>,
    /// Cause for which the turn missed its objective.
    #[schemars(with = "CauseName")]
    cause: Option<CauseName>,
    /// Earliest time of the first token, in milliseconds since 1970. Turns without one count by their arrival.
    from_unix_ms: Option<f64>,
    /// Latest time of the first token, in milliseconds since 1970. Turns without one count by their arrival.
    until_unix_ms: Option<f64>,
    /// Position to continue at: the `next` of the previous page. The newest decisions if absent.
    before: Option<u64>,
    /// Most decisions to return; 50 unless given.
    #[schemars(range(min = 1, max = 200))]
    limit: usize,
}

/// Cause for which a turn missed its objective.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum CauseName {
    /// The turn waited in the router, or for other prefills.
    Queue,
    /// Tokens that could have been cached had to be computed.
    Miss,
    /// A worker that has become slow, or the load that it leaves to the others, delayed the turn.
    SlowWorker,
    /// The engine took longer than its fitted cost.
    Engine,
    /// Time passed that the engine does not account for.
    Network,
    /// The turn's new tokens alone take longer than the objective.
    Prompt,
    /// The response was not streamed, so the first token came with the last.
    Whole,
}

impl Default for DecisionsQuery {
    fn default() -> Self {
        Self {
            worker: None,
            class: None,
            trace: None,
            decision: None,
            late: None,
            finished: None,
            cause: None,
            from_unix_ms: None,
            until_unix_ms: None,
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
            CauseName::SlowWorker => Self::SlowWorker,
            CauseName::Engine => Self::Engine,
            CauseName::Network => Self::Network,
            CauseName::Prompt => Self::Prompt,
            CauseName::Whole => Self::Whole,
        }
    }
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<Page, _, _>(
            "decisions.list",
            "/admin/v1/decisions",
            "Recent decisions, newest first: every worker's terms, the choice, the runner-up, the outcome",
            list,
        )
        .query::<DecisionsQuery>(),
        Operation::get::<Page, _, _>(
            "decisions.get",
            "/admin/v1/decisions/{request}",
            "The decisions of one request, one for each attempted worker",
            of_request,
        )
        .parameter(
            "request",
            "The request's `x-request-id`, or the beginning of it if no other kept request has the same",
        )
        .fails(&[404, 409]),
    ]
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let wanted: DecisionsQuery = call.query()?;
    let admin = &call.admin;
    let trace = wanted.trace.map(|digits| {
        let read = TraceId::read(digits.as_bytes());
        read.ok_or_else(|| {
            Problem::malformed(format!("trace: expected 32 hexadecimal digits, found `{digits}`"))
        })
    });
    let worker = wanted.worker.map(|name| {
        let known = admin.state.routing.fleet.find(&name);
        known.map(|worker| (worker.id.0, worker.joined)).ok_or_else(|| {
            Problem::malformed(format!(
                "worker: there is no `{name}`; GET /admin/v1/slo names them all"
            ))
        })
    });
    let reading = |unix_ms: f64| admin.state.routing.clock.reading(unix_ms);
    let filter = Filter {
        request: None,
        trace: trace.transpose()?,
        decision: wanted.decision,
        worker: worker.transpose()?,
        class: wanted.class,
        late: wanted.late,
        finished: wanted.finished,
        cause: wanted.cause.map(Cause::from),
        from: wanted.from_unix_ms.map(reading),
        until: wanted.until_unix_ms.map(reading),
    };
    Reply::json(&page(admin, &filter, wanted.before, wanted.limit.clamp(1, MOST)))
}

async fn of_request(call: Call) -> Result<Reply, Problem> {
    let asked = call.parameter("request");
    let page = |request: &str| {
        let filter = Filter {
            request: Some(request.to_owned()),
            ..Filter::default()
        };
        page(&call.admin, &filter, None, MOST)
    };
    let exact = page(asked);
    if !exact.decisions.is_empty() {
        return Reply::json(&exact);
    }
    let decisions = &call.admin.proxy.decisions;
    let candidates = decisions.requests_beginning_with(asked, CANDIDATES + 1);
    match candidates.as_slice() {
        [] => Err(Problem::not_found(format!(
            "No decision found for this request id. The router keeps the last {} decisions (explain.max_bytes).",
            exact.capacity
        ))),
        [one] => Reply::json(&page(one)),
        many => Err(Problem::conflict(ambiguous(many))),
    }
}

fn ambiguous(candidates: &[String]) -> String {
    let more = match candidates.len() > CANDIDATES {
        true => ", …",
        false => "",
    };
    let shown = &candidates[..candidates.len().min(CANDIDATES)];
    format!("several request ids begin like this: {}{more}", shown.join(", "))
}

fn page(admin: &Admin, filter: &Filter, before: Option<u64>, limit: usize) -> Page {
    let (slots, next) = admin.proxy.decisions.page(filter, before, limit);
    let running = admin.proxy.decisions.running();
    Page {
        decisions: slots
            .iter()
            .map(|slot| Explained::of(&admin.proxy.state.routing, slot))
            .collect(),
        next,
        capacity: admin.proxy.decisions.capacity(),
        running: running.turns,
        running_predicted_late: running.predicted_late,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_ids_are_listed_up_to_a_bound() {
        let ids = |count: usize| -> Vec<String> { (0..count).map(|at| format!("ab{at}")).collect() };
        assert_eq!(
            ambiguous(&ids(2)),
            "several request ids begin like this: ab0, ab1"
        );
        let many = ambiguous(&ids(CANDIDATES + 1));
        assert!(many.ends_with("ab7, …"), "{many}");
    }
}
