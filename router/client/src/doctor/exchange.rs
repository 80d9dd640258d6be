//! One request, bounded in time, and the server's clock.

use std::time::{Duration, UNIX_EPOCH};

use reqwest::header::DATE;
use reqwest::{Response, Url};

use super::facts::Offset;
use crate::unix_ms;

/// Timeout of a request that an idle program answers at once.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const PROMPT_PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn get(
    http: &reqwest::Client,
    url: Url,
    key: Option<&str>,
) -> Result<(Response, Option<Offset>), String> {
    let mut request = http.get(url).timeout(PATIENCE);
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    let sent = unix_ms();
    let response = request.send().await.map_err(|error| explain(&error))?;
    let offset = offset(&response, sent, unix_ms());
    Ok((response, offset))
}

/// Compares a response's `Date` with the middle of its exchange. The header is cut to seconds.
fn offset(response: &Response, sent: f64, received: f64) -> Option<Offset> {
    let date = httpdate::parse_http_date(response.headers().get(DATE)?.to_str().ok()?).ok()?;
    let date = date.duration_since(UNIX_EPOCH).ok()?.as_secs_f64() * 1e3;
    Some(Offset {
        ms: date + 500.0 - (sent + received) / 2.0,
        error_ms: 500.0 + (received - sent) / 2.0,
    })
}

/// Formats an error without the URL, by its innermost cause.
pub(super) fn explain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_compared_with_the_middle_of_the_exchange() {
        let response = |date: &str| -> Response {
            http::Response::builder()
                .header(DATE, date)
                .body("")
                .unwrap()
                .into()
        };
        let found = offset(&response("Thu, 01 Jan 1970 00:00:10 GMT"), 6_000.0, 7_000.0).unwrap();
        assert_eq!(
            found,
            Offset {
                ms: 4_000.0,
                error_ms: 1_000.0
            }
        );
        assert_eq!(offset(&response("yesterday"), 0.0, 0.0), None);
    }
}
