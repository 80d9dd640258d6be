//! Records of requests without values that differ between runs: ports, dates, trace ids, times of day.

use std::collections::BTreeMap;

use http::HeaderMap;
use serde_json::{Map, Value, json};

use crate::engine::Came;
use crate::stories::Ask;

/// Longest text recorded in full; a longer one is recorded as its beginning and a digest.
const LONGEST: usize = 160;
/// Header fields left out, because they differ between runs or do not come from the router.
const PASSING: [&str; 6] = [
    "server-timing",
    "date",
    "host",
    "traceparent",
    "content-length",
    "transfer-encoding",
];
/// Begins the name of a router's process in `Via`.
const PSEUDONYM: &str = "tailroute-";
/// Metrics left out: of the process, of the operator, and of real time.
const OWN: [&str; 6] = [
    "process_",
    "tailroute_admin_",
    "tailroute_build_",
    "tailroute_router_seconds",
    "tailroute_own_",
    "tailroute_uptime_",
];

/// Returns the FNV-1a hash.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Returns a text, shortened if too long. Numbers of twelve digits and more, which are times of day, are left out.
pub(crate) fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() > LONGEST {
        let begin: String = text.chars().take(LONGEST / 2).collect();
        return format!("{begin}… {} bytes, {}", bytes.len(), digest(bytes));
    }
    let mut shown = String::new();
    let mut rest = &*text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let length = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
        shown.push_str(before);
        shown.push_str(if length < 12 { &from[..length] } else { "#" });
        rest = &from[length..];
    }
    shown + rest
}

pub(crate) fn fields(headers: &HeaderMap) -> Vec<String> {
    let mut fields: Vec<String> = headers
        .iter()
        .filter(|(name, _)| !PASSING.contains(&name.as_str()))
        .map(|(name, value)| {
            format!(
                "{name}: {}",
                without_id(&String::from_utf8_lossy(value.as_bytes()))
            )
        })
        .collect();
    fields.sort();
    fields
}

/// Returns a header's value without the id of this router's process in `Via`.
fn without_id(value: &str) -> String {
    let Some((before, id)) = value.split_once(PSEUDONYM) else {
        return value.to_owned();
    };
    let after = id.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    format!("{before}{PSEUDONYM}ID{after}")
}

/// Records a message to a worker for this request, with the part of its body that differs from the client's.
pub(crate) fn sent(worker: usize, came: &Came, ask: &Ask) -> Value {
    let (theirs, own) = (&came.body[..], &ask.body[..]);
    let body = if theirs == own {
        json!("the client's")
    } else {
        let at = theirs.iter().zip(own).take_while(|(a, b)| a == b).count();
        let rest = theirs[at..].iter().rev().zip(own[at..].iter().rev());
        let after = rest.take_while(|(a, b)| a == b).count();
        json!({ "at": at, "instead_of_bytes": own.len() - at - after, "put": text(&theirs[at..theirs.len() - after]) })
    };
    json!({ "to": format!("gpu-{worker}"), "line": came.line, "headers": fields(&came.headers), "body": body })
}

/// Records another message to a worker.
pub(crate) fn told(worker: usize, came: &Came) -> Value {
    let mut body: Value = serde_json::from_slice(&came.body).unwrap_or_default();
    without(&mut body, &["epoch"]);
    json!({ "to": format!("gpu-{worker}"), "line": came.line, "body": body })
}

/// Returns a decision of the admin API without zero values.
pub(crate) fn decision(mut decision: Value) -> Value {
    without(&mut decision, &["arrived_unix_ms", "trace", "request"]);
    for part in ["/outcome", "/outcome/parts"] {
        if let Some(Value::Object(fields)) = decision.pointer_mut(part) {
            fields.retain(|_, value| !value.is_null() && value.as_f64() != Some(0.0));
        }
    }
    if let Some(terms) = decision["terms"].as_array_mut() {
        for terms in terms {
            // One line per worker, without zero values.
            let shown: Vec<String> = terms
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(name, value)| *name != "worker" && value.as_f64() != Some(0.0))
                .map(|(name, value)| format!("{name} {value}"))
                .collect();
            *terms = json!(format!(
                "{}: {}",
                terms["worker"].as_str().unwrap_or_default(),
                shown.join(", ")
            ));
        }
    }
    decision
}

/// Removes fields at any depth.
fn without(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !names.contains(&name.as_str()));
            fields.values_mut().for_each(|value| without(value, names));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| without(value, names)),
        _ => {}
    }
}

pub(crate) fn series(page: &str) -> BTreeMap<String, f64> {
    page.lines()
        .filter(|line| !line.starts_with('#') && !OWN.iter().any(|own| line.starts_with(own)))
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// Returns the changed series with their new values.
pub(crate) fn moved(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Vec<String> {
    after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(value))
        .map(|(name, value)| format!("{name} {}", rounded(*value)))
        .collect()
}

/// Rounds to nine digits, because sums of floating-point numbers depend on their order in the last ones.
fn rounded(value: f64) -> f64 {
    if value.abs() < 1e-12 {
        return 0.0;
    }
    format!("{value:.8e}").parse().unwrap_or(value)
}

/// Returns a row without empty values.
pub(crate) fn row(of: Vec<(&str, Value)>) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        _ => false,
    };
    let fields: Map<String, Value> = of
        .into_iter()
        .filter(|(_, value)| !is_empty(value))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    Value::Object(fields)
}
