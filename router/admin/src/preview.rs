//! Previews of another policy: on captured turns, or in the shadow of the live policy.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use config::{HintRule, PolicyDocument, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::call::{Call, Reply};
use super::capture::{none_captured, written};
use super::operation::Operation;
use super::policy::settings;
use super::problem::Problem;
use super::reason::{Because, Reason};
use crate::Admin;
use operator::shadow::{Shadow, Tally};
use replay::{self, PreviewError};

const DEFAULT_TURNS: usize = 5_000;
/// Bound on turns × workers, and so on the scores that a preview computes.
const MAX_SCORES: usize = 10_000_000;
const LIMIT: Duration = Duration::from_secs(20);
const NICE: i32 = 10;
const FEWEST_TURNS: usize = 20;

/// Body of a request for a preview.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Try {
    /// Policy to evaluate, with all of its weights; that in force unless given.
    #[serde(default)]
    #[schemars(with = "PolicyDocument")]
    settings: Option<PolicyDocument>,
    /// Rule of hints to evaluate; that in force unless given.
    #[serde(default)]
    #[schemars(with = "HintRule")]
    hint_rule: Option<HintRule>,
    /// Number of the newest captured turns to replay; 5,000 unless given, and fewer with many workers.
    #[serde(default)]
    #[schemars(range(min = 20, max = 50_000))]
    turns: Option<u32>,
    /// Whether to report even if the simulation does not reproduce the measured times within a factor of 1.5.
    #[serde(default)]
    anyway: bool,
}

/// Body of a request to evaluate a policy on live traffic.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Follow {
    /// Policy to evaluate, with all of its weights.
    settings: PolicyDocument,
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
}

/// The shadow policy and its results.
#[derive(Debug, Serialize, JsonSchema)]
struct Shadowed {
    /// Whether a shadow policy is evaluated.
    running: bool,
    /// Settings of the shadow policy; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<PolicyDocument>")]
    settings: Option<policy::route::Settings>,
    /// Time at which the shadow policy was started, in milliseconds since 1970; `null` without one.
    since_unix_ms: Option<u64>,
    /// Differences between the shadow policy's decisions and those made; all zero without one.
    tally: Tally,
}

pub(super) fn operations() -> Vec<Operation> {
    const SHADOW: &str = "/admin/v1/policy/shadow";
    vec![
        Operation::new::<Map<String, Value>, _, _>(
            "policy.preview",
            Method::POST,
            "/admin/v1/policy/preview",
            Role::Operate,
            "Replay the captured turns under the policy in force and under another: percentiles, classes, the turns that change most",
            preview,
        )
        .body::<Try>()
        .unaudited()
        .fails(&[409, 429, 503]),
        Operation::new::<Shadowed, _, _>(
            "policy.shadow",
            Method::GET,
            SHADOW,
            Role::Read,
            "Returns what the shadow policy would have done with the live traffic",
            |call: Call| async move { Reply::json(&shadowed(&call.admin)) },
        ),
        Operation::new::<Shadowed, _, _>(
            "policy.shadow_put",
            Method::PUT,
            SHADOW,
            Role::Operate,
            "Evaluate a policy on live traffic without routing by it",
            follow,
        )
        .body::<Follow>(),
        Operation::new::<Shadowed, _, _>(
            "policy.shadow_stop",
            Method::POST,
            "/admin/v1/policy/shadow/stop",
            Role::Operate,
            "Stop the shadow policy",
            unfollow,
        )
        .body::<Because>()
        .fails(&[409]),
    ]
}

