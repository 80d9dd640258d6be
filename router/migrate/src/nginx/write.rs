//! Writes the keys of directives whose values need more than a conversion.

use crate::draft::ConfigDraft;
use crate::family::log_level;
use crate::given::ParsedOption;
use crate::workers;

use super::units::{bytes, seconds};

/// Notes a directive that the walk itself handles, in a block where it has no meaning.
pub(super) fn ignored(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.note(given.shown(), "has no meaning in this block");
    Ok(())
}

pub(super) fn least_conn(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.set("routing.policy", "least_loaded", given.shown());
    Ok(())
}

pub(super) fn least_time(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.set("routing.policy", "least_ttft", given.shown());
    Ok(())
}

pub(super) fn sticky(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.set("routing.policy", "consistent_hash", given.shown());
    let why = "becomes consistent_hash, which hashes the conversation (X-Session-ID, or the one that the prompt continues)";
    draft.note(given.shown(), why);
    Ok(())
}

pub(super) fn random(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let policy = if given.first() == "two" {
        "power_of_two"
    } else {
        "random"
    };
    draft.set("routing.policy", policy, given.shown());
    Ok(())
}

pub(super) fn queue(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let size: i64 = given
        .first()
        .parse()
        .map_err(|_| "expected a number of requests")?;
    draft.set("admission.max_queue", size.max(1), given.shown());
    for parameter in given.values.iter().skip(1) {
        let timeout = parameter.strip_prefix("timeout=").and_then(seconds);
        let timeout = timeout.ok_or_else(|| format!("expected timeout=TIME, found {parameter:?}"))?;
        draft.set_number("admission.queue_timeout_s", timeout, given.shown());
    }
    Ok(())
}

pub(super) fn body_size(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let size = bytes(given.one()?).ok_or("expected a size such as 10m")?;
    if size == 0.0 {
        draft.note(
            given.shown(),
            "bodies are always limited: set limits.max_body_bytes",
        );
    } else {
        draft.set_number("limits.max_body_bytes", size, given.shown());
    }
    Ok(())
}

pub(super) fn header_size(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let number: f64 = given
        .first()
        .parse()
        .map_err(|_| "expected a number of buffers")?;
    let size = bytes(given.one()?).ok_or("expected a size such as 16k")?;
    draft.set_number("limits.max_header_bytes", number * size, given.shown());
    Ok(())
}

pub(super) fn time(draft: &mut ConfigDraft, given: &ParsedOption, key: &str) -> Result<(), String> {
    let seconds = seconds(given.first()).ok_or("expected a time such as 60s")?;
    draft.set_number(key, seconds, given.shown());
    Ok(())
}

/// Sets both timeouts: nginx's time between two reads bounds the time to the first byte too.
pub(super) fn read_timeout(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    time(draft, given, "limits.first_byte_timeout_s")?;
    time(draft, given, "limits.idle_timeout_s")
}

pub(super) fn trusted_proxy(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    let network = given.one()?.to_owned();
    let earlier = draft.entries.get("http.trusted_proxies").cloned();
    let from = earlier
        .as_ref()
        .map_or_else(String::new, |earlier| format!("{}, ", earlier.from));
    let networks = earlier.and_then(|earlier| earlier.value.as_array().cloned());
    let mut networks = networks.unwrap_or_default();
    networks.push(network.into());
    draft.set(
        "http.trusted_proxies",
        networks,
        format!("{from}{}", given.shown()),
    );
    Ok(())
}

pub(super) fn set_header(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    match given.first().to_ascii_lowercase().as_str() {
        "host" | "connection" | "upgrade" | "x-real-ip" | "x-forwarded-for" | "x-forwarded-proto"
        | "x-forwarded-host" | "x-request-id" => {
            draft.note_built_in(
                given.shown(),
                "headers between clients and workers are set as docs/http.md says",
            );
        }
        "authorization" if given.values.iter().any(|value| value.contains('$')) => {
            draft.note_built_in(given.shown(), "forwarded, unless a worker has an `api_key_file`");
        }
        "authorization" => workers::note_key_of_workers(draft, &given.shown()),
        _ => draft.note(
            given.shown(),
            "no other headers are added; let a proxy in front add them",
        ),
    }
    Ok(())
}

pub(super) fn next_upstream(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    if given.first() == "off" {
        draft.set("limits.retries", 0, given.shown());
    } else {
        let why = "a request is sent again only if its worker cannot have started on it (docs/failure.md)";
        draft.note_built_in(given.shown(), why);
    }
    Ok(())
}

pub(super) fn tries(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    match given.integer()? {
        ..=0 => draft.note(
            given.shown(),
            "the number of retries is limited: set limits.retries",
        ),
        tries => draft.set("limits.retries", tries - 1, given.shown()),
    }
    Ok(())
}

pub(super) fn error_log(draft: &mut ConfigDraft, given: &ParsedOption) -> Result<(), String> {
    draft.note_built_in(given.shown(), "the log goes to standard error");
    if given.values.len() > 1 {
        log_level(draft, given)?;
    }
    Ok(())
}
