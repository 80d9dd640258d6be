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

/// Keys.
#[derive(Debug, Serialize, JsonSchema)]
struct List {
    /// All of them, by name.
    keys: Vec<Shown>,
}

/// A key, and what it may still use.
#[derive(Debug, Serialize, JsonSchema)]
struct Shown {
    /// Its name.
    name: String,
    /// Requests, if they are bounded.
    requests: Option<Allowance>,
    /// Tokens of prompts and answers, if they are bounded.
    tokens: Option<Allowance>,
}

/// What is left of a bound.
#[derive(Debug, Serialize, JsonSchema)]
struct Allowance {
    /// So much; below zero: overdrawn, and paid for by the key's next requests.
    left: f64,
    /// The most that it can be.
    burst: f64,
    /// In so many seconds it is all there again.
    full_in_s: f64,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<List, _, _>(
            "keys.list",
            "/admin/v1/keys",
            "The API keys and what remains of their limits, at this replica",
            |call: Call| async move {
                let now = call.admin.state.clock.now();
                let keys = call.admin.proxy.admission.keys().left_of_all(now);
                Reply::json(&List {
                    keys: keys.into_iter().map(|(name, left)| shown(name, left)).collect(),
                })
            },
        ),
        Operation::new::<Shown, _, _>(
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

fn shown(name: String, [requests, tokens]: [Option<Left>; 2]) -> Shown {
    let allowance = |left: Left| Allowance {
        left: left.left,
        burst: left.burst,
        full_in_s: left.full_in.0 / 1e3,
    };
    Shown {
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
        .reset(name, call.admin.state.clock.now())
    else {
        return Err(Problem::not_found(
            "no key has this name; GET /admin/v1/keys lists them",
        ));
    };
    let [before, after] = [before, after].map(|left| shown(name.to_owned(), left));
    Ok(Reply::json(&after)?.changed(&before, &after))
}