async fn preview(call: Call) -> Result<Reply, Problem> {
    let asked: Try = call.body()?;
    let admin = &call.admin;
    let proposed = asked.settings.as_ref();
    let proposed = proposed.map(|document| settings(admin, document)).transpose()?;
    let proposed = (proposed, asked.hint_rule);
    let Ok(turn) = Arc::clone(&admin.state.operations.operator.preview_permit).try_acquire_owned() else {
        return Err(Problem::busy(
            "another preview is running; try again when it is done",
        ));
    };
    let running = admin.captures().now().ok_or_else(none_captured)?;
    let (held, _) = running.memory.size();
    if held < FEWEST_TURNS {
        return Err(Problem::conflict(format!(
            "only {held} turns are captured; a preview needs at least {FEWEST_TURNS}"
        )));
    }
    let fleet = replay::ReplayFleet::live(&admin.state)
        .ok_or_else(|| Problem::conflict("no worker is ready to be simulated"))?;
    let turns = asked.turns.map_or(DEFAULT_TURNS, |turns| turns as usize);
    let turns = turns.min(MAX_SCORES / fleet.size().max(1)).max(FEWEST_TURNS);
    let memory = running.memory.clone();
    let (trace, turn) = written(move || (memory.newest(turns), turn)).await?;
    let (answer, played) = oneshot::channel();
    // A thread of low priority, apart from those that serve requests. Its turns, workers and time are bounded.
    let thread = std::thread::Builder::new()
        .name("preview".to_owned())
        .spawn(move || {
            let _ = rustix::process::setpriority_process(None, NICE);
            let played = replay::preview(&trace, &fleet, proposed, asked.anyway, LIMIT);
            drop(turn);
            let _ = answer.send(played);
        });
    thread.map_err(|error| Problem::unavailable(format!("cannot start a thread for it: {error}")))?;
    match played.await {
        Ok(played) => Reply::json(&played.map_err(|error| not_played(&error, turns))?),
        Err(_) => Err(Problem::internal("the preview did not finish")),
    }
}

fn not_played(error: &PreviewError, turns: usize) -> Problem {
    match error {
        PreviewError::TooLong(_) => Problem::conflict(format!(
            "{error}: {turns} turns are too many for the time limit; request fewer (`turns`)"
        )),
        PreviewError::Unlike(_) => Problem::unlike(format!(
            "{error} `anyway` (`ctl policy preview --anyway`) reports regardless."
        )),
        PreviewError::Unwritable(error) => Problem::internal(error.to_string()),
        PreviewError::Unreadable(why) => Problem::conflict(format!("{error}: {why}")),
        PreviewError::Unplayable(why) => Problem::conflict(format!("{error}: {why}")),
    }
}

fn shadowed(admin: &Admin) -> Shadowed {
    let shadow = admin.state.routing.shadow.load_full();
    Shadowed {
        running: shadow.is_some(),
        settings: shadow.as_ref().map(|shadow| shadow.settings.clone()),
        since_unix_ms: shadow.as_ref().map(|shadow| shadow.since_unix_ms),
        tally: shadow.map_or_else(Tally::default, |shadow| shadow.tally()),
    }
}

async fn follow(call: Call) -> Result<Reply, Problem> {
    let asked: Follow = call.body()?;
    let before = shadowed(&call.admin);
    let shadow = Shadow::new(settings(&call.admin, &asked.settings)?);
    call.admin.state.routing.shadow.store(Some(Arc::new(shadow)));
    let after = shadowed(&call.admin);
    Ok(Reply::json(&after)?.changed(&before, &after))
}

async fn unfollow(call: Call) -> Result<Reply, Problem> {
    let _: Because = call.body()?;
    let before = shadowed(&call.admin);
    if call.admin.state.routing.shadow.swap(None).is_none() {
        return Err(Problem::conflict("there is no shadow policy"));
    }
    let after = shadowed(&call.admin);
    Ok(Reply::json(&after)?.changed(&before, &after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_in_vain_is_told_what_to_ask_for() {
        let problem = not_played(&PreviewError::TooLong(LIMIT), 50_000);
        assert_eq!(problem.status(), 409);
        assert_eq!(
            problem.detail,
            "it was cut off after 20 s: 50000 turns are too many for the time limit; request fewer (`turns`)"
        );
    }

    #[test]
    fn a_simulation_unlike_the_measurement_is_a_kind_of_its_own() {
        let problem = not_played(
            &PreviewError::Unlike("measured 10 ms, simulated 30 ms.".to_owned()),
            50,
        );
        let body = serde_json::to_value(&problem).unwrap();
        // The console offers to preview anyway by this type.
        assert_eq!(
            (&body["type"], &body["status"]),
            (&Value::from("urn:tailroute:problem:unlike"), &Value::from(409))
        );
    }
}
