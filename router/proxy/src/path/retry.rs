//! The retry policy, shared by turns, hedges and relayed requests.
//!
//! Retrying a generation repeats its work, its tool calls and its stored responses. RFC 9110, section 9.2.2, forbids a
//! proxy to retry a request that is not idempotent, unless it knows that the first was not applied.
//!
//! | failure of the attempt | may have begun | retried | counts against the worker |
//! |---|---|---|---|
//! | no connection: refused, unreachable, timed out | no | yes | as a failed probe |
//! | a closed connection, before any byte was written | no | yes, after another connection to the same worker | no |
//! | a response that declines, by its head or its body | no | yes | no |
//! | any other 503 | no | yes | yes |
//! | 404, while another worker serves the model | no | yes; if the body says that the model is missing, on every such worker and outside the limits below | no |
//! | a response of 200 whose first event or whole body is an error | yes | if idempotent | by the error's code |
//! | connection lost after the first byte of the request | yes | if idempotent | yes |
//! | no first token in time | yes | no: the worker may still be computing | unless it makes progress on other requests |
//! | the request's own deadline passes | yes | no | no |
//! | any other response, 5xx too | yes | no: it is relayed | if it [failed](Verdict::Failed) |
//! | failure after the first byte of a response was relayed | yes | no | yes |
//!
//! What a response means is decided by [`protocol::verdict`].
//!
//! A worker may close a reused connection just as the request is written, which counts as begun. To make it rare, idle
//! connections are closed before engines close them (uvicorn, which serves vLLM and SGLang, waits five seconds).
//!
//! A retry needs another worker, and is bounded by `limits.retries` per request, by the retry budget
//! ([`fleet::retry_budget`]) for all requests, and by the request's deadline.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::{HeaderMap, HeaderName, Method, StatusCode, request};
use hyper_util::client::legacy;
use policy::ids::WorkerId;

use protocol::api::Endpoint;
use protocol::verdict::{PushBack, Verdict};
use state::Routing;
use tailroute_http::upstream;

/// Whether a request has been counted as a failure of a worker. A request counts once, however many attempts it takes.
pub type Charged = Arc<AtomicBool>;

/// Header by which a client declares its request idempotent.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The failure of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection was made.
    NoConnection,
    /// The connection closed before the request was written.
    Unsent,
    /// The worker has no room.
    Declined(PushBack),
    /// The worker answered 503 without having declined.
    Unavailable,
    /// The worker answered 404: it may lack the model.
    NoModel,
    /// The body of a successful response begins with an error.
    ErrorInBody,
    /// The connection was lost after the first byte of the request was written.
    Lost,
    /// No response arrived in time.
    TimedOut,
    /// The request's own deadline passed.
    DeadlinePassed,
    /// The request could not be built for the worker.
    Unaddressable,
}

impl Failure {
    /// Classifies an error of the HTTP client.
    pub fn of(error: &upstream::Error) -> Self {
        match error {
            upstream::Error::Connect(_) => Self::NoConnection,
            upstream::Error::Unsent(_) => Self::Unsent,
            upstream::Error::Lost(_) => Self::Lost,
            upstream::Error::Hyper(error) => Self::of_hyper(error),
        }
    }

    fn of_hyper(error: &legacy::Error) -> Self {
        // hyper reports a request as "canceled" only if it was not sent.
        let unsent = |error: &(dyn Error + 'static)| {
            error
                .downcast_ref::<hyper::Error>()
                .is_some_and(hyper::Error::is_canceled)
        };
        if error.is_connect() {
            Self::NoConnection
        } else if sources(error).any(unsent) {
            Self::Unsent
        } else {
            Self::Lost
        }
    }

    /// Returns the failure that a response means; `None` if the response is relayed.
    pub fn of_answer(status: StatusCode, verdict: Verdict) -> Option<Self> {
        match verdict {
            Verdict::Declined(push_back) => Some(Self::Declined(push_back)),
            Verdict::Failed if status == StatusCode::SERVICE_UNAVAILABLE => Some(Self::Unavailable),
            Verdict::Failed if status.is_success() => Some(Self::ErrorInBody),
            Verdict::ClientError if status == StatusCode::NOT_FOUND => Some(Self::NoModel),
            _ => None,
        }
    }

    /// Returns whether the worker may have begun the request.
    pub fn may_have_begun(self) -> bool {
        matches!(
            self,
            Self::ErrorInBody | Self::Lost | Self::TimedOut | Self::DeadlinePassed
        )
    }

