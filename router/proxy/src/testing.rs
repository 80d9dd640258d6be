//! A request path for tests: three workers with scripted responses, in memory and on paused time.
//!
//! No test waits for a socket or a real clock. While every task waits, tokio moves the paused clock to the next timer,
//! so the times in scripts are exact, however busy the machine is.
//!
//! ```text
//! Seat::ask ──▶ path::handle ──▶ State::client ──▶ Upstream (plays the worker's next Script)
//! Delivered ◀──  the client's side reads the response  ◀──┘
//! ```

mod client;
mod upstream;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use config::{Config, Sources};
use fleet::breaker::Outcomes;
use fleet::health::Probe;
use fleet::overrides::AdminState;
use fleet::{Fleet, InFlight, Worker};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use hyper_util::rt::TokioTimer;
use learning::feedback::{LearnerEvent, Observation};
use metrics::Format;
use parking_lot::Mutex;
use policy::ids::WorkerId;
use policy::units::{Millis, Tokens};
use protocol::api::Endpoint;
use protocol::api::responses::response_key;
use protocol::watch::Watch;
use state::State;
use tailroute_http::body::Body;
use tailroute_http::upstream::UpstreamClient;
use telemetry::traces::Trace;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use self::client::{Delivered, Upload, next_frame, next_piece};
pub(crate) use self::upstream::{DONE, Script, Upstream, token, usage};
use crate::admission::keys::Caller;
use crate::decisions::{Filter, Slot};
use crate::path::arrival::Peer;
use crate::path::context::{RequestContext, RequestTimer};
use crate::path::deadline::Deadline;
use crate::path::flight::Flight;
use crate::path::forward::select_admitted;
use crate::path::retry::Charged;
use crate::path::select::{self, Choice};
use crate::path::stored::Kept;
use crate::path::turn::Turn;
use crate::{Proxy, RequestPermit};

/// Three workers of the model `m`. On an idle fleet, a turn without cached tokens goes to `a`, then to `b`, then to `c`.
const FILE: &str = r#"
[[workers]]
name = "a"
url = "http://10.0.0.1:8000"
alpha_ms_per_token = 1.0
beta_ms = 10.0
capacity_tokens = 100_000
models = ["m"]

[[workers]]
name = "b"
url = "http://10.0.0.2:8000"
alpha_ms_per_token = 1.0
beta_ms = 20.0
capacity_tokens = 100_000
models = ["m"]

[[workers]]
name = "c"
url = "http://10.0.0.3:8000"
alpha_ms_per_token = 1.0
beta_ms = 30.0
capacity_tokens = 100_000
models = ["m"]

[index]
max_bytes = 4194304

[failure]
slow_start_s = 0

[explain]
max_bytes = 65536
"#;

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let sources = Sources {
        file: Some(("test.toml", FILE)),
        ..Sources::default()
    };
    config::load(&sources).unwrap()
});

/// Outcomes of requests, by their names in metrics.
const OUTCOMES: [&str; 10] = [
    "ok",
    "client_error",
    "declined",
    "worker_error",
    "error_in_body",
    "broken",
    "aborted",
    "deadline",
    "cut",
    "router_error",
];

/// Far more than any test takes, by the paused clock.
const NEVER: Duration = Duration::from_secs(7 * 24 * 3600);

/// A request path with its workers.
pub(crate) struct Seat {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) upstream: Upstream,
    learner: Mutex<mpsc::Receiver<LearnerEvent>>,
    began: Instant,
}

