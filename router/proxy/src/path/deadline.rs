//! Time limits of a request: the operator's, and the client's.
//!
//! `docs/failure.md` lists the headers. The client libraries (`x-stainless-…`) stop their timer at the response head
//! (Node) or restart it with every piece (Python), so their timeouts must not cut a stream. Zero and invalid values are
//! ignored. Time counts from the request head, so it includes the body, the queue and failed attempts.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use tokio::time::Instant;

use protocol::error::ApiError;
use protocol::headers::first_of;

const REQUEST_TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const ENVOY_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
const CLIENT_TIMEOUT: HeaderName = HeaderName::from_static("x-stainless-timeout");
const CLIENT_READ_TIMEOUT: HeaderName = HeaderName::from_static("x-stainless-read-timeout");

/// Longest time limit. Longer ones are ignored.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Deadlines of a request.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    began: Instant,
    head: Option<Instant>,
    whole: Option<Instant>,
}

impl Deadline {
    /// Reads the deadlines of a request whose head has just arrived.
    pub fn of(headers: &HeaderMap, failure: &config::Failure, began: Instant) -> Self {
        let names = [
            &CLIENT_TIMEOUT,
            &CLIENT_READ_TIMEOUT,
            &REQUEST_TIMEOUT,
            &ENVOY_TIMEOUT,
            &GRPC_TIMEOUT,
        ];
        let values = first_of(headers, names).map(|value| value?.to_str().ok());
        let [client, client_read, request, envoy, by_grpc] = values;
        let millis = |text: Option<&str>| text?.parse().ok().map(Duration::from_millis);
        let seconds = |text: Option<&str>| Duration::try_from_secs_f64(text?.parse().ok()?).ok();
        let at = |limits: &[Option<Duration>]| {
            let sensible = |limit: &&Duration| !limit.is_zero() && **limit <= LONGEST;
            let least = limits.iter().flatten().filter(sensible).min();
            least.and_then(|limit| began.checked_add(*limit))
        };
        Self {
            began,
            head: at(&[seconds(client), seconds(client_read)]),
            whole: at(&[
                failure.total_timeout,
                millis(request),
                millis(envoy),
                by_grpc.and_then(grpc),
            ]),
        }
    }

    /// Returns the deadline of the response head.
    pub fn head(&self) -> Option<Instant> {
        earlier(self.head, self.whole)
    }

    /// Returns the deadline of the whole response.
    pub fn whole(&self) -> Option<Instant> {
        self.whole
    }

    /// Returns the error for a passed deadline.
    pub fn exceeded(&self) -> ApiError {
        ApiError::DeadlineExceeded(self.began.elapsed())
    }

    /// Completes when the deadline of the head passes; never if there is none.
    pub async fn head_passed(self) {
        match self.head() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// Parses `grpc-timeout`: up to eight digits and a unit.
fn grpc(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::{HeaderName, HeaderValue};

    use super::*;

    /// Limits of head and whole response, in milliseconds.
    fn limits(total_s: Option<u64>, headers: &[(&'static str, &'static str)]) -> [Option<u128>; 2] {
        let overrides = config::Overrides {
            workers: vec!["http://127.0.0.1:1".to_owned()],
            ..config::Overrides::default()
        };
        let config = config::load_file(None, BTreeMap::new(), overrides).unwrap();
        let failure = config::Failure {
            total_timeout: total_s.map(Duration::from_secs),
            ..config.failure
        };
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let began = Instant::now();
        let deadline = Deadline::of(&headers, &failure, began);
        [deadline.head(), deadline.whole()].map(|at| at.map(|at| (at - began).as_millis()))
    }

    #[test]
    fn without_a_limit_there_is_none() {
        assert_eq!(limits(None, &[]), [None, None]);
    }

    #[test]
    fn the_shortest_counts() {
        let headers = [("x-request-timeout-ms", "1500"), ("grpc-timeout", "2S")];
        assert_eq!(limits(Some(60), &headers), [Some(1500), Some(1500)]);
        assert_eq!(limits(Some(1), &headers), [Some(1000), Some(1000)]);
    }

    #[test]
    fn what_client_libraries_say_does_not_cut_a_stream() {
        assert_eq!(
            limits(None, &[("x-stainless-timeout", "600")]),
            [Some(600_000), None]
        );
        assert_eq!(
            limits(Some(30), &[("x-stainless-read-timeout", "2.5")]),
            [Some(2_500), Some(30_000)]
        );
    }

    #[test]
    fn nonsense_and_zero_say_nothing() {
        for value in [
            "",
            "0",
            "-1",
            "ten",
            "99999999999999999999999",
            "9223372036854775807",
            "1e400",
        ] {
            assert_eq!(limits(None, &[("x-request-timeout-ms", value)]), [None, None]);
            assert_eq!(limits(None, &[("x-stainless-timeout", value)]), [None, None]);
        }
        assert_eq!(limits(None, &[("grpc-timeout", "0S")]), [None, None]);
        for value in ["", "S", "10", "10s", "123456789S", "+1S", "10é"] {
            assert!(grpc(value).is_none(), "{value}");
        }
    }

    #[test]
    fn every_unit_of_grpc_is_read() {
        for (value, nanos) in [
            ("1H", 3_600_000_000_000),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
            ("4m", 4_000_000),
            ("5u", 5_000),
            ("6n", 6),
        ] {
            assert_eq!(grpc(value).unwrap().as_nanos(), nanos);
        }
    }
}
