//! The outgoing request of a turn: the client's bytes, and what the router adds.

use bytes::Bytes;
use config::{HintRule, Priority};
use http::{HeaderMap, Request};
use policy::route::Patience;
use policy::units::{Millis, Tokens};

use tracing::warn;

use super::super::select::Choice;
use super::super::turn::Turn;
use super::{AttemptOutcome, Flight};
use fleet::dialect::{Carried, TurnHint};
use protocol::error::ApiError;
use protocol::{headers, splice};
use state::Routing;

impl Flight {
    /// Builds the worker's request: the client's, with the router's headers, hint and priority. Ends the attempt if that
    /// fails.
    pub fn request(
        self: Box<Self>,
        head: &http::request::Parts,
        body: Bytes,
        choice: &Choice,
    ) -> Result<(Box<Self>, Request<Bytes>), ApiError> {
        match self.build(head, body, choice) {
            Ok(request) => Ok((self, request)),
            Err(error) => {
                warn!(worker = self.worker().name(), %error, "cannot build the worker's request");
                self.end(AttemptOutcome::NotReached);
                Err(ApiError::WorkerFailed)
            }
        }
    }

    fn build(
        &self,
        head: &http::request::Parts,
        body: Bytes,
        choice: &Choice,
    ) -> Result<Request<Bytes>, http::Error> {
        let Self { proxy, turn, .. } = self;
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
        let body = carry_hint(&mut headers, body, turn, choice);
        let body = carry_priority(&proxy.state.routing, body, turn, choice);
        self.span.propagate(&mut headers);
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = choice.worker.uri(target)?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// Adds the conversation's hint to the request, if the worker accepts hints there.
fn carry_hint(headers: &mut HeaderMap, body: Bytes, turn: &Turn, choice: &Choice) -> Bytes {
    let hints = &turn.live.hints;
    let rule = hints.rule_of(choice.worker.name());
    let is_heard = rule != HintRule::Off && hints.in_request && turn.endpoint.generates();
    let evicts_by_xi = rule.is_t_lru() && !turn.last && choice.worker.takes_objective();
    if !is_heard || evicts_by_xi || choice.evict_first == Tokens::ZERO {
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
fn carry_priority(routing: &Routing, body: Bytes, turn: &Turn, choice: &Choice) -> Bytes {
    let sign = match choice.worker.spec.priority {
        _ if !turn.endpoint.facts().takes_fields => return body,
        Priority::Off => return body,
        Priority::LowestFirst => 1.0,
        Priority::HighestFirst => -1.0,
    };
    let terms = choice.decision.chosen();
    let prefill = terms.prefill();
    let due = Patience::AT_ENGINE.due(
        Millis(routing.clock.unix_ms(turn.arrived)),
        prefill,
        turn.goal.ttft,
    );
    let value = ((sign * due.0).round() as i64).to_string();
    splice::field(&body, "priority", &value).map_or(body, Bytes::from)
}

#[cfg(test)]
mod tests {
    use config::Dialect;
    use config::HintRule::{Off, QueueAware, TLru};

    use super::*;
    use crate::testing::{Script, Seat, chat};

    const CHAT: &str = "/v1/chat/completions";

    /// Sends a turn to `a`. Returns the head and the body of its request.
    async fn sent(seat: &Seat, fields: &[(&str, &str)], body: &str) -> (String, String) {
        seat.script("a", [Script::tokens(&["Hi"])]);
        seat.post(CHAT, fields, body).await;
        let heard = seat.upstream.heard("a").remove(0);
        (heard.head, heard.body)
    }

    fn field(head: &str, name: &str) -> Option<String> {
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        fields
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_is_told_the_conversation() {
        let named = chat("hi").replace("\"m\"", "\"m\",\"prompt_cache_key\":\"in-body\"");
        for (case, fields, body, expected) in [
            (
                "named in the head",
                &[("x-session-id", "in-head")][..],
                &*named,
                "in-head",
            ),
            ("named in the body", &[], &named, "in-body"),
            ("found by its prompt", &[], &chat("hi"), "tr-"),
        ] {
            let (head, _) = sent(&Seat::new(), fields, body).await;
            let session = field(&head, "x-session-id").unwrap();
            assert!(session.starts_with(expected), "{case}: {session}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_takes_hints_is_told_that_a_conversation_ends() {
        let last = [("x-session-id", "s"), ("x-session-end", "1")];
        #[rustfmt::skip]
        let cases = [
            ("the last turn", Dialect::Tailroute, QueueAware, true, &last[..], true),
            ("the last turn by ξ", Dialect::Tailroute, TLru, true, &last, true),
            ("another turn by ξ, which the worker knows", Dialect::Tailroute, TLru, true, &last[..1], false),
            ("not the last turn", Dialect::Tailroute, QueueAware, true, &last[..1], false),
            ("a worker that takes no hints", Dialect::None, QueueAware, true, &last, false),
            ("no hints at all", Dialect::Tailroute, Off, true, &last, false),
            ("no hints in requests", Dialect::Tailroute, QueueAware, false, &last, false),
        ];
        for (case, dialect, rule, in_request, fields, is_told) in cases {
            let seat = Seat::with(|config| {
                config.workers[0].dialect = dialect;
                config.hints.rule = rule;
                config.hints.in_request = in_request;
            });
            let (head, body) = sent(&seat, fields, &chat("hi")).await;
            let tokens = field(&head, "x-tailroute-evict-first-tokens");
            assert_eq!(tokens.is_some(), is_told, "{case}");
            assert_eq!(body, chat("hi"), "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_due_at_four_prefills_or_its_objective() {
        // A prompt of 3 tokens takes 13 ms on `a`.
        let due = |seat: &Seat| seat.proxy.state.routing.clock.unix_ms(Millis::ZERO) + 4.0 * 13.0;
        for (priority, sign) in [
            (Priority::Off, None),
            (Priority::LowestFirst, Some(1.0)),
            (Priority::HighestFirst, Some(-1.0)),
        ] {
            let seat = Seat::with(|config| config.workers[0].priority = priority);
            let (_, body) = sent(&seat, &[], &chat("hi")).await;
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let late_ms = sign.map(|sign| body["priority"].as_f64().unwrap() * sign - due(&seat));
            assert!(
                late_ms.is_none_or(|late_ms| late_ms.abs() <= 1.0),
                "{priority:?}: {late_ms:?}"
            );
            assert_eq!(body.get("priority").is_some(), sign.is_some(), "{priority:?}");
            assert_eq!(body["model"], "m");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clients_own_priority_is_kept() {
        let seat = Seat::with(|config| config.workers[0].priority = Priority::LowestFirst);
        let own = chat("hi").replace("\"m\"", "\"m\",\"priority\":7");
        assert_eq!(sent(&seat, &[], &own).await.1, own);
    }
}
