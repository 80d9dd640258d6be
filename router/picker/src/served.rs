//! Observation and accounting of the response to a request that a gateway proxies.
//!
//! The accounting is that of proxied requests ([`Flight`]). It begins when an endpoint is named, and ends when the
//! response is complete or the gateway abandons the request. If the gateway reports another endpoint, the first
//! worker's account is closed as not reached and the other's is opened.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tracing::debug;

use fleet::{InFlight, Worker};
use protocol::error::ApiError;
use protocol::first_event::FirstEvent;
use protocol::headers;
use protocol::routes::Route;
use protocol::verdict::Verdict;
use protocol::watch::{Step, Watch};
use proxy::decisions;
use proxy::path::among::Among;
use proxy::path::context::RequestTimer;
use proxy::path::flight::{AttemptOutcome, Flight};
use proxy::path::forward::judged::report;
use proxy::path::forward::{mark, pass};
use proxy::path::inspect::Inspector;
use proxy::path::observe::Observer;
use proxy::path::retry::Charged;
use proxy::path::select::{self, Choice};
use proxy::path::turn::Turn;
use proxy::path::watchdog::{CUT_OFF, Overrun};
use proxy::{Proxy, RequestPermit};
use state::{Routing, State};

pub(super) enum Served {
    Turn(Box<CarriedTurn>),
    Other(Box<Relayed>),
}

impl Served {
    /// Observes the head of the response from `by`. If the body `comes_whole`, its first token cannot be timed. Returns
    /// the headers to add.
    pub(super) fn head(
        &mut self,
        status: StatusCode,
        head: &HeaderMap,
        by: Option<SocketAddr>,
        comes_whole: bool,
    ) -> HeaderMap {
        match self {
            Self::Turn(turn) => turn.head(status, head, by, comes_whole),
            Self::Other(other) => other.head(status, head, by),
        }
    }

    /// Inspects a piece of a body that was not parsed before the pick. Fails if the body must not be forwarded.
    pub(super) fn asks(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        match self {
            Self::Turn(_) => Ok(()),
            Self::Other(other) => Ok(other.inspector.push(piece)?),
        }
    }

    /// Observes a piece of the response. Returns how far the piece advances the response.
    pub(super) fn body(&mut self, piece: &Bytes) -> Step {
        match self {
            Self::Turn(turn) => turn
                .observer
                .as_mut()
                .map_or(Step::Token, |observer| observer.passed(piece)),
            Self::Other(other) => other.passed(piece),
        }
    }

    /// Returns whether the head of the response has arrived.
    pub(super) fn has_head(&self) -> bool {
        match self {
            Self::Turn(turn) => turn.attempt.is_none(),
            Self::Other(other) => other.is_answered,
        }
    }

    /// Returns whether the response has limits, because it is incomplete and no tunnel.
    pub(super) fn is_watched(&self) -> bool {
        match self {
            Self::Turn(turn) => {
                let is_open = |observer: &Observer| observer.flight().is_some();
                turn.attempt.is_some() || turn.observer.as_ref().is_some_and(is_open)
            }
            Self::Other(other) => other.in_flight.is_some() && !other.is_tunnel,
        }
    }

    /// Ends a response that exceeded a limit.
    pub(super) fn overran(&mut self, overrun: Overrun) {
        match self {
            Self::Turn(turn) => turn.overran(overrun),
            Self::Other(other) => other.overran(overrun),
        }
    }

    /// Ends the response. `unseen`: only its head was observed.
    pub(super) fn ended(&mut self, unseen: bool) {
        match self {
            Self::Turn(turn) => match &mut turn.observer {
                Some(observer) if unseen => observer.ended_unseen(),
                Some(observer) => observer.finish(),
                None => {}
            },
            Self::Other(other) if other.is_tunnel => {}
            Self::Other(other) => other.end(),
        }
    }
}

/// Counts whether the picked endpoint served. Returns the one that did, if it is another.
fn note_served(routing: &Routing, picked: &Worker, by: Option<SocketAddr>) -> Option<SocketAddr> {
    let elsewhere = by.filter(|by| picked.endpoint != Some(*by));
    let is_known = elsewhere.is_none_or(|by| at(routing, picked, by).is_some());
    routing.metrics.served(match (elsewhere, is_known) {
        (None, _) => "picked",
        (Some(_), true) => "fallback",
        (Some(_), false) => "unknown",
    });
    elsewhere
}

