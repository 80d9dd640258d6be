//! The request path: from a client's connection to the worker and back.

pub mod accept;
pub mod admission;
pub mod decisions;
pub mod path;
#[cfg(test)]
mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use fleet::Worker;
use http::Request;
use state::State;
use state::turn_reports::TurnReports;
use tailroute_http::upstream::PendingResponse;
use telemetry::capture::{Capture, CaptureError};
use telemetry::context::Ids;
use telemetry::traces::{ExporterError, Traces};
use tokio::sync::watch;

use self::admission::Admission;
use self::admission::gate::Permit;
use self::admission::limits::Charge;
use self::decisions::Decisions;
use self::path::stored::Stored;

/// The state of the request path that all requests share.
#[derive(Debug)]
pub struct Proxy {
    /// The state that all parts of the router share.
    pub state: Arc<State>,
    pub admission: Arc<Admission>,
    /// The workers that store responses.
    pub stored: Stored,
    /// Generator of ids for requests and their traces.
    pub ids: Ids,
    pub decisions: Decisions,
    /// The capture of turns in a file, if configured.
    pub capture: Option<Capture>,
    /// Traces of requests, if configured.
    pub traces: Option<Arc<Traces>>,
    /// Other replicas that turns are reported to, if configured.
    pub replicas: Option<Arc<dyn TurnReports>>,
    in_flight: AtomicUsize,
    cut: watch::Sender<bool>,
}

/// The reason why the request path cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The export of traces cannot be started.
    #[error(transparent)]
    Traces(#[from] ExporterError),
    /// The capture cannot be started.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// The right to be one of the requests in flight. Dropping it admits the next one.
#[derive(Debug)]
pub struct RequestPermit {
    proxy: Arc<Proxy>,
    is_free: bool,
    /// The charge to the API key.
    pub charge: Charge,
    /// The permit of the admission gate, if there is one.
    pub gate: Option<Permit>,
}

impl RequestPermit {
    /// Records that the request is on its way to a worker.
    pub fn sent(&mut self) {
        self.charge.sent();
        if let Some(permit) = &mut self.gate {
            permit.sent();
        }
    }

    /// Admits the next request. The charge remains.
    pub fn free(&mut self) {
        if !std::mem::replace(&mut self.is_free, true) {
            self.gate = None;
            self.proxy.in_flight.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.free();
    }
}

impl Proxy {
    /// Creates the request path. Fails if traces or a capture are configured and cannot be started.
    pub fn new(state: Arc<State>, replicas: Option<Arc<dyn TurnReports>>) -> Result<Arc<Self>, StartError> {
        let (config, metrics) = (&state.config, &state.routing.metrics);
        let capture = config.capture.as_ref();
        let capture = capture.map(|capture| Capture::start(capture, Arc::new(metrics.capture())));
        let traces = config.traces.as_ref();
        let traces = traces.map(|traces| Traces::new(traces, Arc::new(metrics.traces())));
        Ok(Arc::new(Self {
            admission: Arc::new(Admission::new(Arc::clone(&state))),
            stored: Stored::default(),
            ids: Ids::of_this_process(),
            decisions: Decisions::new(config.explain.max_bytes),
            capture: capture.transpose()?,
            traces: traces.transpose()?,
            replicas,
            in_flight: AtomicUsize::new(0),
            cut: watch::Sender::new(false),
            state,
        }))
    }

    /// Writes the fleet to the capture's file, if there is one, when costs or the policy have changed. Checks that at
    /// most every ten seconds, unless `last` is set.
    pub fn capture_fleet(&self, last: bool) {
        if let Some(capture) = &self.capture {
            capture.look(self.state.routing.clock.now(), last, || {
                self.state.routing.fleet_in_use()
            });
        }
    }

    /// Sends a turn to a worker. Dropping the reply closes the connection.
    #[must_use]
    pub fn send(&self, worker: &Worker, request: Request<Bytes>) -> PendingResponse {
        match &worker.origin {
            Some(origin) => origin.send(request),
            None => self.state.transport.client.reply(request),
        }
    }

    /// Takes a permit for one more request, if `limits.max_in_flight` leaves one.
    #[must_use]
    pub fn acquire(self: &Arc<Self>) -> Option<RequestPermit> {
        self.state
            .operations
            .idle
            .requested(self.state.routing.clock.now());
        let max = self.state.routing.live().limits.max_in_flight.get();
        let permit = RequestPermit {
            proxy: Arc::clone(self),
            is_free: false,
            charge: Charge::default(),
            gate: None,
        };
        // Counted before the check, so that two requests cannot share the last permit; dropping `permit` corrects it.
        (self.in_flight.fetch_add(1, Ordering::AcqRel) < max).then_some(permit)
    }

    /// Returns whether a permit is available, for a request whose body is still to be read.
    #[must_use]
    pub fn has_capacity(&self) -> bool {
        self.in_flight() < self.state.routing.live().limits.max_in_flight.get()
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Ends all responses, once the drain limit is reached.
    pub fn cut_off(&self) {
        self.cut.send_replace(true);
    }

    /// Completes when [`Proxy::cut_off`] is called.
    pub fn when_cut_off(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut cut = self.cut.subscribe();
        async move {
            // An error means that the router is gone.
            let _ = cut.wait_for(|cut| *cut).await;
        }
    }
}