impl Seat {
    /// Creates the path with three ready workers.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates the path with a changed configuration.
    pub(crate) fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = CONFIG.clone();
        change(&mut config);
        let began = Instant::now();
        let upstream = Upstream::new(&config.workers);
        let mut state = State::new(config).unwrap();
        let its = Arc::get_mut(&mut state).unwrap();
        its.transport.client = UpstreamClient::new(upstream.clone(), TokioTimer::new());
        let worker = |(slot, spec): (u32, &config::Worker)| {
            let mut worker = Worker::new(WorkerId(slot), spec.clone(), &its.config, Millis::ZERO);
            // Turns go through hyper's client too, which connects in memory.
            worker.origin = None;
            worker.observe_health(Millis::ZERO, Probe::Well);
            Arc::new(worker)
        };
        its.routing.fleet = Fleet::new((0..).zip(&its.config.workers).map(worker).collect());
        let learner = Mutex::new(state.routing.feedback.take_receiver().unwrap());
        Self {
            proxy: Proxy::new(state, None).unwrap(),
            upstream,
            learner,
            began,
        }
    }

    /// Creates the path with one API key, of this many tokens per burst, which does not refill soon.
    pub(crate) fn with_key(tokens: f64, change: impl FnOnce(&mut Config)) -> Self {
        Self::with(|config| {
            config.keys = vec![config::Key {
                name: "key".to_owned(),
                digest: operator::secret::hash(b"secret"),
                tenant: "key".to_owned(),
                weight: 1.0,
                priority: 0,
                requests: None,
                tokens: Some(config::Rate {
                    per_s: 1e-9,
                    burst: tokens,
                }),
                explain: false,
            }];
            change(config);
        })
    }

    pub(crate) fn worker(&self, name: &str) -> Arc<Worker> {
        self.proxy.state.routing.fleet.find(name).unwrap()
    }

    pub(crate) fn hold(&self, name: &str, state: AdminState) {
        self.worker(name).set_admin_state(state);
    }

    /// Leaves only `a` for turns.
    pub(crate) fn hold_others(&self) {
        self.hold("b", AdminState::Cordoned);
        self.hold("c", AdminState::Cordoned);
    }

    /// Opens a worker's breaker by failed requests.
    pub(crate) fn break_worker(&self, name: &str) {
        for _ in 0..self.proxy.state.config.failure.breaker_failures {
            self.fail_on(name, None);
        }
        let now = self.proxy.state.routing.clock.now();
        assert!(self.worker(name).open_unless_alike(now, Outcomes::default()));
    }

    /// Has a request fail on a worker.
    pub(crate) fn fail_on(&self, name: &str, source: Option<u64>) {
        let mut request = self.occupy(name);
        let _may_open = request.failed(source);
    }

    /// Counts a request in flight on a worker, until the guard is dropped.
    pub(crate) fn occupy(&self, name: &str) -> InFlight {
        let (worker, clock) = (self.worker(name), self.proxy.state.routing.clock);
        let now = clock.now();
        worker.send(clock, now, None, worker.admit(now, true).unwrap())
    }

    /// Has a worker store a response.
    pub(crate) fn store(&self, id: &str, worker: &str) {
        let kept = Kept {
            worker: self.worker(worker).id,
            conversation: None,
        };
        self.proxy.stored.keep(0, response_key(id), kept);
    }

    /// Appends responses to a worker's script.
    pub(crate) fn script(&self, worker: &str, scripts: impl IntoIterator<Item = Script>) {
        self.upstream.script(worker, scripts);
    }

    /// Returns the names of the workers that got a request, in order of time.
    pub(crate) fn asked(&self) -> String {
        self.upstream.asked()
    }

    /// Returns the milliseconds since the creation of the seat.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Parses a chat turn with this prompt.
    pub(crate) fn turn(&self, prompt: &str) -> Turn {
        self.turn_of(&[], &chat(prompt))
    }

    /// Parses a chat turn with these headers and this body.
    pub(crate) fn turn_of(&self, fields: &[(&str, &str)], body: &str) -> Turn {
        let now = self.proxy.state.routing.clock.now();
        let mut head = http::Request::new(()).into_parts().0;
        head.headers = headers(fields);
        Turn::read(
            &self.proxy,
            Endpoint::Chat,
            &Caller::anonymous(),
            &head,
            body.as_bytes(),
            now,
        )
        .unwrap()
    }

    /// Selects a worker for a turn, for which it is ready.
    pub(crate) fn choose(&self, turn: &Turn) -> Choice {
        select::select(&self.proxy.state.routing, turn, &[]).unwrap()
    }

    /// Starts an attempt of a turn on the worker that is selected for it.
    pub(crate) fn start(&self, turn: &Arc<Turn>) -> Box<Flight> {
        self.attempt(turn, &Charged::default())
    }

    /// Starts an attempt of a request that may have been counted as a failure.
    pub(crate) fn attempt(&self, turn: &Arc<Turn>, charged: &Charged) -> Box<Flight> {
        let (choice, pass) = select_admitted(&self.proxy.state.routing, turn, &mut Vec::new()).unwrap();
        let trace = Trace::default();
        let mut flight = Flight::start(&self.proxy, &trace, turn, &choice, pass, Arc::clone(charged));
        flight.mark_sent();
        flight
    }

    /// Returns the permit of a request that was sent, and charged with so many tokens.
    pub(crate) fn permit(&self, tokens: u64) -> RequestPermit {
        let mut permit = self.proxy.acquire().unwrap();
        let charge = self
            .caller()
            .charge(self.proxy.state.routing.clock, Tokens(tokens));
        permit.charge = charge.unwrap();
        permit.sent();
        permit
    }

    /// Sends a chat turn through the path, and reads the whole response.
    pub(crate) async fn chat(&self, prompt: &str) -> Delivered {
        self.post("/v1/chat/completions", &[], &chat(prompt)).await
    }

    /// Sends a request with a body through the path, and reads the whole response.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)], body: &str) -> Delivered {
        let began = Instant::now();
        let response = self.ask(path, fields, body).await;
        Delivered::read(response, began).await
    }

    /// Sends a request with a body through the path. Returns the response, whose body is unread.
    pub(crate) async fn ask(&self, path: &str, fields: &[(&str, &str)], body: &str) -> Response<Body> {
        self.send(Method::POST, path, fields, Upload::whole(body)).await
    }

    /// Sends a request through the path. Returns the response, whose body is unread.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        body: Upload,
    ) -> Response<Body> {
        let request = client::incoming(method, path, fields, body).await;
        let peer = Peer::new(
            &self.proxy.state.config.http,
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            false,
        );
        within(crate::path::handle(Arc::clone(&self.proxy), &peer, request)).await
    }

    /// Calls `work` with the context of a request that has just arrived.
    pub(crate) async fn in_context<T>(&self, work: impl AsyncFnOnce(&RequestContext<'_>) -> T) -> T {
        let state = &self.proxy.state;
        let (caller, trace) = (self.caller(), Trace::default());
        let context = RequestContext {
            proxy: &self.proxy,
            caller: &caller,
            timer: RequestTimer {
                endpoint: "chat",
                started: state.routing.clock.now(),
            },
            deadline: Deadline::of(&HeaderMap::new(), &state.config.failure, Instant::now()),
            trace: &trace,
        };
        within(work(&context)).await
    }

    /// Returns the caller with the only key, or the anonymous one.
    pub(crate) fn caller(&self) -> Caller {
        let shown = headers(&[("authorization", "Bearer secret")]);
        self.proxy.admission.keys().identify(&shown).unwrap()
    }

    /// Returns the tokens that remain to the only key.
    pub(crate) fn tokens_left(&self) -> u64 {
        let now = self.proxy.state.routing.clock.now();
        self.proxy.admission.keys().left("key", now).unwrap().round() as u64
    }

    /// Returns the sum of a metric's values, over the series with all of these labels, as in `worker=a`.
    pub(crate) fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        sum(&self.metrics(), name, labels)
    }

    /// Returns the page of metrics.
    fn metrics(&self) -> String {
        let state = &self.proxy.state;
        let gauges = state.gauges(self.proxy.admission.gate.counts(), None);
        state.routing.metrics.render(&gauges, Format::Text).unwrap()
    }

    /// Sums a request up: status and answering worker (or the code of the router's error), the workers that were asked,
    /// the outcomes counted, and the workers that failures were charged to, as in `200 b; asked ab; ok 1; charged a`.
    pub(crate) fn sum_up(&self, delivered: &Delivered) -> String {
        let by = match delivered.code() {
            "" => delivered.worker(),
            code => code,
        };
        let cut = if delivered.error.is_some() { " cut" } else { "" };
        let (asked, page) = (self.asked(), self.metrics());
        let outcomes = outcomes(&page);
        let mut told = format!("{} {by}{cut}; asked {asked}; {outcomes}", delivered.status);
        let failures = |name: &str| {
            let label = format!("worker={name}");
            name.repeat(sum(&page, "tailroute_worker_failures_total", &[&label]) as usize)
        };
        let charged = ["a", "b", "c"].map(failures).concat();
        if !charged.is_empty() {
            told += &format!("; charged {charged}");
        }
        told
    }

    /// Returns how many requests ended with each outcome, as in `ok 1, broken 2`.
    pub(crate) fn outcomes(&self) -> String {
        outcomes(&self.metrics())
    }

    /// Returns the tokens of the prompt that each worker's mirror holds.
    pub(crate) fn resident(&self, turn: &Turn) -> [u64; 3] {
        let knowledge = &self.proxy.state.routing.knowledge;
        let found = knowledge.look_up(&turn.model, &turn.fingerprint, 3);
        [0, 1, 2].map(|slot: usize| found.resident.get(slot).map_or(0, |Tokens(tokens)| *tokens))
    }

    /// Takes the events that were queued for the learner.
    pub(crate) fn learned(&self) -> Vec<LearnerEvent> {
        let mut learner = self.learner.lock();
        std::iter::from_fn(|| learner.try_recv().ok()).collect()
    }

    /// Takes the observations of completed turns that were queued for the learner.
    pub(crate) fn observations(&self) -> Vec<Observation> {
        let events = self.learned().into_iter();
        let turns = events.filter_map(|event| match event {
            LearnerEvent::Turn(turn) => Some(*turn),
            _ => None,
        });
        turns.collect()
    }

    /// Returns the records of decisions, the oldest first.
    pub(crate) fn decisions(&self) -> Vec<Slot> {
        let (mut slots, _) = self.proxy.decisions.page(&Filter::default(), None, usize::MAX);
        slots.reverse();
        slots
    }

    /// Returns the number of requests in flight on each worker.
    pub(crate) fn in_flight(&self) -> [u32; 3] {
        ["a", "b", "c"].map(|name| self.worker(name).with_load(|load| load.in_flight))
    }
}