/// Returns the worker at an address; of several ranks there, the one that the request was prepared for.
fn at(routing: &Routing, picked: &Worker, address: SocketAddr) -> Option<Arc<Worker>> {
    let present = routing.fleet.present();
    let mut there = present.iter().filter(|worker| worker.endpoint == Some(address));
    there
        .find(|worker| worker.spec.rank == picked.spec.rank)
        .map(Arc::clone)
}

/// A turn that a gateway carries.
pub(super) struct CarriedTurn {
    proxy: Arc<Proxy>,
    turn: Arc<Turn>,
    worker: Arc<Worker>,
    sequence: u64,
    explained: Option<HeaderValue>,
    /// The attempt, until the head of the response arrives.
    attempt: Option<Box<Flight>>,
    charged: Charged,
    /// Observer, once the head of the response has arrived.
    observer: Option<Observer>,
    permit: Option<RequestPermit>,
}

impl CarriedTurn {
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        turn: Arc<Turn>,
        choice: &Choice,
        attempt: Box<Flight>,
        charged: Charged,
        permit: RequestPermit,
    ) -> Self {
        let explained = turn
            .explain
            .then(|| decisions::view::header(&proxy.state.routing, &choice.decision));
        Self {
            proxy: Arc::clone(proxy),
            turn,
            worker: Arc::clone(&choice.worker),
            sequence: choice.decision.sequence,
            explained: explained.flatten(),
            attempt: Some(attempt),
            charged,
            observer: None,
            permit: Some(permit),
        }
    }

    fn head(
        &mut self,
        status: StatusCode,
        head: &HeaderMap,
        by: Option<SocketAddr>,
        comes_whole: bool,
    ) -> HeaderMap {
        let mut marks = HeaderMap::new();
        // A second response head is ignored.
        let Some(attempt) = self.attempt.take() else {
            return marks;
        };
        let attempt = match note_served(&self.proxy.state.routing, &self.worker, by) {
            None => Some(attempt),
            Some(by) => self.moved(attempt, by),
        };
        let Some(mut attempt) = attempt else {
            return marks;
        };
        attempt.keep(self.permit.take());
        if comes_whole {
            attempt.mark_untimed();
        }
        if status == StatusCode::NOT_FOUND {
            // It may lack the model: the next request finds its list as it is.
            self.worker.facts.doubt(self.proxy.state.routing.clock.now());
        }
        let kind = head.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let watch = Watch::new(self.turn.endpoint, kind, head.contains_key(CONTENT_ENCODING))
            .within(self.proxy.state.transport.response_reservation());
        // The observer sees an error in the body.
        let verdict = Verdict::of(status, head, b"");
        self.observer = Some(Observer::new(watch, attempt, status, verdict));
        mark(
            &self.proxy.state.routing,
            &mut marks,
            &self.worker,
            Some(self.sequence),
        );
        if let Some(terms) = self.explained.take() {
            marks.insert(headers::EXPLAIN, terms);
        }
        marks
    }

    /// Moves the account to the worker that answered in place of the picked one. Returns `None` if it is unknown.
    fn moved(&mut self, attempt: Box<Flight>, by: SocketAddr) -> Option<Box<Flight>> {
        let trace = attempt.trace().clone();
        attempt.end(AttemptOutcome::NotReached);
        let Some(worker) = at(&self.proxy.state.routing, &self.worker, by) else {
            debug!(endpoint = %by, "the response came from an endpoint that is not a worker");
            return None;
        };
        Arc::make_mut(&mut self.turn).among = Some(Among::One(worker.id));
        let choice = select::select(&self.proxy.state.routing, &self.turn, &[]).ok()?;
        // The worker has answered already, whatever its breaker's state.
        let pass = worker.admit(self.proxy.state.routing.clock.now(), true)?;
        let charged = Arc::clone(&self.charged);
        let mut flight = Flight::start(&self.proxy, &trace, &self.turn, &choice, pass, charged);
        flight.mark_sent();
        flight.mark_untimed();
        self.sequence = choice.decision.sequence;
        self.worker = worker;
        Some(flight)
    }
}

