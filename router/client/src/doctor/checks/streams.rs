//! Streams reach clients piece by piece: no proxy in front of the router buffers them.

use super::super::facts::Facts;
use super::super::facts::Stream;
use super::super::stream_probe::StreamError;
use super::super::verdict::CheckVerdict;

/// Pieces that a judgement needs.
const PIECES: usize = 8;
/// Spread of the pieces, as a share of the whole time, below which they arrived at once.
const AT_ONCE: f64 = 0.1;
const MEASURABLE_MS: f64 = 100.0;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    match &facts.stream {
        None => CheckVerdict::unknown(
            "not examined",
            "give the base URL of your clients: --url http://…",
        ),
        Some(Err(StreamError::Unserved(_))) => {
            CheckVerdict::unknown("no stream was asked for", "see clients")
        }
        Some(Err(error)) => CheckVerdict::unknown(
            format!("no stream: {error}"),
            "401: give --key-file; otherwise check that --url is the base URL of your clients",
        ),
        Some(Ok(stream)) => judge(stream),
    }
}

fn judge(stream: &Stream) -> CheckVerdict {
    let Stream {
        pieces,
        moments,
        spread_ms,
        took_ms,
        ..
    } = stream;
    let found = format!("{pieces} pieces arrived within {spread_ms:.0} ms of a response of {took_ms:.0} ms");
    let is_together = *moments <= (pieces / 8).max(2);
    if *pieces >= PIECES && *took_ms >= MEASURABLE_MS && is_together && *spread_ms < AT_ONCE * took_ms {
        let by = stream
            .named
            .as_ref()
            .map(|named| format!(" (the response names {named})"));
        return CheckVerdict::problem(
            format!("{found}: a proxy buffers them{}", by.unwrap_or_default()),
            "switch its buffering off for these paths (nginx: proxy_buffering off), and compression of event streams",
        );
    }
    match *pieces >= PIECES && *moments >= pieces / 4 {
        true => CheckVerdict::ok(format!("{found}, at {moments} moments")),
        false => CheckVerdict::unknown(
            found,
            "run doctor again with a model that answers at greater length",
        ),
    }
}
