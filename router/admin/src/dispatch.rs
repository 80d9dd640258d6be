//! Dispatches a request to its operation: authentication, reading the request, running the handler, the audit log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;

use super::call::Call;
use super::operation::Operation;
use super::problem::Problem;
use crate::Admin;
use operator::audit::{AuditRecord, Author};
use operator::tokens::Principal;
use policy::text::printable;

/// Largest body in bytes.
pub const MAX_BODY_BYTES: usize = 256 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Remote address of a connection.
#[derive(Clone, Copy, Debug)]
pub struct From(pub SocketAddr);

pub(super) async fn answer(admin: Arc<Admin>, operation: Arc<Operation>, request: Request) -> Response {
    let from = request.extensions().get::<From>().map(|from| from.0);
    let response = match admit(&admin, &operation, &request) {
        Ok(who) => {
            let by = Author {
                name: who.name.to_string(),
                role: Some(who.role),
                address: from.map(|from| from.to_string()),
            };
            match read(Arc::clone(&admin), who, request).await {
                Ok(call) => perform(&admin, &operation, call, by).await,
                Err(problem) => refused(&admin, &operation, by, None, None, problem).await,
            }
        }
        Err((Some(who), problem)) => {
            let by = Author {
                name: who.name.to_string(),
                role: Some(who.role),
                address: from.map(|from| from.to_string()),
            };
            refused(&admin, &operation, by, None, None, problem).await
        }
        // Unauthenticated requests are counted but not audited, since anyone could fill the log with them.
        Err((None, problem)) => problem.into_response(),
    };
    admin
        .state
        .routing
        .metrics
        .admin_request(operation.id, response.status().as_u16());
    response
}

fn admit(
    admin: &Admin,
    operation: &Operation,
    request: &Request,
) -> Result<Principal, (Option<Principal>, Problem)> {
    let tokens = admin.state.operations.operator.tokens.load();
    if !tokens.is_required() {
        local_only(request.headers()).map_err(|problem| (None, problem))?;
    }
    let Some(who) = tokens.identify(request.headers()) else {
        return Err((None, Problem::unauthorized()));
    };
    if who.role < operation.role {
        let detail = format!(
            "this requires a token with the role {}; `{}` has {}",
            operation.role, who.name, who.role
        );
        return Err((Some(who), Problem::forbidden(detail)));
    }
    Ok(who)
}

/// Fails for requests of pages that a browser loaded from elsewhere: these name another host or are marked as
/// cross-site. Without tokens, any local process may call the API, but no such page.
pub(super) fn local_only(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    let name = host.parse::<SocketAddr>().map(|address| address.ip().to_string());
    let name = name.unwrap_or_else(|_| match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name.to_owned(),
        _ => host.to_owned(),
    });
    let is_local = name.eq_ignore_ascii_case("localhost")
        || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    if !is_local {
        return Err(Problem::forbidden(
            "without tokens this port accepts only an address or `localhost` as its host: set admin.tokens_file to use a name",
        ));
    }
    let site = text(HeaderName::from_static("sec-fetch-site"));
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err(Problem::forbidden("cross-origin requests are not allowed"));
    }
    Ok(())
}

async fn read(admin: Arc<Admin>, who: Principal, request: Request) -> Result<Call, Problem> {
    let (mut head, body) = request.into_parts();
    let parameters = RawPathParams::from_request_parts(&mut head, &())
        .await
        .map_err(|error| Problem::malformed(error.to_string()))?;
    let parameters = parameters
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let body = read_body(&head, body).await?;
    Ok(Call {
        admin,
        who,
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        parameters,
        body,
    })
}

async fn read_body(head: &Parts, body: Body) -> Result<Bytes, Problem> {
    let collected = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await;
    let bytes = match collected {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Problem::too_large(MAX_BODY_BYTES)),
        Ok(Err(_)) => return Err(Problem::malformed("the body ended before its end")),
        Err(_) => return Err(Problem::timeout(BODY_TIMEOUT)),
    };
    // A page of another origin needs a CORS preflight for this type, and the router allows none.
    let kind = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_json = kind.is_some_and(|kind| {
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
    });
    if !head.method.is_safe() && !is_json {
        return Err(Problem::no_json());
    }
    Ok(bytes)
}

async fn perform(admin: &Arc<Admin>, operation: &Operation, call: Call, by: Author) -> Response {
    // The target is the path parameter or, for singletons, the first part of the operation's id.
    let named = call.parameters.first().map(|(_, value)| value.clone());
    let why = reason(&call.body);
    if operation.audited && admin.state.operations.is_handed_over() {
        let problem = Problem::unavailable(
            "another process is taking over and would not know of this change: nothing was changed. Repeat it in a few seconds",
        );
        return refused(admin, operation, by, named, why, problem).await;
    }
    match (operation.handler)(call).await {
        Ok(reply) => {
            let target = reply.target.or(named);
            if operation.audited {
                let happened = AuditRecord {
                    who: by,
                    action: operation.id.to_owned(),
                    target: target.unwrap_or_else(|| subject(operation)),
                    why,
                    outcome: Ok(reply.change),
                };
                admin.state.operations.operator.audit.record(happened).await;
            }
            reply.response
        }
        Err(problem) => refused(admin, operation, by, named, why, problem).await,
    }
}

async fn refused(
    admin: &Admin,
    operation: &Operation,
    who: Author,
    target: Option<String>,
    why: Option<String>,
    problem: Problem,
) -> Response {
    if operation.audited {
        let happened = AuditRecord {
            who,
            action: operation.id.to_owned(),
            target: shorten(target.unwrap_or_else(|| subject(operation))),
            why,
            outcome: Err(shorten(format!(
                "{} {}",
                problem.status().as_u16(),
                problem.detail
            ))),
        };
        admin.state.operations.operator.audit.record(happened).await;
    }
    problem.into_response()
}

/// Returns the first part of the operation's id: `policy` of `policy.put`.
fn subject(operation: &Operation) -> String {
    let subject = operation.id.split('.').next();
    subject.unwrap_or_default().to_owned()
}

/// Returns the reason in the body, even if other fields are invalid. Control characters are escaped.
fn reason(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(shorten(body.get("reason")?.as_str()?.to_owned()))
}

fn shorten(text: String) -> String {
    let text = printable(&text).into_owned();
    match text.char_indices().nth(super::reason::MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
