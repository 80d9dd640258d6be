//! The answer to a request that a gateway carries: what the router sees of it, and the account of it.
//!
//! The account is the same as of what the router carries itself ([`Flight`]): opened when an endpoint is named, closed when
//! the answer has passed, or when the gateway lets go of the request, whatever the reason. If the gateway had to go to
//! another endpoint and says so, the account of the first is closed as not reached and the other's is opened.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use policy::units::Millis;
use tracing::debug;

use crate::app::{App, Place};
use crate::decisions;
use crate::path::among::Among;
use crate::path::choose::{self, Choice, Turn};
use crate::path::flight::{Charged, Flight, Outcome};
use crate::path::forward::{mark, outcome, pass};
use crate::path::inspect::Inspector;
use crate::path::observe::Observer;
use crate::path::retry;
use crate::telemetry::trail::Leg;
use fleet::{InFlight, Worker};
use protocol::error::ApiError;
use protocol::headers;
use protocol::watch::Watch;

/// A request that was picked for.
pub(super) enum Served {
    /// A turn.
    Turn(Box<Carried>),
    /// Anything else.
    Other(Box<Relayed>),
}

impl Served {
    /// The head of the answer passes, as `by` gave it; if its body `comes_whole`, its first token cannot be timed. Returns what
    /// is added to it.
    pub(super) fn head(
        &mut self,
        (status, head): (StatusCode, &HeaderMap),
        by: Option<SocketAddr>,
        comes_whole: bool,
    ) -> HeaderMap {
        match self {
            Self::Turn(turn) => turn.head((status, head), by, comes_whole),
            Self::Other(other) => other.head(status, by),
        }
    }

    /// Some of the request's body passes, if it was not read before the worker was picked.
    ///
    /// # Errors
    /// If it may not be passed on.
    pub(super) fn asks(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        match self {
            Self::Turn(_) => Ok(()),
            Self::Other(other) => Ok(other.inspector.push(piece)?),
        }
    }

    /// Some of its body passes.
    pub(super) fn body(&mut self, piece: &Bytes) {
        if let Self::Turn(turn) = self
            && let Some(observer) = &mut turn.observer
        {
            observer.passed(piece);
        }
    }

    /// All of it has passed; `unseen`, if nothing but its head came by here.
    pub(super) fn ended(&mut self, unseen: bool) {
        if let Self::Turn(turn) = self
            && let Some(observer) = &mut turn.observer
        {
            if unseen {
                observer.ended_unseen();
            } else {
                observer.ended();
            }
        }
    }
}

/// Who served, beside who was picked.
fn note_served(app: &App, picked: &Worker, by: Option<SocketAddr>) -> Option<SocketAddr> {
    let elsewhere = by.filter(|by| picked.endpoint != Some(*by));
    let is_known = elsewhere.is_none_or(|by| at(app, picked, by).is_some());
    app.metrics.served(match (elsewhere, is_known) {
        (None, _) => "picked",
        (Some(_), true) => "fallback",
        (Some(_), false) => "unknown",
    });
    elsewhere
}

/// The worker at an address; where several ranks are there, the one that the request was made ready for.
fn at(app: &App, picked: &Worker, address: SocketAddr) -> Option<Arc<Worker>> {
    let present = app.fleet.present();
    let mut there = present.iter().filter(|worker| worker.endpoint == Some(address));
    there
        .find(|worker| worker.spec.rank == picked.spec.rank)
        .map(Arc::clone)
}

/// A turn that a gateway carries.
pub(super) struct Carried {
    app: Arc<App>,
    turn: Arc<Turn>,
    worker: Arc<Worker>,
    sequence: u64,
    /// The terms of the choice, if they were asked for.
    explained: Option<HeaderValue>,
    /// Until the head of the answer is there.
    attempt: Option<(Box<Flight>, Leg)>,
    charged: Charged,
    /// From then on.
    observer: Option<Observer>,
    place: Option<Place>,
}

impl Carried {
    pub(super) fn new(
        app: &Arc<App>,
        turn: Arc<Turn>,
        choice: &Choice,
        (attempt, charged): ((Box<Flight>, Leg), Charged),
        place: Place,
    ) -> Self {
        let explained = turn
            .explain
            .then(|| decisions::view::header(app, &choice.decision));
        Self {
            app: Arc::clone(app),
            turn,
            worker: Arc::clone(&choice.worker),
            sequence: choice.decision.sequence,
            explained: explained.flatten(),
            attempt: Some(attempt),
            charged,
            observer: None,
            place: Some(place),
        }
    }

