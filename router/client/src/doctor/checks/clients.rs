//! The clients' URL serves inference.

use super::super::facts::Facts;
use super::super::stream_probe::StreamError;
use super::super::verdict::CheckVerdict;

pub(in super::super) fn check(facts: &Facts) -> CheckVerdict {
    let status = match &facts.stream {
        None => {
            return CheckVerdict::unknown(
                "not examined",
                "give the base URL of your clients: --url http://…",
            );
        }
        Some(Err(StreamError::Unserved(status))) => *status,
        Some(_) => return CheckVerdict::ok("their URL lists models"),
    };
    let found = format!("GET /v1/models is answered {status} through the URL of the clients");
    match status.as_u16() {
        401 | 403 => CheckVerdict::unknown(found, "give --key-file"),
        503 => CheckVerdict::problem(
            found,
            "no worker is ready, or the router refuses load: see workers and objective",
        ),
        _ => CheckVerdict::problem(
            found,
            "check that --url is the base URL of your clients, without /v1",
        ),
    }
}
