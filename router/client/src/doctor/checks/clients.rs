//! The clients' URL serves inference.

use super::super::facts::Facts;
use super::super::stream_probe::StreamError;
use super::super::verdict::Verdict;

pub(in super::super) fn check(facts: &Facts) -> Verdict {
    let status = match &facts.stream {
        None => {
            return Verdict::unknown(
                "not examined",
                "give the base URL of your clients: --url http://…",
            );
        }
        Some(Err(StreamError::Unserved(status))) => *status,
        Some(_) => return Verdict::ok("their URL lists models"),
    };
    let found = format!("GET /v1/models is answered {status} through the URL of the clients");
    match status.as_u16() {
        401 | 403 => Verdict::unknown(found, "give --key-file"),
        503 => Verdict::problem(
            found,
            "no worker is ready, or the router refuses load: see workers and objective",
        ),
        _ => Verdict::problem(
            found,
            "check that --url is the base URL of your clients, without /v1",
        ),
    }
}
