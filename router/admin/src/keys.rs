//! API keys: their remaining budgets and their reset.

use axum::http::Method;
use config::Role;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use super::reason::Because;
use proxy::admission::limits::Left;

/// API keys.
#[derive(Debug, Serialize, JsonSchema)]
struct List {
    /// All API keys, by name.
    keys: Vec<KeyView>,
}

/// An API key and the remainders of its limits.
#[derive(Debug, Serialize, JsonSchema)]
struct KeyView {
    /// Name of the key.
    name: String,
    /// Remaining requests; `null` if they are not limited.
    requests: Option<Allowance>,
    /// Remaining tokens of prompts and responses; `null` if they are not limited.
    tokens: Option<Allowance>,
}

/// Remainder of a limit.
#[derive(Debug, Serialize, JsonSchema)]
struct Allowance {
    /// Remaining units; negative if the key is overdrawn. Requests are refused until enough units have accrued.
    left: f64,
    /// Largest remainder.
    burst: f64,
    /// Seconds until the remainder is the largest again, without further use.
    full_in_s: f64,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<List, _, _>(
            "keys.list",
            "/admin/v1/keys",
            "The API keys and what remains of their limits, at this replica",
            |call: Call| async move {
                let now = call.admin.state.routing.clock.now();
                let keys = call.admin.proxy.admission.keys().left_of_all(now);
                Reply::json(&List {
                    keys: keys.into_iter().map(|(name, left)| shown(name, left)).collect(),
                })
            },
        ),
        Operation::new::<KeyView, _, _>(
            "keys.reset",
            Method::POST,
            "/admin/v1/keys/{name}/reset",
            Role::Operate,
            "Restore a key's whole allowance, whatever it has used or owes, at this replica",
            reset,
        )
        .parameter("name", "The key's name, as the list gives it")
        .body::<Because>()
        .fails(&[404]),
    ]
}

fn shown(name: String, [requests, tokens]: [Option<Left>; 2]) -> KeyView {
    let allowance = |left: Left| Allowance {
        left: left.left,
        burst: left.burst,
        full_in_s: left.full_in.0 / 1e3,
    };
    KeyView {
        name,
        requests: requests.map(allowance),
        tokens: tokens.map(allowance),
    }
}

async fn reset(call: Call) -> Result<Reply, Problem> {
    let _: Because = call.body()?;
    let name = call.parameter("name");
    let Some([before, after]) = call
        .admin
        .proxy
        .admission
        .keys()
        .reset(name, call.admin.state.routing.clock.now())
    else {
        return Err(Problem::not_found(
            "no key has this name; GET /admin/v1/keys lists them",
        ));
    };
    let [before, after] = [before, after].map(|left| shown(name.to_owned(), left));
    Ok(Reply::json(&after)?.changed(&before, &after))
}
