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
use protocol::headers;
use protocol::verdict::Verdict;
use protocol::watch::Watch;
use proxy::decisions;
use proxy::path::among::Among;
use proxy::path::context::RequestTimer;
use proxy::path::flight::{Flight, Outcome};
use proxy::path::forward::{mark, pass};
use proxy::path::inspect::Inspector;
use proxy::path::observe::{Attempt, Observer};
use proxy::path::retry::Charged;
use proxy::path::select::{self, Choice};
use proxy::path::turn::Turn;
use proxy::{Proxy, RequestPermit};

pub(super) enum Served {
    Turn(Box<Carried>),
    Other(Box<Relayed>),
}

impl Served {
    /// Observes the head of the response from `by`. If the body `comes_whole`, its first token cannot be timed.
    /// Returns the headers to add.
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

    /// Inspects a piece of a body that was not parsed before the pick. Fails if it must not be forwarded.
    pub(super) fn asks(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        match self {
            Self::Turn(_) => Ok(()),
            Self::Other(other) => Ok(other.inspector.push(piece)?),
        }
    }

    pub(super) fn body(&mut self, piece: &Bytes) {
        if let Self::Turn(turn) = self
            && let Some(observer) = &mut turn.observer
        {
            observer.passed(piece);
        }
    }

    /// Ends the response. `unseen` if only its head was observed.
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

/// Returns the endpoint that served, if it differs from the picked one, and counts the outcome.
fn note_served(proxy: &Proxy, picked: &Worker, by: Option<SocketAddr>) -> Option<SocketAddr> {
    let elsewhere = by.filter(|by| picked.endpoint != Some(*by));
    let is_known = elsewhere.is_none_or(|by| at(proxy, picked, by).is_some());
    proxy.state.metrics.served(match (elsewhere, is_known) {
        (None, _) => "picked",
        (Some(_), true) => "fallback",
        (Some(_), false) => "unknown",
    });
    elsewhere
}

/// Returns the worker at an address; with several ranks there, the one that the request was prepared for.
fn at(proxy: &Proxy, picked: &Worker, address: SocketAddr) -> Option<Arc<Worker>> {
    let present = proxy.state.fleet.present();
    let mut there = present.iter().filter(|worker| worker.endpoint == Some(address));
    there
        .find(|worker| worker.spec.rank == picked.spec.rank)
        .map(Arc::clone)
}

/// A turn that a gateway proxies.
pub(super) struct Carried {
    proxy: Arc<Proxy>,
    turn: Arc<Turn>,
    worker: Arc<Worker>,
    sequence: u64,
    explained: Option<HeaderValue>,
    /// Present until the head of the response.
    attempt: Option<Attempt>,
    charged: Charged,
    /// Present after the head of the response.
    observer: Option<Observer>,
    permit: Option<RequestPermit>,
}

impl Carried {
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        turn: Arc<Turn>,
        choice: &Choice,
        attempt: Attempt,
        charged: Charged,
        permit: RequestPermit,
    ) -> Self {
        let explained = turn
            .explain
            .then(|| decisions::view::header(proxy, &choice.decision));
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
        let attempt = match note_served(&self.proxy, &self.worker, by) {
            None => Some(attempt),
            Some(by) => self.moved(attempt, by),
        };
        let Some(mut attempt) = attempt else {
            return marks;
        };
        attempt.flight.keep(self.permit.take());
        if comes_whole {
            attempt.flight.is_unclocked();
        }
        let kind = head.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let watch = Watch::new(self.turn.endpoint, kind, head.contains_key(CONTENT_ENCODING))
            .within(self.proxy.state.copied());
        // The observer sees an error in the body.
        let verdict = Verdict::of(status, head, b"");
        self.observer = Some(Observer::new(watch, attempt, status, verdict));
        mark(&mut marks, &self.worker, Some(self.sequence));
        if let Some(terms) = self.explained.take() {
            marks.insert(headers::EXPLAIN, terms);
        }
        marks
    }

    /// Moves the account to the worker that answered in place of the picked one.
    fn moved(&mut self, attempt: Attempt, by: SocketAddr) -> Option<Attempt> {
        let Attempt { flight, span } = attempt;
        let trace = span.trace().clone();
        span.end(Outcome::NotReached.as_str(), None);
        flight.end(Outcome::NotReached);
        let Some(worker) = at(&self.proxy, &self.worker, by) else {
            debug!(endpoint = %by, "the response came from an endpoint that is not a worker");
            return None;
        };
        Arc::make_mut(&mut self.turn).among = Some(Among::One(worker.id));
        let choice = select::select(&self.proxy, &self.turn, &[]).ok()?;
        // The worker has answered already, whatever its breaker's state.
        let pass = worker.admit(self.proxy.state.clock.now(), true)?;
        let mut flight = Flight::start(&self.proxy, &self.turn, &choice, pass, Arc::clone(&self.charged));
        flight.is_out();
        let span = trace.attempt(&choice, &mut HeaderMap::new());
        flight.is_unclocked();
        flight.traced(span.note());
        self.sequence = choice.decision.sequence;
        self.worker = worker;
        Some(Attempt { flight, span })
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        // Dropped before the permit: the next request must see the worker without this turn.
        self.observer = None;
        if let Some(Attempt { flight, span }) = self.attempt.take() {
            span.end(Outcome::Aborted.as_str(), None);
            drop(flight);
        }
    }
}

/// Any other request that a gateway proxies.
pub(super) struct Relayed {
    proxy: Arc<Proxy>,
    in_flight: Option<InFlight>,
    _permit: RequestPermit,
    timer: RequestTimer,
    is_answered: bool,
    inspector: Inspector,
}

impl Relayed {
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        in_flight: InFlight,
        permit: RequestPermit,
        timer: RequestTimer,
        inspector: Inspector,
    ) -> Self {
        Self {
            proxy: Arc::clone(proxy),
            in_flight: Some(in_flight),
            _permit: permit,
            timer,
            is_answered: false,
            inspector,
        }
    }

    fn head(&mut self, status: StatusCode, head: &HeaderMap, by: Option<SocketAddr>) -> HeaderMap {
        let mut marks = HeaderMap::new();
        if std::mem::replace(&mut self.is_answered, true) {
            return marks;
        }
        if let Some(picked) = self.in_flight.take() {
            self.in_flight = match note_served(&self.proxy, picked.worker(), by) {
                None => Some(picked),
                Some(by) => at(&self.proxy, picked.worker(), by).and_then(|worker| {
                    let pass = worker.admit(self.proxy.state.clock.now(), true)?;
                    Some(worker.send(self.proxy.state.clock, None, pass))
                }),
            };
        }
        let Some(in_flight) = &mut self.in_flight else {
            return marks;
        };
        let verdict = Verdict::of(status, head, b"");
        pass::report(&self.proxy, verdict, in_flight, &Charged::default());
        pass::settled(&self.proxy, status, verdict, in_flight, self.timer);
        mark(&mut marks, in_flight.worker(), None);
        marks
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        if !self.is_answered {
            self.timer.record(&self.proxy, "aborted");
        }
    }
}
