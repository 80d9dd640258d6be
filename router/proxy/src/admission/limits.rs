//! Rate limits of a key: requests per second, tokens per minute.
//!
//! Tokens are charged by estimate when the request arrives, and corrected at the end by the engine's count, or else by
//! what passed. A key can be overdrawn by the error of its estimates and the length of its responses. Unsent requests
//! and failed attempts are refunded; a sent request whose client leaves is not. Counts of an engine are accepted
//! [within limits](protocol::claim), and the bucket bounds the debt from them.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use policy::admission::Bucket;
use policy::units::{Millis, Tokens};

use fleet::clock::{self, Clock};
use protocol::error::ApiError;

/// Usage of a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    /// Charges that are not settled yet.
    open: usize,
}

impl Used {
    pub(super) fn unsettled(&self) -> usize {
        self.open
    }

    pub(super) fn tokens_left(&self, now: Millis) -> Option<f64> {
        self.tokens.map(|bucket| bucket.remaining(now))
    }

    pub(super) fn left(&self, now: Millis) -> [Option<Left>; 2] {
        [self.requests, self.tokens].map(|bucket| {
            bucket.map(|bucket| Left {
                left: bucket.balance(now),
                burst: bucket.burst(),
                full_in: bucket.until_full(now),
            })
        })
    }

    pub(super) fn reset(&mut self, now: Millis) {
        for bucket in [&mut self.requests, &mut self.tokens].into_iter().flatten() {
            bucket.fill(now);
        }
    }

    /// Charges a request. Fails with [`ApiError::RateLimited`] if the requests are used up.
    pub(super) fn count_request(&mut self, now: Millis) -> Result<(), ApiError> {
        match &mut self.requests {
            Some(bucket) => bucket.take(now, 1.0).map_err(|after| refusal("requests", after)),
            None => Ok(()),
        }
    }

    /// Adds the remaining limits, in the headers of OpenAI's API. Replaces the engine's, which concern the router.
    pub(super) fn mark(&self, headers: &mut HeaderMap, now: Millis) {
        for (bucket, [limit, remaining, reset]) in [(self.requests, REQUESTS), (self.tokens, TOKENS)] {
            let Some(bucket) = bucket else { continue };
            headers.insert(limit, HeaderValue::from(bucket.burst() as u64));
            headers.insert(remaining, HeaderValue::from(bucket.remaining(now) as u64));
            if let Ok(value) = HeaderValue::from_str(&go_duration(bucket.until_full(now))) {
                headers.insert(reset, value);
            }
        }
    }

    /// Applies the limits of `spec` and keeps the usage.
    pub(super) fn reshape(&mut self, spec: &config::Key, now: Millis) {
        let bucket = |rate: Option<config::Rate>, before: Option<Bucket>| {
            rate.map(|rate| match before {
                Some(bucket) => bucket.reshaped(rate.per_s, rate.burst, now),
                None => Bucket::new(rate.per_s, rate.burst, now),
            })
        };
        self.requests = bucket(spec.requests, self.requests);
        self.tokens = bucket(spec.tokens, self.tokens);
    }
}

/// Remainder of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// Remaining units; below zero if overdrawn.
    pub left: f64,
    /// Largest remainder.
    pub burst: f64,
    /// Time until the limit is fully available.
    pub full_in: Millis,
}

/// Tokens charged to a key by estimate. Dropping the charge refunds them, unless the request was sent.
#[derive(Debug, Default)]
pub struct Charge(Option<OpenCharge>);

#[derive(Debug)]
struct OpenCharge {
    used: Arc<Mutex<Used>>,
    clock: Clock,
    estimated: Tokens,
    sent: bool,
}

impl Charge {
    /// Charges an estimate to a key's usage. Fails with [`ApiError::RateLimited`] if the key's tokens are used up.
    pub(super) fn new(used: &Arc<Mutex<Used>>, clock: Clock, estimated: Tokens) -> Result<Self, ApiError> {
        let mut key = used.lock();
        if let Some(bucket) = &mut key.tokens {
            bucket
                .take(clock.now(), estimated.as_f64())
                .map_err(|after| refusal("tokens", after))?;
        }
        key.open += 1;
        Ok(Self(Some(OpenCharge {
            used: Arc::clone(used),
            clock,
            estimated,
            sent: false,
        })))
    }

    /// Records that the request was sent to a worker. If the charge is then dropped unsettled, its estimate stands.
    pub fn sent(&mut self) {
        if let Some(open) = &mut self.0 {
            open.sent = true;
        }
    }

    /// Settles the charge with the actual tokens.
    pub fn correct(&mut self, actual: Tokens) {
        self.settle(Some(actual));
    }

    fn settle(&mut self, actual: Option<Tokens>) {
        let Some(open) = self.0.take() else { return };
        let mut used = open.used.lock();
        used.open = used.open.saturating_sub(1);
        if let (Some(bucket), Some(actual)) = (&mut used.tokens, actual) {
            bucket.correct(open.clock.now(), actual.as_f64() - open.estimated.as_f64());
        }
    }

    /// Settles the charge with the estimate plus `answered` response tokens, if the engine reports no count.
    pub fn add(&mut self, answered: Tokens) {
        let estimated = self.0.as_ref().map_or(Tokens::ZERO, |open| open.estimated);
        self.correct(estimated + answered);
    }

    /// Refunds the charge.
    pub fn give_back(&mut self) {
        self.correct(Tokens::ZERO);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let sent = self.0.as_ref().is_some_and(|open| open.sent);
        self.settle((!sent).then_some(Tokens::ZERO));
    }
}

const REQUESTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

fn refusal(what: &'static str, after: Millis) -> ApiError {
    ApiError::RateLimited {
        what,
        after: clock::duration(after).max(Duration::from_millis(1)),
    }
}

/// Formats a time as OpenAI does in these headers, which is Go's format: `20ms`, `1.5s`, `6m0s`.
fn go_duration(time: Millis) -> String {
    let ms = time.0.max(0.0).ceil();
    if ms < 1_000.0 {
        return format!("{ms}ms");
    }
    let seconds = ms / 1e3;
    if seconds < 60.0 {
        return format!("{seconds}s");
    }
    format!("{}m{}s", (seconds / 60.0).floor(), (seconds % 60.0).floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_writes_them() {
        for (ms, text) in [
            (0.0, "0ms"),
            (20.2, "21ms"),
            (1_500.0, "1.5s"),
            (360_000.0, "6m0s"),
        ] {
            assert_eq!(go_duration(Millis(ms)), text);
        }
    }
}
