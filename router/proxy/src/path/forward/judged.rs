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
use crate::Proxy;
use fleet::InFlight;
use protocol::verdict::Verdict;

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
    pub(in crate::path) fn account(&self, proxy: &Proxy, in_flight: &mut InFlight, charged: &Charged) {
        report(proxy, self.verdict, in_flight, charged);
    }
}

/// Reports a refusal or failure to the breaker, unless the request is charged to a worker already.
pub fn report(proxy: &Proxy, verdict: Verdict, in_flight: &mut InFlight, charged: &Charged) {
    match verdict {
        Verdict::Declined(push_back) => in_flight.declined(push_back.after),
        Verdict::Failed | Verdict::Broken if !charged.swap(true, Ordering::Relaxed) => {
            proxy.state.failed(in_flight, None);
        }
        _ => {}
    }
}
