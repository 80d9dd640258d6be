//! One request, bounded in time and size, and the server's clock.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::DATE;
use reqwest::Url;

use super::facts::Offset;
use crate::bounded::{FetchError, Fetched, Limits, fetch};
use crate::unix_ms;

/// Bounds of a request that an idle server answers at once.
const ASKED: Limits = Limits {
    time: Duration::from_secs(5),
    bytes: 2 << 20,
};
/// Bounds of a prompt's answer.
pub(super) const PROMPTED: Limits = Limits {
    time: Duration::from_secs(30),
    bytes: 1 << 20,
};

pub(super) async fn get(
    http: &reqwest::Client,
    url: Url,
    key: Option<&str>,
) -> Result<(Fetched, Option<Offset>), FetchError> {
    let mut request = http.get(url);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let sent = unix_ms();
    let fetched = fetch(request, ASKED).await?;
    let headed = sent + fetched.head_after.as_secs_f64() * 1e3;
    let offset = offset(&fetched.headers, sent, headed);
    Ok((fetched, offset))
}

/// Compares a response's `Date` with the middle of its exchange. The header is cut to seconds.
fn offset(headers: &HeaderMap, sent: f64, received: f64) -> Option<Offset> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    let date = date.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() * 1e3;
    Some(Offset {
        ms: date + 500.0 - (sent + received) / 2.0,
        error_ms: 500.0 + (received - sent) / 2.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_compared_with_the_middle_of_the_exchange() {
        let headers = |date: &str| HeaderMap::from_iter([(DATE, date.parse().unwrap())]);
        let found = offset(&headers("Thu, 01 Jan 1970 00:00:10 GMT"), 6_000.0, 7_000.0).unwrap();
        assert_eq!(
            found,
            Offset {
                ms: 4_000.0,
                error_ms: 1_000.0
            }
        );
        assert_eq!(offset(&headers("yesterday"), 0.0, 0.0), None);
    }
}
