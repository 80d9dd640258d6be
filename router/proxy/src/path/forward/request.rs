//! The outgoing request of a turn: the client's bytes, and what the router adds.

use bytes::Bytes;
use config::Priority;
use http::{HeaderMap, Request};
use policy::route::Patience;
use policy::units::{Millis, Tokens};

use super::super::select::Choice;
use super::super::turn::Turn;
use crate::Proxy;
use fleet::dialect::{Carried, TurnHint};
use protocol::{headers, splice};

/// Builds the worker's request: the client's, with the router's headers, hint and priority.
pub fn turn_request(
    proxy: &Proxy,
    head: &http::request::Parts,
    body: Bytes,
    turn: &Turn,
    choice: &Choice,
) -> Result<Request<Bytes>, http::Error> {
    let mut headers = headers::addressed(
        &head.headers,
        proxy.admission.keys().is_required(),
        &choice.worker.spec,
    );
    if let Some(session) = turn.session.as_ref().filter(|session| !session.in_header)
        && let Some(name) = session.header_value()
    {
        headers.insert(headers::SESSION, name);
    }
    let body = carry_hint(proxy, &mut headers, body, turn, choice);
    let body = carry_priority(proxy, body, turn, choice);
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = choice.worker.uri(target)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Adds the conversation's hint to the request, if the worker accepts hints there.
fn carry_hint(proxy: &Proxy, headers: &mut HeaderMap, body: Bytes, turn: &Turn, choice: &Choice) -> Bytes {
    let hints = &proxy.state.config.hints;
    let is_heard = hints.enabled && hints.in_request && turn.endpoint.generates();
    if !is_heard || choice.evict_first == Tokens::ZERO {
        return body;
    }
    let spliced = match choice.worker.dialect().in_request(&TurnHint {
        evict_first: choice.evict_first,
        prompt: choice.matched.prompt,
        sequence: choice.decision.sequence,
    }) {
        None => None,
        Some(Carried::Header(name, value)) => {
            headers.insert(name, value);
            None
        }
        Some(_) if !turn.endpoint.facts().takes_fields => None,
        Some(Carried::Field { key, value }) => splice::field(&body, key, &value),
        Some(Carried::Member { object, key, value }) => splice::member(&body, object, key, &value),
    };
    spliced.map_or(body, Bytes::from)
}

/// Sets a turn's priority, for engines that accept one: when it is [due](policy::route::Patience), in milliseconds of
/// wall-clock time, so that several routers' requests compare. A client's own priority is kept.
fn carry_priority(proxy: &Proxy, body: Bytes, turn: &Turn, choice: &Choice) -> Bytes {
    let sign = match choice.worker.spec.priority {
        _ if !turn.endpoint.facts().takes_fields => return body,
        Priority::Off => return body,
        Priority::LowestFirst => 1.0,
        Priority::HighestFirst => -1.0,
    };
    let terms = choice.decision.chosen();
    let prefill = terms.prefill();
    let due = Patience::AT_ENGINE.due(
        Millis(proxy.state.clock.unix_ms(turn.arrived)),
        prefill,
        turn.goal.ttft,
    );
    let value = ((sign * due.0).round() as i64).to_string();
    splice::field(&body, "priority", &value).map_or(body, Bytes::from)
}
