//! Which worker: fingerprint → match → score → pick.

use std::sync::Arc;

use config::Objective;
use http::HeaderMap;
use policy::ids::{ConversationId, WorkerId};
use policy::route::{self, Decision, Snapshot, WorkerView};
use policy::slo;
use policy::units::{Millis, Tokens};
use tracing::debug;

use super::admit::Endpoint;
use super::fingerprint::Fingerprint;
use super::parse;
use super::session::Session;
use crate::app::App;
use crate::error::ApiError;
use crate::fleet::Worker;
use crate::knowledge::Match;

/// A turn, read and fingerprinted.
#[derive(Debug)]
pub struct Turn {
    /// Where it came in.
    pub endpoint: Endpoint,
    /// When its last byte was here.
    pub arrived: Millis,
    /// The model it asks for; empty if it names none.
    pub model: String,
    /// Its prompt's keys.
    pub fingerprint: Fingerprint,
    /// The conversation it belongs to; `None` if its prompt is not understood.
    pub session: Option<Session>,
}

/// A worker chosen for a turn.
#[derive(Debug)]
pub struct Choice {
    /// The worker.
    pub worker: Arc<Worker>,
    /// Every term that led to it.
    pub decision: Decision,
    /// Where the prompt lives, and its length.
    pub matched: Match,
    /// Tokens at the end of the conversation that the worker may drop first.
    pub evict_first: Tokens,
}

impl Choice {
    /// Whether another worker could have been chosen.
    #[must_use]
    pub fn has_alternative(&self) -> bool {
        self.decision.terms.iter().filter(|terms| terms.ready).count() > 1
    }
}

impl Turn {
    /// Reads a turn's body.
    ///
    /// # Errors
    /// 400 if it is not JSON, 404 if no worker serves its model.
    pub fn read(
        app: &App,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: &[u8],
        arrived: Millis,
    ) -> Result<Self, ApiError> {
        let parsed = parse::parse(body)?;
        if let Some(model) = &parsed.model
            && app.fleet.surely_lacks(model)
        {
            return Err(ApiError::UnknownModel(model.chars().take(128).collect()));
        }
        let session = Session::of(
            headers,
            parsed.session.as_deref(),
            &parsed.fingerprint.chain,
            &app.knowledge,
        );
        Ok(Self {
            endpoint,
            arrived,
            model: parsed.model.unwrap_or_default().into_owned(),
            fingerprint: parsed.fingerprint,
            session,
        })
    }
}

/// Chooses among the workers that were not tried yet.
///
/// # Errors
/// If no worker is ready.
pub fn choose(app: &App, turn: &Turn, tried: &[WorkerId]) -> Result<Choice, ApiError> {
    let now = app.clock.now();
    let workers = app.fleet.workers();
    let matched = app
        .knowledge
        .look_up(&turn.model, &turn.fingerprint, workers.len());
    let model = (!turn.model.is_empty()).then_some(turn.model.as_str());
    let views: Vec<WorkerView> = workers
        .iter()
        .map(|worker| {
            let indexed = matched
                .indexed
                .get(worker.id.index())
                .copied()
                .unwrap_or_default();
            let mut view = worker.view(now, model, indexed);
            view.ready &= !tried.contains(&worker.id);
            view
        })
        .collect();
    let settings = app.settings.load();
    let snapshot = Snapshot {
        workers: &views,
        settings: &settings,
        sequence: app.next_sequence(),
    };
    let objective = &app.config.objective;
    let last_worker = turn
        .session
        .as_ref()
        .and_then(|session| app.knowledge.last_worker(session.key));
    let decision = route::decide(
        &snapshot,
        &route::Turn {
            prompt: matched.prompt,
            resident: &matched.resident,
            objective: objective.ttft,
            last_worker,
            conversation: turn.session.as_ref().map(|session| ConversationId(session.key)),
            head: turn.fingerprint.chain.hashes().first().copied(),
        },
    )
    .ok_or(if tried.is_empty() {
        ApiError::NoWorkerReady
    } else {
        ApiError::WorkerFailed
    })?;

    let worker = Arc::clone(&workers[decision.chosen]);
    let evict_first = evict_first(app, &worker, &views[decision.chosen], objective, matched.prompt);
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
        worker,
        decision,
        matched,
        evict_first,
    })
}

/// The evict-first tail that the worker will hold by: what it is told, or what it does by itself.
fn evict_first(
    app: &App,
    worker: &Worker,
    view: &WorkerView,
    objective: &Objective,
    history: Tokens,
) -> Tokens {
    let (hints, dialect) = (&app.config.hints, worker.dialect());
    let can_be_told = hints.in_request || (hints.out_of_band && dialect.hears_hints());
    if !(hints.enabled && can_be_told) {
        return dialect.evict_first(Tokens::ZERO);
    }
    let xi = slo::xi_tokens(&view.cost, objective.ttft, view.wait, history);
    dialect.evict_first(slo::evict_first_tail(xi, objective.next_prompt, view.utilisation))
}
