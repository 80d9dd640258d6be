//! A turn: a request's body, read and fingerprinted, with the conversation that it belongs to and the objective it has.

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};

use super::among::Among;
use super::arrival::REQUEST_ID;
use super::ask::Asked;
use super::objective::Goal;
use super::session::Session;
use super::{models, tenant};
use crate::admission::keys::Caller;
use crate::app::App;
use fleet::Worker;
use learning::feedback::Expected;
use protocol::claim::Allowed;
use protocol::error::ApiError;
use protocol::fingerprint::{Extent, Fingerprint};
use protocol::routes::Endpoint;
use protocol::tenant::Edit;
use protocol::{headers, parse, steering};
use telemetry::context::TraceId;

/// A turn, read and fingerprinted.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Where it came in.
    pub endpoint: Endpoint,
    /// When its last byte was here.
    pub arrived: Millis,
    /// Bytes of its body.
    pub body_bytes: usize,
    /// What it allows its answer's count to be.
    pub allowed: Allowed,
    /// The model it asks for; empty if it names none.
    pub model: Arc<str>,
    /// Its prompt's keys.
    pub fingerprint: Fingerprint,
    /// What its body says otherwise when a worker gets it, if there are tenants.
    pub edits: Vec<Edit>,
    /// The conversation it belongs to; `None` if its prompt is not understood.
    pub session: Option<Session>,
    /// What it is to meet.
    pub goal: Goal,
    /// What is expected of it and of the turn after it.
    pub expected: Expected,
    /// Its client says that it is the conversation's last.
    pub last: bool,
    /// Whose it is: [`Caller::seed`].
    pub tenant: u64,
    /// The only worker that has what it goes on from.
    pub home: Option<WorkerId>,
    /// The request's name.
    pub request: HeaderValue,
    /// Its trace.
    pub trace: Option<TraceId>,
    /// Its client asks for the terms of the choice, and may.
    pub explain: bool,
    /// The policy or weights that its client asks for, and may.
    pub asked: Option<Box<Asked>>,
    /// The workers that it may go to; `None`: all.
    pub among: Option<Among>,
}

impl Turn {
    /// Reads a turn's body.
    ///
    /// # Errors
    /// 400 if it is not JSON; 404 if no worker serves its model, or it goes on from a response that its tenant does not have.
    pub fn read(
        app: &App,
        endpoint: Endpoint,
        caller: &Caller,
        headers: &HeaderMap,
        body: &[u8],
        arrived: Millis,
    ) -> Result<Self, ApiError> {
        let parsed = parse::parse_for(caller.tenant(), endpoint, body)?;
        steering::permit_body(app.config.http.transfer_fields, parsed.steering)?;
        if caller.tenant().is_some() {
            tenant::permit_body(app, parsed.foreign.or(parsed.steering))?;
        }
        if let Some(model) = &parsed.model {
            models::check(app, model)?;
        }
        let previous = parsed.previous.as_deref();
        let kept = previous.and_then(|id| app.stored.find(caller.seed(), id));
        if caller.tenant().is_some() && previous.is_some() && kept.is_none() {
            return Err(ApiError::UnknownResponse);
        }
        let previous = kept;
        let is_named = parsed.session.is_some() || headers.contains_key(headers::SESSION);
        let session = match previous.as_ref().and_then(|kept| kept.conversation.clone()) {
            Some(conversation) if !is_named => Some(Session {
                in_header: false,
                ..conversation
            }),
            _ => Session::of(
                caller.tenant(),
                headers,
                parsed.session.as_deref(),
                &parsed.fingerprint.chain,
                &app.knowledge,
            ),
        };
        let model: Arc<str> = parsed.model.unwrap_or_default().into();
        let expected = expect(app, arrived, session.as_ref(), headers, parsed.has_tools);
        Ok(Self {
            endpoint,
            arrived,
            body_bytes: body.len(),
            allowed: parsed.allowed,
            goal: Goal::of(headers, &model, &app.live().objective),
            model,
            fingerprint: parsed.fingerprint,
            edits: parsed.edits,
            tenant: caller.seed(),
            session,
            expected,
            last: says_yes(headers, &headers::SESSION_END),
            home: previous.map(|kept| kept.worker),
            trace: TraceId::of(headers),
            request: headers.get(&REQUEST_ID).cloned().unwrap_or_else(unnamed),
            explain: says_yes(headers, &headers::EXPLAIN)
                && (app.config.explain.in_answers || caller.may_ask_why()),
            asked: None,
            among: None,
        })
    }

    /// Whether it may go to this worker at all.
    pub(super) fn may_go_to(&self, worker: &Worker) -> bool {
        self.among.as_ref().is_none_or(|among| among.has(worker))
    }

    /// Tokens of its prompt, as far as they can be told without looking for it. Where no prompt was understood (several
    /// prompts in one, a response gone on from, what is not generated from) the body is taken for one: it is not free.
    #[must_use]
    pub fn tokens(&self, app: &App) -> Tokens {
        let bytes = match self.fingerprint.extent {
            Extent::Tokens(tokens) => return Tokens(tokens),
            Extent::Bytes(0) if self.endpoint.only_counts() => return Tokens::ZERO,
            Extent::Bytes(0) => self.body_bytes as u64,
            Extent::Bytes(bytes) => bytes,
        };
        Tokens((bytes as f64 * app.knowledge.ratio(&self.model)).ceil() as u64)
    }
}

/// What is expected of a turn, as far as habits are learned.
fn expect(
    app: &App,
    arrived: Millis,
    session: Option<&Session>,
    headers: &HeaderMap,
    tools: bool,
) -> Expected {
    let key = session.map(|session| session.key);
    let api_key = headers
        .get(AUTHORIZATION)
        .map(|value| xxhash_rust::xxh3::xxh3_64(value.as_bytes()));
    let mut expected = app
        .feedback
        .conversations
        .lock()
        .arrived(arrived, key, api_key, tools);
    if !app.config.learning.habits {
        expected.next_prompt = app.live().objective.next_prompt;
    }
    expected
}

fn unnamed() -> HeaderValue {
    HeaderValue::from_static("")
}

fn says_yes(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get(name)
        .is_some_and(|value| matches!(value.as_bytes(), b"1" | b"true"))
}