    /// Returns whether the worker refused the request.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Declined(_) | Self::Unavailable)
    }

    /// Returns whether the failure counts against the worker's breaker. Failed connections count as failed probes
    /// instead.
    pub fn is_the_workers(self) -> bool {
        matches!(
            self,
            Self::Unavailable | Self::ErrorInBody | Self::Lost | Self::TimedOut
        )
    }

    fn allows_retry(self, idempotent: impl FnOnce() -> bool) -> bool {
        match self {
            Self::NoConnection | Self::Unsent | Self::Declined(_) | Self::Unavailable | Self::NoModel => true,
            Self::Lost | Self::ErrorInBody => idempotent(),
            Self::TimedOut | Self::DeadlinePassed | Self::Unaddressable => false,
        }
    }
}

/// Retry state of one request.
#[derive(Debug)]
pub struct RetryState {
    /// Workers that are not tried again.
    pub tried: Vec<WorkerId>,
    retries: u32,
    /// Whether the request has been counted as a failure of a worker.
    pub charged: Charged,
}

impl RetryState {
    /// Creates the state of a new request, and adds the request to the retry budget.
    pub fn new(routing: &Routing) -> Self {
        routing.retries.lock().request(routing.clock.now());
        Self {
            tried: Vec::new(),
            retries: 0,
            charged: Arc::default(),
        }
    }

    /// Returns whether to retry on another worker. If so, charges the retry budget.
    pub fn may_retry(
        &mut self,
        routing: &Routing,
        failure: Failure,
        request: &request::Parts,
        has_other: impl FnOnce() -> bool,
    ) -> bool {
        let idempotent = || is_idempotent(&request.method, request.uri.path(), &request.headers);
        if self.retries >= routing.live().limits.retries || !failure.allows_retry(idempotent) || !has_other()
        {
            return false;
        }
        if !routing.retries.lock().take(routing.clock.now()) {
            routing.metrics.retry_refused();
            return false;
        }
        self.retries += 1;
        true
    }

    /// Returns whether to hedge a late request. If so, charges the retry budget.
    pub fn may_hedge(&self, routing: &Routing) -> bool {
        let paid = routing.retries.lock().take(routing.clock.now());
        if !paid {
            routing.metrics.hedge("refused");
        }
        paid
    }
}

/// Returns whether connecting timed out, as it may on a busy worker.
pub fn is_slow_to_connect(error: &upstream::Error) -> bool {
    error.is_connect()
        && sources(error).any(|error| {
            error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
        })
}

fn sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source())
}