impl CarriedTurn {
    fn overran(&mut self, overrun: Overrun) {
        if let Some(observer) = &mut self.observer {
            observer.overran(overrun, |flight| flight.log_failure(&overrun.cause(), CUT_OFF));
        }
        let Some(mut flight) = self.attempt.take() else {
            return;
        };
        flight.log_failure(&overrun.cause(), CUT_OFF);
        flight.spare_if_busy(overrun);
        let outcome = match overrun.outcome() {
            AttemptOutcome::Broken => AttemptOutcome::WorkerError,
            other => other,
        };
        if let Some(permit) = self
            .permit
            .as_mut()
            .filter(|_| outcome == AttemptOutcome::WorkerError)
        {
            // No worker answered, so the key is not charged.
            permit.charge.give_back();
        }
        flight.end(outcome);
    }
}

impl Drop for CarriedTurn {
    fn drop(&mut self) {
        // Dropped before the permit: the next request must see the worker without this turn.
        self.observer = None;
        self.attempt = None;
    }
}

/// A request other than a turn that a gateway carries.
pub(super) struct Relayed {
    state: Arc<State>,
    /// Guard of the request on its worker, until the response ends.
    in_flight: Option<InFlight>,
    permit: Option<RequestPermit>,
    timer: RequestTimer,
    is_answered: bool,
    /// Whether the gateway carries a WebSocket, of which it shows nothing.
    is_tunnel: bool,
    first: FirstEvent,
    /// The worker's count of response bytes when it was picked.
    bytes_before: u64,
    inspector: Inspector,
}

impl Relayed {
    pub(super) fn new(
        state: &Arc<State>,
        in_flight: InFlight,
        permit: RequestPermit,
        timer: RequestTimer,
        inspector: Inspector,
    ) -> Self {
        Self {
            state: Arc::clone(state),
            bytes_before: in_flight.worker().bytes_seen(),
            in_flight: Some(in_flight),
            permit: Some(permit),
            timer,
            is_answered: false,
            is_tunnel: false,
            first: FirstEvent::of(&HeaderMap::new()),
            inspector,
        }
    }

    fn head(&mut self, status: StatusCode, head: &HeaderMap, by: Option<SocketAddr>) -> HeaderMap {
        let mut marks = HeaderMap::new();
        if std::mem::replace(&mut self.is_answered, true) {
            return marks;
        }
        self.is_tunnel = status == StatusCode::SWITCHING_PROTOCOLS
            || (self.timer.endpoint == Route::Tunnel.endpoint() && status.is_success());
        self.first = FirstEvent::of(head);
        if let Some(picked) = self.in_flight.take() {
            self.in_flight = match note_served(&self.state.routing, picked.worker(), by) {
                None => Some(picked),
                Some(by) => at(&self.state.routing, picked.worker(), by).and_then(|worker| {
                    let clock = self.state.routing.clock;
                    let now = clock.now();
                    Some(worker.send(clock, now, None, worker.admit(now, true)?))
                }),
            };
        }
        let Some(in_flight) = &mut self.in_flight else {
            return marks;
        };
        let verdict = Verdict::of(status, head, b"");
        report(&self.state, verdict, in_flight, &Charged::default());
        pass::settled(&self.state, status, verdict, in_flight, self.timer);
        mark(&self.state.routing, &mut marks, in_flight.worker(), None);
        marks
    }
}

impl Relayed {
    fn passed(&mut self, piece: &[u8]) -> Step {
        let step = self.first.push(piece);
        if let Some(in_flight) = self.in_flight.as_ref().filter(|_| step == Step::Token) {
            in_flight.worker().count_bytes(piece.len());
        }
        step
    }

    fn end(&mut self) {
        self.in_flight = None;
        self.permit = None;
    }

    fn overran(&mut self, overrun: Overrun) {
        if let Some(in_flight) = &mut self.in_flight {
            let worker = Arc::clone(in_flight.worker());
            self.state.routing.log_failure(&worker, &overrun.cause(), CUT_OFF);
            let is_busy = self.state.routing.is_answering(&worker, self.bytes_before);
            if overrun.is_the_workers(is_busy) {
                self.state.failed(in_flight, None);
            }
        }
        if !std::mem::replace(&mut self.is_answered, true) {
            self.timer.record(&self.state.routing, "router_error");
        }
        self.end();
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        if !self.is_answered {
            self.timer.record(&self.state.routing, "aborted");
        }
    }
}
