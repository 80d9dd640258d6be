//! Returns the caller and its role, so that the console hides operations that the caller may not use.

use config::Role;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply};
use super::operation::Operation;

/// The caller, and how it was authenticated.
#[derive(Debug, Serialize, JsonSchema)]
struct CallerSession {
    /// Name of the caller's token; `loopback` if the router has no tokens.
    name: String,
    /// Role of the caller.
    role: Role,
    /// Whether the admin port requires a token.
    tokens: bool,
    /// Version of the router.
    version: &'static str,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![Operation::get::<CallerSession, _, _>(
        "session.get",
        "/admin/v1/session",
        "The caller and the role of its token",
        |call: Call| async move {
            Reply::json(&CallerSession {
                name: call.who.name.to_string(),
                role: call.who.role,
                tokens: call.admin.state.operations.operator.tokens.load().is_required(),
                version: env!("CARGO_PKG_VERSION"),
            })
        },
    )]
}
