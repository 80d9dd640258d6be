//! The caller and its role, so that pages hide what it may not do.

use config::Role;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply};
use super::operation::Operation;

/// Who asks.
#[derive(Debug, Serialize, JsonSchema)]
struct Session {
    /// The token's name; `loopback` where there are none.
    name: String,
    /// What it may do.
    role: Role,
    /// Whether a token has to be shown.
    tokens: bool,
    /// The router's version.
    version: &'static str,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation::get::<Session, _, _>(
        "session.get",
        "/admin/v1/session",
        "The caller and the role of its token",
        |call: Call| async move {
            Reply::json(&Session {
                name: call.who.name.to_string(),
                role: call.who.role,
                tokens: call.admin.state.operator.tokens.load().is_required(),
                version: env!("CARGO_PKG_VERSION"),
            })
        },
    )]
}
