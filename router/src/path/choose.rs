//! Which worker: fingerprint → match → score → pick.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};
use policy::ids::{ConversationId, WorkerId};
use policy::route::{self, Decision, Snapshot, WorkerView};
use policy::tail::Class;
use policy::units::{Millis, Tokens};
use tracing::debug;

use super::among::Among;
use super::arrival::REQUEST_ID;
use super::ask::Asked;
use super::objective::{Goal, OF_HEADER, Origin};
use super::session::Session;
use super::{models, tenant};
use crate::admission::keys::Caller;
use crate::app::App;
use fleet::Worker;
use fleet::breaker::BreakerState;
use fleet::dialect::is_told;
use fleet::rotation::{self, Condition};
use learning::feedback::Expected;
use learning::knowledge::{Match, Scale, Source};
use protocol::claim::Allowed;
use protocol::error::ApiError;
use protocol::fingerprint::{Extent, Fingerprint};
use protocol::routes::Endpoint;
use protocol::tenant::Edit;
use protocol::{headers, parse, steering};
use telemetry::context::TraceId;
use telemetry::traces::Stage;

/// More tokens than any conversation has.
const EVERYTHING: Tokens = Tokens(1_000_000_000);

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

/// A worker chosen for a turn.
#[derive(Debug)]
pub struct Choice {
    /// The worker.
    pub worker: Arc<Worker>,
    /// Every term that led to it.
    pub decision: Decision,
    /// The prompt's length, and what was known of it there.
    pub matched: Matched,
    /// Tokens at the end of the conversation that the worker may drop first.
    pub evict_first: Tokens,
    /// What the worker was like when it was chosen.
    pub view: WorkerView,
    /// Its breaker is open, but too few others are left.
    pub regardless: bool,
    /// Whether another worker, not tried yet, could take it, even if nothing goes there by itself.
    pub may_go_elsewhere: bool,
    /// When choosing began, the resident tokens were known, and the worker was; where requests are traced.
    pub timed: Option<[Instant; 3]>,
}

/// What a [`Match`] says of the chosen worker.
#[derive(Debug)]
pub struct Matched {
    /// Tokens of the prompt, as far as they can be told.
    pub prompt: Tokens,
    /// Where the resident tokens are known from.
    pub source: Source,
    /// Leading keys that the mirror holds.
    pub mirrored: usize,
    /// Where in tokens the chain's ends are.
    pub scale: Scale,
}

impl Matched {
    fn of(found: &Match, worker: WorkerId) -> Self {
        let slot = worker.index();
        let source = found.sources.get(slot).copied();
        Self {
            prompt: found.prompt,
            source: source.unwrap_or(Source::Mirror { edge: 0 }),
            mirrored: found.mirrored.get(slot).copied().unwrap_or(0),
            scale: found.scale.clone(),
        }
    }
}

/// What a choice looks at, used again from turn to turn.
#[derive(Default)]
struct Desk {
    found: Match,
    views: Vec<WorkerView>,
    conditions: Vec<Condition>,
    ready: Vec<bool>,
}

thread_local! {
    static DESK: RefCell<Desk> = RefCell::default();
}

impl Choice {
    /// What choosing consisted of, where requests are traced.
    pub fn timed(&self) -> impl Iterator<Item = (Stage, [Instant; 2])> {
        let stages = |[began, matched, chosen]: [Instant; 3]| {
            [
                (Stage::Match, [began, matched]),
                (Stage::Score, [matched, chosen]),
            ]
        };
        self.timed.map(stages).into_iter().flatten()
    }

