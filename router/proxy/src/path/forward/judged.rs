//! Judges the response to a request that is relayed unparsed.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::super::retry::Charged;
use super::attempt::REASON;
use fleet::InFlight;
use protocol::verdict::Verdict;
use state::State;

/// A response and the verdict on it.
pub(in crate::path) struct Judged {
    pub(super) response: Response<Incoming>,
    /// The first piece of the body, if the verdict needed it.
    pub(super) first: Option<Frame<Bytes>>,
    pub(super) verdict: Verdict,
}

impl Judged {
    /// Judges a response. Reads the first piece of a 503's body.
    pub(in crate::path) async fn of(mut response: Response<Incoming>) -> Self {
        let status = response.status();
        let mut first = None;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            let piece = timeout(REASON, response.body_mut().frame()).await;
            first = piece.ok().flatten().and_then(Result::ok);
        }
        let body = first.as_ref().and_then(Frame::data_ref);
        let verdict = Verdict::of(
            status,
            response.headers(),
            body.map_or(&b""[..], |data| &data[..]),
        );
        Self {
            response,
            first,
            verdict,
        }
    }

    /// Reports a refusal or failure to the breaker, unless the request is charged to a worker already.
    pub(in crate::path) fn account(&self, state: &State, in_flight: &mut InFlight, charged: &Charged) {
        report(state, self.verdict, in_flight, charged);
    }
}

/// Reports a refusal or failure to the breaker, unless the request is charged to a worker already.
pub fn report(state: &State, verdict: Verdict, in_flight: &mut InFlight, charged: &Charged) {
    match verdict {
        Verdict::Declined(push_back) => in_flight.declined(push_back.after),
        Verdict::Failed | Verdict::Broken if !charged.swap(true, Ordering::Relaxed) => {
            state.failed(in_flight, None);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fleet::breaker::BreakerState;
    use http::Request;
    use http_body_util::BodyExt as _;
    use protocol::verdict::PushBack;
    use tokio::time::Instant;

    use super::*;
    use crate::testing::{Script, Seat, within};

    const BUSY: &str = r#"{"error":{"message":"The request queue is full","code":503}}"#;

    #[tokio::test(start_paused = true)]
    async fn only_the_body_of_a_503_is_read_for_the_verdict_and_none_of_it_is_lost() {
        let declined = Verdict::Declined(PushBack::default());
        let empty = |status| Script::whole(status, &[], "");
        #[rustfmt::skip]
        let cases = [
            ("200", Script::json(200, BUSY), Verdict::Ok, BUSY, 0),
            ("404", empty(404), Verdict::ClientError, "", 0),
            ("429", Script::json(429, "{}"), declined, "{}", 0),
            ("500", empty(500), Verdict::Failed, "", 0),
            ("503 that declines", Script::json(503, BUSY), declined, BUSY, 0),
            ("503 without a reason", empty(503), Verdict::Failed, "", 0),
            ("503 with a late reason", Script::head(503, &["content-type: application/json"]).wait(900).chunk(BUSY).end(), declined, BUSY, 900),
            ("503 with a reason too late", Script::head(503, &["content-type: application/json"]).wait(1100).chunk(BUSY).end(), Verdict::Failed, BUSY, 1000),
            ("503 that breaks off", Script::head(503, &[]).cut(), Verdict::Failed, "", 0),
        ];
        for (case, script, verdict, body, took_ms) in cases {
            let seat = Seat::new();
            seat.script("a", [script]);
            let request = Request::get("http://10.0.0.1:8000/x")
                .body(tailroute_http::body::full(""))
                .unwrap();
            let response = seat.proxy.state.transport.client.send(request).await.unwrap();
            let began = Instant::now();
            let judged = within(Judged::of(response)).await;
            assert_eq!(judged.verdict, verdict, "{case}");
            judged.account(&seat.proxy.state, &mut seat.occupy("a"), &Charged::default());
            let failures = seat.metric("tailroute_worker_failures_total", &[]);
            assert_eq!(failures > 0.0, verdict == Verdict::Failed, "{case}");
            assert_eq!(began.elapsed().as_millis(), took_ms, "{case}");
            let mut read = judged
                .first
                .and_then(|first| first.into_data().ok())
                .unwrap_or_default()
                .to_vec();
            if let Ok(rest) = judged.response.into_body().collect().await {
                read.extend_from_slice(&rest.to_bytes());
            }
            assert_eq!(String::from_utf8_lossy(&read), body, "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_pauses_the_worker_and_a_failure_counts_once_per_request() {
        let declined = Verdict::Declined(PushBack::default());
        // Whether the request was charged to a worker before; then failures, whether the worker pauses, whether the
        // request counts as charged.
        for (verdict, was_charged, failures, pauses, is_charged) in [
            (Verdict::Ok, false, 0.0, false, false),
            (Verdict::ClientError, false, 0.0, false, false),
            (declined, false, 0.0, true, false),
            (declined, true, 0.0, true, true),
            (Verdict::Failed, false, 1.0, false, true),
            (Verdict::Failed, true, 0.0, false, true),
            (Verdict::Broken, false, 1.0, false, true),
            (Verdict::Broken, true, 0.0, false, true),
        ] {
            let seat = Seat::new();
            let charged: Charged = Arc::default();
            charged.store(was_charged, Ordering::Relaxed);
            report(&seat.proxy.state, verdict, &mut seat.occupy("a"), &charged);
            let case = format!("{verdict:?} {was_charged}");
            assert_eq!(
                seat.metric("tailroute_worker_failures_total", &[]),
                failures,
                "{case}"
            );
            assert_eq!(charged.load(Ordering::Relaxed), is_charged, "{case}");
            let condition = seat.worker("a").condition(seat.proxy.state.routing.clock.now());
            assert_eq!(condition.is_avoided, pauses, "{case}");
            assert_eq!(condition.breaker, BreakerState::Closed, "{case}");
        }
    }
}