/// Returns whether a request may be repeated: its method is idempotent by RFC 9110, its endpoint only computes a result,
/// or its client declares it idempotent ([`IDEMPOTENCY_KEY`]).
pub fn is_idempotent(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    method.is_idempotent()
        || Endpoint::at(path).is_some_and(Endpoint::is_idempotent)
        || headers.contains_key(&IDEMPOTENCY_KEY)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::testing::{Script, Seat};

    #[test]
    fn a_computation_is_idempotent() {
        for path in [
            "/v1/embeddings",
            "/v2/rerank",
            "/score",
            "/v1/classify",
            "/encode",
            "/tokenize",
            "/v1/detokenize",
            "/v1/moderations",
            "/v1/messages/count_tokens",
        ] {
            assert!(is_idempotent(&Method::POST, path, &HeaderMap::new()), "{path}");
        }
    }

    #[test]
    fn a_generation_is_not_idempotent_unless_its_client_says_so() {
        let mut headers = HeaderMap::new();
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/v1/messages",
            "/generate",
            "/v1/images/generations",
            "/v1/audio/speech",
        ] {
            assert!(!is_idempotent(&Method::POST, path, &headers));
        }
        assert!(is_idempotent(&Method::GET, "/v1/responses/r", &headers));
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static("7"));
        assert!(is_idempotent(&Method::POST, "/v1/chat/completions", &headers));
    }

    #[test]
    fn what_may_have_begun_is_retried_only_if_it_is_idempotent() {
        use Failure::*;
        for failure in [
            NoConnection,
            Unsent,
            Declined(PushBack::default()),
            Unavailable,
            NoModel,
        ] {
            assert!(
                !failure.may_have_begun() && failure.allows_retry(|| false),
                "{failure:?}"
            );
        }
        for failure in [Lost, ErrorInBody] {
            assert!(
                failure.allows_retry(|| true) && !failure.allows_retry(|| false),
                "{failure:?}"
            );
        }
        for failure in [TimedOut, DeadlinePassed, Unaddressable] {
            assert!(!failure.allows_retry(|| true), "{failure:?}");
        }
    }

    #[test]
    fn only_a_refusal_a_404_or_an_error_in_a_200_is_not_relayed_at_once() {
        let declined = Verdict::Declined(PushBack::default());
        for (status, verdict, failure) in [
            (429, declined, Some(Failure::Declined(PushBack::default()))),
            (503, declined, Some(Failure::Declined(PushBack::default()))),
            (200, declined, Some(Failure::Declined(PushBack::default()))),
            (503, Verdict::Failed, Some(Failure::Unavailable)),
            (200, Verdict::Failed, Some(Failure::ErrorInBody)),
            (404, Verdict::ClientError, Some(Failure::NoModel)),
            (500, Verdict::Failed, None),
            (200, Verdict::Ok, None),
            (200, Verdict::ClientError, None),
            (400, Verdict::ClientError, None),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                Failure::of_answer(status, verdict),
                failure,
                "{status} {verdict:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_retry_needs_an_allowance_of_the_request_another_worker_and_the_budget() {
        // Retries allowed per request, the floor of the budget, whether another worker is left; then how often the
        // request may be retried, and how many retries the budget refused.
        for (retries, floor, has_other, allowed, refused) in [
            (2, 1.0, true, 2, 0.0),
            (0, 1.0, true, 0, 0.0),
            (9, 0.3, true, 3, 6.0),
            (9, 0.0, true, 0, 9.0),
            (9, 0.0, false, 0, 0.0),
            (2, 1.0, false, 0, 0.0),
        ] {
            let seat = Seat::with(|config| {
                config.limits.retries = retries;
                config.failure.retry_share = 0.0;
                config.failure.retry_floor_per_s = floor;
            });
            let (parts, ()) = http::Request::post("/v1/chat/completions")
                .body(())
                .unwrap()
                .into_parts();
            let mut state = RetryState::new(&seat.proxy.state.routing);
            let mut may = || {
                state.may_retry(&seat.proxy.state.routing, Failure::Unavailable, &parts, || {
                    has_other
                })
            };
            let granted = (0..9).filter(|_| may()).count();
            let case = format!("{retries} {floor} {has_other}");
            assert_eq!(granted, allowed, "{case}");
            assert_eq!(
                seat.metric("tailroute_retries_refused_total", &[]),
                refused,
                "{case}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_earn_retries_and_hedges_spend_them() {
        let seat = Seat::with(|config| {
            config.failure.retry_share = 0.5;
            config.failure.retry_floor_per_s = 0.0;
        });
        let state = RetryState::new(&seat.proxy.state.routing);
        assert!(
            !state.may_hedge(&seat.proxy.state.routing),
            "one request earns half of one"
        );
        assert_eq!(seat.metric("tailroute_hedges_total", &["what=refused"]), 1.0);
        let state = RetryState::new(&seat.proxy.state.routing);
        assert!(state.may_hedge(&seat.proxy.state.routing));
        assert!(!state.may_hedge(&seat.proxy.state.routing));
    }

    #[test]
    fn a_failure_may_have_begun_and_counts_against_the_worker_as_the_table_says() {
        use Failure::*;
        for (failure, may_have_begun, is_the_workers, is_refusal) in [
            (NoConnection, false, false, false),
            (Unsent, false, false, false),
            (Declined(PushBack::default()), false, false, true),
            (Unavailable, false, true, true),
            (NoModel, false, false, false),
            (ErrorInBody, true, true, false),
            (Lost, true, true, false),
            (TimedOut, true, true, false),
            (DeadlinePassed, true, false, false),
            (Unaddressable, false, false, false),
        ] {
            let is = (
                failure.may_have_begun(),
                failure.is_the_workers(),
                failure.is_refusal(),
            );
            assert_eq!(is, (may_have_begun, is_the_workers, is_refusal), "{failure:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_of_the_client_says_how_far_the_request_came() {
        #[rustfmt::skip]
        let cases = [
            ("refused", Script::refused(), Failure::NoConnection, false),
            ("timed out", Script::unreachable(5), Failure::NoConnection, true),
            ("closed while the request is written", Script::hung_up(), Failure::Lost, false),
            ("closed after the request", Script::silent().cut(), Failure::Lost, false),
            ("no response", Script::silent().text("SSH-2.0\r\n"), Failure::Lost, false),
        ];
        for (case, script, failure, is_slow) in cases {
            let seat = Seat::new();
            seat.script("a", [script]);
            let request = http::Request::post("http://10.0.0.1:8000/")
                .body(bytes::Bytes::new())
                .unwrap();
            let error = seat
                .proxy
                .state
                .transport
                .client
                .reply(request)
                .await
                .unwrap_err();
            assert_eq!(Failure::of(&error), failure, "{case}");
            assert_eq!(is_slow_to_connect(&error), is_slow, "{case}");
        }
        let unsent = upstream::Error::Unsent(std::io::ErrorKind::BrokenPipe.into());
        assert_eq!(
            (Failure::of(&unsent), is_slow_to_connect(&unsent)),
            (Failure::Unsent, false)
        );
        let connect = |kind: std::io::ErrorKind| upstream::Error::Connect(kind.into());
        assert!(is_slow_to_connect(&connect(std::io::ErrorKind::TimedOut)));
        assert!(!is_slow_to_connect(&connect(
            std::io::ErrorKind::ConnectionRefused
        )));
    }
}