fn outcomes(page: &str) -> String {
    let count = |outcome: &&str| {
        let label = format!("outcome={outcome}");
        let count = sum(page, "tailroute_requests_total", &[&label]);
        (count > 0.0).then(|| format!("{outcome} {count}"))
    };
    let counted: Vec<String> = OUTCOMES.iter().filter_map(count).collect();
    counted.join(", ")
}

fn sum(page: &str, name: &str, labels: &[&str]) -> f64 {
    let labels = labels.iter().map(|label| label.replacen('=', "=\"", 1) + "\"");
    let labels: Vec<String> = labels.collect();
    let of_metric = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label.as_str()))
    };
    let values = page.lines().filter(of_metric);
    values
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .fold(0.0, |sum, value| sum + value)
}

/// Returns the body of a chat turn with this prompt, which asks for a stream.
pub(crate) fn chat(prompt: &str) -> String {
    format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"{prompt}"}}]}}"#)
}

/// Returns header fields.
pub(crate) fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| -> (HeaderName, HeaderValue) {
        (name.parse().unwrap(), value.parse().unwrap())
    };
    fields.iter().map(field).collect()
}

/// Passes a piece of a chat stream to an attempt, as its observer does.
pub(crate) fn relay(flight: &mut Flight, piece: &str) {
    let mut watch = Watch::new(Endpoint::Chat, Some("text/event-stream"), false);
    watch.push(piece.as_bytes(), |piece| flight.reply(piece));
    flight.passed(watch.passed);
}

/// Awaits a future that must complete.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(NEVER, future)
        .await
        .expect("it never completes")
}

/// Lets the paused clock run.
pub(crate) async fn pass_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