    /// Whether another worker could have been chosen, of those that are in use.
    #[must_use]
    pub fn has_alternative(&self) -> bool {
        self.decision.terms.iter().filter(|terms| terms.ready).count() > 1
    }
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
    fn may_go_to(&self, worker: &Worker) -> bool {
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

/// What the turn's prefill takes on the worker where it takes least; `None` if none is ready.
#[must_use]
pub fn least_prefill(app: &App, turn: &Turn) -> Option<Millis> {
    DESK.with_borrow_mut(|desk| {
        let found = &mut desk.found;
        let workers = app.fleet.workers();
        app.knowledge
            .look_up_into(&turn.model, &turn.fingerprint, workers.len(), found);
        let ready = workers
            .iter()
            .filter(|worker| worker.is_ready() && turn.may_go_to(worker));
        let prefill = ready.map(|worker| {
            let cached = found.resident.get(worker.id.index()).copied().unwrap_or_default();
            let cached = cached.min(found.prompt);
            worker.cost().prefill(found.prompt.saturating_sub(cached), cached)
        });
        prefill.reduce(Millis::min)
    })
}

/// Chooses among the workers that were not tried yet.
///
/// # Errors
/// If no worker is ready.
pub fn choose(app: &App, turn: &Turn, tried: &[WorkerId]) -> Result<Choice, ApiError> {
    DESK.with_borrow_mut(|desk| choose_at(desk, app, turn, tried))
}

fn choose_at(desk: &mut Desk, app: &App, turn: &Turn, tried: &[WorkerId]) -> Result<Choice, ApiError> {
    let Desk {
        found,
        views,
        conditions,
        ready,
    } = desk;
    let now = app.clock.now();
    let instant = || app.traces.is_some().then(Instant::now);
    let began = instant();
    let workers = app.fleet.workers();
    app.knowledge
        .look_up_into(&turn.model, &turn.fingerprint, workers.len(), found);
    let matched = instant();
    let model = (!turn.model.is_empty()).then_some(&*turn.model);
    views.clear();
    views.extend(workers.iter().map(|worker| {
        let slot = worker.id.index();
        let indexed = found.indexed.get(slot).copied().unwrap_or_default();
        let living = found.living.get(slot).copied().unwrap_or_default();
        let mut view = worker.view(now, model, indexed, living);
        view.ready &= turn.may_go_to(worker);
        view
    }));
    ready.clear();
    ready.extend(views.iter().map(|view| view.ready));
    narrow(app, &workers, now, views, conditions);
    if let Some(home) = turn.home
        && let Some(worker) = workers.get(home.index())
        && worker.may_answer_its_own()
        && turn.may_go_to(worker)
        && model.is_none_or(|model| worker.serves(model) != Some(false))
    {
        ready[home.index()] = true;
        // Whatever its breaker says: no other worker can answer it.
        for (view, ready) in views.iter_mut().zip(ready.iter_mut()) {
            *ready &= view.id == home;
            view.ready = *ready;
        }
    }
    leave_out(tried, ready, views);
    let policy = app.policy.load();
    let snapshot = Snapshot {
        workers: views,
        settings: &policy.settings,
        sequence: app.next_sequence(),
    };
    let last_worker = turn
        .session
        .as_ref()
        .and_then(|session| app.knowledge.last_worker(session.key));
    let live;
    let class = match turn.goal.origin {
        Origin::Default => "",
        Origin::Header => OF_HEADER,
        Origin::Class(_) => {
            live = app.live();
            turn.goal.origin.named(&live.objective)
        }
    };
    let asked = route::Turn {
        prompt: found.prompt,
        resident: &found.resident,
        objective: turn.goal.ttft,
        last_worker,
        conversation: turn.session.as_ref().map(|session| ConversationId(session.key)),
        head: turn.fingerprint.chain.hashes().first().copied(),
        class,
        ask: turn.asked.as_deref().map(Asked::ask),
    };
    let decision = route::decide(&snapshot, &asked).ok_or_else(|| match tried {
        [] => app.nobody_ready(),
        _ => ApiError::WorkerFailed,
    })?;
    if let Some(shadow) = &*app.operator.shadow.load() {
        shadow.see(&snapshot, &asked, &decision);
    }

    let decision_at = decision.chosen;
    let worker = Arc::clone(&workers[decision_at]);
    let view = views[decision_at].clone();
    let evict_first = evict_first(app, turn, &worker, found.prompt);
    app.metrics
        .decision(decision.policy.as_str(), decision.reason.as_str(), worker.name());
    debug!(
        decision = decision.sequence,
        worker = worker.name(),
        reason = decision.reason.as_str(),
        terms = ?decision.terms,
        "chosen"
    );
    Ok(Choice {
        matched: Matched::of(found, worker.id),
        worker,
        decision,
        evict_first,
        view,
        timed: began
            .zip(matched)
            .zip(instant())
            .map(|((began, matched), chosen)| [began, matched, chosen]),
        regardless: conditions[decision_at].breaker == BreakerState::Open,
        may_go_elsewhere: (0..)
            .zip(ready.iter())
            .any(|(at, ready)| *ready && at != decision_at && !tried.contains(&views[at].id)),
    })
}

/// Takes out who was tried. If nobody else is in use, whoever is `ready` all the same may try: a worker that fails often,
/// or has just come back, is more than none.
fn leave_out(tried: &[WorkerId], ready: &[bool], views: &mut [WorkerView]) {
    if tried.is_empty() {
        return;
    }
    let was_tried = |view: &WorkerView| tried.contains(&view.id);
    let nobody = !views.iter().any(|view| view.ready && !was_tried(view));
    for (view, ready) in views.iter_mut().zip(ready) {
        view.ready = (view.ready || (nobody && *ready)) && !was_tried(view);
    }
}

/// Takes workers out that fail or have just come back, as far as there are others.
pub(super) fn narrow(
    app: &App,
    workers: &[Arc<Worker>],
    now: Millis,
    views: &mut [WorkerView],
    conditions: &mut Vec<Condition>,
) {
    conditions.clear();
    conditions.extend(workers.iter().map(|worker| worker.condition(now)));
    if conditions.iter().all(|condition| *condition == Condition::WELL) {
        return;
    }
    let passed_over = rotation::narrow(views, conditions, app.config.failure.max_ejected_share);
    app.metrics.breakers_passed_over(passed_over);
}

/// The evict-first tail of this request: what it says, or what the worker's own rule takes. Zero where the worker takes hints
/// between requests.
fn evict_first(app: &App, turn: &Turn, worker: &Worker, prompt: Tokens) -> Tokens {
    let (hints, dialect) = (&app.config.hints, worker.dialect());
    let (is_told, by_itself) = (is_told(&*dialect, hints), dialect.trims_by_itself());
    if !is_told && !by_itself {
        return dialect.evict_first(Tokens::ZERO);
    }
    if turn.last && !by_itself {
        return dialect.evict_first(EVERYTHING);
    }
    if by_itself {
        let told = worker.hints.told().unwrap_or_else(|| app.objective_for(worker));
        return dialect.evict_first(told.tail());
    }
    if app.makes_room_on(worker) {
        return dialect.evict_first(Tokens::ZERO);
    }
    let added = prompt.saturating_sub(turn.expected.history);
    let class = Class::of(turn.expected.turn, added, turn.expected.class.tools);
    dialect.evict_first(app.feedback.free_tail(worker.id, class))
}
