//! A turn: a parsed and fingerprinted request body, with its conversation and objective.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};

use super::among::Among;
use super::arrival::REQUEST_ID;
use super::ask::Asked;
use super::objective::Goal;
use super::session::Session;
use super::{models, tenant};
use crate::Proxy;
use crate::admission::keys::Caller;
use fleet::Worker;
use fleet::eligibility::Eligibility;
use learning::feedback::Expected;
use protocol::api::Endpoint;
use protocol::claim::Allowed;
use protocol::error::ApiError;
use protocol::fingerprint::{Extent, Fingerprint};
use protocol::tenant::Edit;
use protocol::{headers, parse, steering};
use state::{Live, Routing};
use telemetry::context::TraceId;

/// A parsed and fingerprinted turn.
#[derive(Clone, Debug)]
pub struct Turn {
    pub endpoint: Endpoint,
    /// Time at which the body was complete.
    pub arrived: Millis,
    pub body_bytes: usize,
    /// Bounds on the usage that the request sets.
    pub allowed: Allowed,
    /// The requested model; empty if none is named.
    pub model: Arc<str>,
    pub fingerprint: Fingerprint,
    /// Edits to the body before it is sent to a worker, for tenants.
    pub edits: Vec<Edit>,
    /// The conversation; `None` if the request neither names it nor has a known prompt.
    pub session: Option<Session>,
    /// The objective for the time to first token.
    pub goal: Goal,
    /// The live settings at its arrival, to whose objectives `goal` refers.
    pub live: Arc<Live>,
    /// Expectations for this turn and the next.
    pub expected: Expected,
    /// Whether the client marks it as the conversation's last turn.
    pub last: bool,
    /// Seed of the tenant: see [`Caller::seed`].
    pub tenant: u64,
    /// The worker that stores the response which the turn continues; no other worker can answer the turn.
    pub pinned_to: Option<WorkerId>,
    pub request: HeaderValue,
    pub trace: Option<TraceId>,
    /// Whether the client asks for the terms of the decision, and may see them.
    pub explain: bool,
    /// The permitted policy or weights of the request.
    pub asked: Option<Box<Asked>>,
    /// The eligible workers; `None` for all.
    pub among: Option<Among>,
}

impl Turn {
    /// Parses a turn's body. Fails with 400 if it is not JSON; with 404 if no worker serves its model, or its tenant
    /// does not have the response that it continues.
    pub fn read(
        proxy: &Proxy,
        endpoint: Endpoint,
        caller: &Caller,
        head: &Parts,
        body: &[u8],
        arrived: Millis,
    ) -> Result<Self, ApiError> {
        let headers = &head.headers;
        let parsed = parse::parse_for(caller.tenant(), endpoint, body)?;
        steering::permit_body(proxy.state.config.http.transfer_fields, parsed.steering)?;
        if caller.tenant().is_some() {
            tenant::permit_body(&proxy.admission, parsed.foreign.or(parsed.steering))?;
        }
        // An empty name is none, as engines have it.
        let model = parsed.model.filter(|model| !model.is_empty());
        if let Some(model) = &model {
            models::check(&proxy.state.routing, model)?;
        }
        let previous = parsed.previous.as_deref();
        let kept = previous.and_then(|id| proxy.stored.find(caller.seed(), id));
        if previous.is_some() && kept.is_none() && proxy.admission.keys().isolates() {
            return Err(ApiError::UnknownResponse);
        }
        let previous = kept;
        let names = [
            &headers::SESSION,
            &headers::SESSION_END,
            &headers::EXPLAIN,
            &REQUEST_ID,
        ];
        let [session_name, last, explain, request] = headers::first_of(headers, names);
        let is_named = parsed.session.is_some() || session_name.is_some();
        let session = match previous.as_ref().and_then(|kept| kept.conversation.clone()) {
            Some(conversation) if !is_named => Some(Session {
                in_header: false,
                ..conversation
            }),
            _ => Session::of(
                caller.tenant(),
                session_name,
                parsed.session.as_deref(),
                &parsed.fingerprint.chain,
                &proxy.state.routing.knowledge,
            ),
        };
        let model: Arc<str> = model.unwrap_or_default().into();
        let live = Arc::clone(&proxy.state.routing.live());
        let expected = expect(
            &proxy.state.routing,
            &live,
            arrived,
            session.as_ref(),
            headers,
            parsed.has_tools,
        );
        Ok(Self {
            endpoint,
            arrived,
            body_bytes: body.len(),
            allowed: parsed.allowed,
            goal: Goal::of(headers, &model, &live.objective),
            live,
            model,
            fingerprint: parsed.fingerprint,
            edits: parsed.edits,
            tenant: caller.seed(),
            session,
            expected,
            last: last.is_some_and(says_yes),
            pinned_to: previous.map(|kept| kept.worker),
            trace: TraceId::of(headers),
            request: request.cloned().unwrap_or_else(unnamed),
            explain: explain.is_some_and(says_yes)
                && (proxy.state.config.explain.in_answers || caller.may_ask_why()),
            asked: None,
            among: None,
        })
    }

    /// Returns the workers that are eligible by the turn's model, among those that it may go to.
    pub(super) fn eligibility(&self, routing: &Routing, workers: &[Arc<Worker>]) -> Eligibility<'_> {
        let among = workers.iter().filter(|worker| self.may_go_to(worker));
        Eligibility::of(among, &self.model, routing.config.routing.unlisted_models)
    }

    /// Returns a hash of the prompt and its client, for breakers: the same request fails for the same reason. `None` if
    /// no prompt is known.
    pub fn source(&self) -> Option<u64> {
        let last = self.fingerprint.chain.hashes().last()?;
        Some(last.0 ^ self.tenant.rotate_left(32))
    }

    /// Returns the name of the objective's class, for metrics and decisions.
    #[must_use]
    pub fn class(&self) -> &str {
        self.goal.origin.name(&self.live.objective)
    }

    pub(super) fn may_go_to(&self, worker: &Worker) -> bool {
        self.among.as_ref().is_none_or(|among| among.has(worker))
    }

    /// Returns the tokens of the prompt, counted or estimated. If no prompt is recognised, the whole body counts, so
    /// none is free.
    pub fn tokens(&self, routing: &Routing) -> Tokens {
        let bytes = match self.fingerprint.extent {
            Extent::Tokens(tokens) => return Tokens(tokens),
            Extent::Bytes(0) if self.endpoint.only_counts() => return Tokens::ZERO,
            Extent::Bytes(0) => self.body_bytes as u64,
            Extent::Bytes(bytes) => bytes,
        };
        let knowledge = &routing.knowledge;
        let text = Tokens((bytes as f64 * knowledge.ratio(&self.model)).ceil() as u64);
        text + knowledge.media_tokens(&self.model, &self.fingerprint.media)
    }
}

fn expect(
    routing: &Routing,
    live: &Live,
    arrived: Millis,
    session: Option<&Session>,
    headers: &HeaderMap,
    tools: bool,
) -> Expected {
    let key = session.map(|session| session.key);
    let api_key = headers
        .get(AUTHORIZATION)
        .map(|value| xxhash_rust::xxh3::xxh3_64(value.as_bytes()));
    let mut expected = routing
        .feedback
        .conversations
        .lock()
        .arrived(arrived, key, api_key, tools);
    if !routing.config.learning.habits {
        expected.next_prompt = live.objective.next_prompt;
    }
    expected
}

fn unnamed() -> HeaderValue {
    HeaderValue::from_static("")
}

fn says_yes(value: &HeaderValue) -> bool {
    matches!(value.as_bytes(), b"1" | b"true")
}