    fn head(
        &mut self,
        (status, head): (StatusCode, &HeaderMap),
        by: Option<SocketAddr>,
        comes_whole: bool,
    ) -> HeaderMap {
        let mut marks = HeaderMap::new();
        // A second head of one answer is none.
        let Some(attempt) = self.attempt.take() else {
            return marks;
        };
        let attempt = match note_served(&self.app, &self.worker, by) {
            None => Some(attempt),
            Some(by) => self.moved(attempt, by),
        };
        let Some((mut flight, leg)) = attempt else {
            return marks;
        };
        flight.keep(self.place.take());
        if comes_whole {
            flight.is_unclocked();
        }
        let outcome = outcome(status, &mut flight);
        let kind = head.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let watch = Watch::new(self.turn.endpoint, kind, head.contains_key(CONTENT_ENCODING))
            .within(self.app.copied());
        self.observer = Some(Observer::new(watch, (flight, leg), outcome));
        mark(&mut marks, &self.worker, Some(self.sequence));
        if let Some(terms) = self.explained.take() {
            marks.insert(headers::EXPLAIN, terms);
        }
        marks
    }

    /// Another worker than the one that was picked has answered.
    fn moved(&mut self, (flight, leg): (Box<Flight>, Leg), by: SocketAddr) -> Option<(Box<Flight>, Leg)> {
        let trail = leg.trail().clone();
        leg.end(Outcome::NotReached.as_str(), None);
        flight.end(Outcome::NotReached);
        let Some(worker) = at(&self.app, &self.worker, by) else {
            debug!(endpoint = %by, "an endpoint has answered that is no worker's");
            return None;
        };
        Arc::make_mut(&mut self.turn).among = Some(Among::One(worker.id));
        let choice = choose::choose(&self.app, &self.turn, &[]).ok()?;
        // It has answered already, whatever its breaker says.
        let pass = worker.admit(self.app.clock.now(), true)?;
        let mut flight = Flight::start(&self.app, &self.turn, &choice, pass, Arc::clone(&self.charged));
        flight.is_out();
        let leg = trail.attempt(&choice, &mut HeaderMap::new());
        flight.is_unclocked();
        flight.traced(leg.note());
        self.sequence = choice.decision.sequence;
        self.worker = worker;
        Some((flight, leg))
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        // Before its place: whoever gets that sees the worker without this turn.
        self.observer = None;
        if let Some((flight, leg)) = self.attempt.take() {
            leg.end(Outcome::Aborted.as_str(), None);
            drop(flight);
        }
    }
}

/// Anything else that a gateway carries.
pub(super) struct Relayed {
    app: Arc<App>,
    in_flight: Option<InFlight>,
    _place: Place,
    /// When it was picked for, and its name in metrics.
    counted: (Millis, &'static str),
    is_answered: bool,
    inspector: Inspector,
}

impl Relayed {
    pub(super) fn new(
        app: &Arc<App>,
        in_flight: InFlight,
        place: Place,
        counted: (Millis, &'static str),
        inspector: Inspector,
    ) -> Self {
        Self {
            app: Arc::clone(app),
            in_flight: Some(in_flight),
            _place: place,
            counted,
            is_answered: false,
            inspector,
        }
    }

    fn head(&mut self, status: StatusCode, by: Option<SocketAddr>) -> HeaderMap {
        let mut marks = HeaderMap::new();
        if std::mem::replace(&mut self.is_answered, true) {
            return marks;
        }
        if let Some(picked) = self.in_flight.take() {
            self.in_flight = match note_served(&self.app, picked.worker(), by) {
                None => Some(picked),
                Some(by) => at(&self.app, picked.worker(), by).and_then(|worker| {
                    let pass = worker.admit(self.app.clock.now(), true)?;
                    Some(worker.send(self.app.clock, None, pass))
                }),
            };
        }
        let Some(in_flight) = &mut self.in_flight else {
            return marks;
        };
        if retry::is_failure(status) && in_flight.failed() {
            self.app.breaker_opened(in_flight.worker());
        }
        pass::settled(&self.app, status, in_flight, self.counted);
        mark(&mut marks, in_flight.worker(), None);
        marks
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        if !self.is_answered {
            let (started, endpoint) = self.counted;
            let seconds = (self.app.clock.now() - started).0 / 1e3;
            self.app.metrics.request(endpoint, "aborted", seconds);
        }
    }
}
