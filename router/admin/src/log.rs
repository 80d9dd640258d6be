//! Returns and sets the level of the router's log, by module.

use axum::http::Method;
use config::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use telemetry::logs::{self, LevelError};

use super::call::{Call, Reply};
use super::operation::Operation;
use super::problem::Problem;
use super::reason::Reason;

/// Level of the router's log.
#[derive(Debug, Serialize, JsonSchema)]
struct Level {
    /// Level as in `log.level`: `error`, `warn`, `info`, `debug`, `trace`, or filters by module such as
    /// `info,tailroute=debug`.
    level: String,
}

/// Body of a change of the log's level.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PutLevel {
    /// Level as in `log.level`: `error`, `warn`, `info`, `debug`, `trace`, or filters by module such as
    /// `info,tailroute=debug`.
    level: String,
    /// Reason for the change, recorded in the audit log.
    #[serde(rename = "reason")]
    _reason: Reason,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<Level, _, _>(
            "log.get",
            "/admin/v1/log",
            "The log level, by module",
            |_: Call| async move { Reply::json(&Level { level: current()? }) },
        )
        .fails(&[503]),
        Operation::new::<Level, _, _>(
            "log.put",
            Method::PUT,
            "/admin/v1/log",
            Role::Operate,
            "Set the log level until it is set again or log.level changes",
            put,
        )
        .body::<PutLevel>()
        .fails(&[503]),
    ]
}

fn current() -> Result<String, Problem> {
    logs::level().ok_or_else(|| Problem::unavailable(LevelError::NotOurs.to_string()))
}

async fn put(call: Call) -> Result<Reply, Problem> {
    let asked: PutLevel = call.body()?;
    let before = logs::set_level(&asked.level).map_err(|error| match error {
        LevelError::Wrong(what) => Problem::invalid_field("level", what),
        LevelError::NotOurs => Problem::unavailable(error.to_string()),
    })?;
    let after = Level { level: asked.level };
    Ok(Reply::json(&after)?.changed(&Level { level: before }, &after))
}
