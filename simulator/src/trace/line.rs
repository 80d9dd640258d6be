//! Parsing one line of JSON into a typed record. serde's own message gives a column, so a second, slow pass over a
//! refused line finds the name of the invalid field; lines that parse do not pay for it.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::TraceFault;
use super::{CAPTURE_VERSION, MAX_BLOCKS_PER_TURN, MAX_TOKENS_PER_FIELD, Meta};
use policy::fleet_record::FleetRecord;
use policy::units::Millis;

/// A turn line as written. [`parse`] implements `deny_unknown_fields`, as it knows whether extra fields are allowed.
#[derive(Debug, Deserialize)]
pub(super) struct TurnLine {
    pub(super) ts: f64,
    pub(super) conv: u64,
    pub(super) turn: u32,
    pub(super) prompt_tokens: u64,
    #[serde(default)]
    pub(super) history_tokens: u64,
    pub(super) response_tokens: u64,
    pub(super) blocks: Option<Vec<u64>>,
    pub(super) block_runs: Option<Vec<u64>>,
    pub(super) class: Option<String>,
    pub(super) objective_ms: Option<f64>,
    pub(super) ttft_ms: Option<f64>,
    pub(super) took_ms: Option<f64>,
    pub(super) cached_tokens: Option<u64>,
    #[serde(default)]
    pub(super) whole: bool,
}

pub(super) const TURN_FIELDS: &[FieldRule] = &[
    FieldRule("ts", Kind::Seconds, true),
    FieldRule("conv", Kind::Count, true),
    FieldRule("turn", Kind::Small, true),
    FieldRule("prompt_tokens", Kind::Count, true),
    FieldRule("history_tokens", Kind::Count, false),
    FieldRule("response_tokens", Kind::Count, true),
    FieldRule("blocks", Kind::Ids, false),
    FieldRule("block_runs", Kind::Ids, false),
    FieldRule("class", Kind::Text, false),
    FieldRule("objective_ms", Kind::Time, false),
    FieldRule("ttft_ms", Kind::Time, false),
    FieldRule("took_ms", Kind::Time, false),
    FieldRule("cached_tokens", Kind::OptionalCount, false),
    FieldRule("whole", Kind::Flag, false),
];

pub(super) struct FieldRule(pub(super) &'static str, pub(super) Kind, pub(super) bool);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Seconds,
    Time,
    Count,
    OptionalCount,
    Flag,
    Small,
    Signed,
    Ids,
    Text,
}

impl Kind {
    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Seconds => value.is_number(),
            Self::Time => value.is_null() || value.is_number(),
            Self::Count => value.is_u64(),
            Self::OptionalCount => value.is_null() || value.is_u64(),
            Self::Flag => value.is_boolean(),
            Self::Small => value.as_u64().is_some_and(|n| n <= u64::from(u32::MAX)),
            Self::Signed => value.is_i64(),
            Self::Ids => value.is_null() || value.as_array().is_some_and(|a| a.iter().all(Value::is_u64)),
            Self::Text => value.is_null() || value.is_string(),
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Seconds | Self::Time => "a number",
            Self::Count | Self::OptionalCount => "a whole number that is not negative",
            Self::Flag => "true or false",
            Self::Small => "a whole number from 0 to 4294967295",
            Self::Signed => "a whole number",
            Self::Ids => "a list of whole numbers that are not negative",
            Self::Text => "a string",
        }
    }
}

/// Parses the line as a `T`, or returns the invalid field. With `extras`, fields outside `rules` are skipped.
pub(super) fn parse<T: DeserializeOwned>(
    text: &str,
    rules: &[FieldRule],
    extras: bool,
) -> Result<T, TraceFault> {
    match serde_json::from_str::<T>(text) {
        Ok(record) if extras || only_known_keys(text, rules) => Ok(record),
        Ok(_) => Err(diagnose(text, rules, extras, "refused")),
        Err(error) => Err(diagnose(text, rules, extras, &error.to_string())),
    }
}

/// Returns whether every key of the object is in the rules: a scan that builds nothing.
fn only_known_keys(text: &str, rules: &[FieldRule]) -> bool {
    struct Keys<'r>(&'r [FieldRule]);
    impl<'de> serde::de::DeserializeSeed<'de> for Keys<'_> {
        type Value = bool;
        fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
            deserializer.deserialize_map(self)
        }
    }
    impl<'de> serde::de::Visitor<'de> for Keys<'_> {
        type Value = bool;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
            let mut known = true;
            while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                known &= self.0.iter().any(|rule| rule.0 == key);
                map.next_value::<serde::de::IgnoredAny>()?;
            }
            Ok(known)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde::de::DeserializeSeed::deserialize(Keys(rules), &mut deserializer).unwrap_or(false)
}

fn diagnose(text: &str, rules: &[FieldRule], extras: bool, otherwise: &str) -> TraceFault {
    let object = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return TraceFault::Syntax("a JSON value of another type".to_owned()),
        Err(error) => return TraceFault::Syntax(error.to_string()),
    };
    for FieldRule(name, kind, required) in rules {
        match object.get(*name) {
            Some(value) if !kind.accepts(value) || (*required && value.is_null()) => {
                let shown = shorten(&value.to_string());
                return TraceFault::field(*name, format!("expected {}, found {shown}", kind.wanted()));
            }
            None if *required => return TraceFault::field(*name, "missing"),
            _ => {}
        }
    }
    if !extras
        && let Some(name) = object
            .keys()
            .find(|name| !rules.iter().any(|rule| rule.0 == *name))
    {
        return TraceFault::field(shorten(name), "unknown");
    }
    // serde's wording; the map above kept the last of the two.
    let twice = otherwise
        .strip_prefix("duplicate field `")
        .and_then(|rest| rest.split_once('`'));
    match twice {
        Some((name, _)) => TraceFault::field(shorten(name), "given twice"),
        None => TraceFault::Syntax(otherwise.to_owned()),
    }
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 40 {
        text.to_owned()
    } else {
        text.chars().take(40).chain(['…']).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
struct MetaBody {
    bs: Option<u32>,
    turns: Option<u64>,
    source: Option<String>,
    #[serde(default)]
    capture: bool,
    version: Option<u32>,
}

/// A meta line. Unknown fields are refused, unlike in the body: a turn with `meta` as its first field must not be taken
/// for a meta line and dropped.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetaLine {
    meta: MetaBody,
}

/// Parses a meta line, and returns whether it announces a capture. `None` for any other line.
pub(super) fn parse_meta(text: &str) -> Option<Result<(Meta, bool), TraceFault>> {
    // Cheap for turns: their first key is never `meta`.
    let first_key = text.trim_start().strip_prefix('{')?.trim_start();
    if !first_key.starts_with("\"meta\"") {
        return None;
    }
    Some(match serde_json::from_str::<MetaLine>(text) {
        Ok(MetaLine { meta }) if meta.bs == Some(0) => {
            let _ = meta;
            Err(TraceFault::field("meta.bs", "a block holds at least one token"))
        }
        Ok(MetaLine { meta }) if meta.version > Some(CAPTURE_VERSION) => Err(TraceFault::field(
            "meta.version",
            format!("a newer capture; this program reads versions up to {CAPTURE_VERSION}"),
        )),
        Ok(MetaLine { meta }) => Ok((
            Meta {
                block_size: meta.bs,
                turns: meta.turns,
                source: meta.source,
            },
            meta.capture,
        )),
        Err(error) => Err(TraceFault::field("meta", error.to_string())),
    })
}

/// A line with the fleet. Unknown fields are refused for the same reason as in [`MetaLine`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetLine {
    fleet: FleetRecord,
}

/// Parses a capture's line with the fleet. `None` for any other line.
pub(super) fn parse_fleet(text: &str) -> Option<Result<FleetRecord, TraceFault>> {
    let first_key = text.trim_start().strip_prefix('{')?.trim_start();
    if !first_key.starts_with("\"fleet\"") {
        return None;
    }
    let read = serde_json::from_str::<FleetLine>(text);
    let read = read.map_err(|error| TraceFault::field("fleet", error.to_string()));
    Some(read.and_then(|FleetLine { fleet }| match fleet.fault() {
        Some(field) => Err(TraceFault::field(format!("fleet.{field}"), "out of range")),
        None => Ok(fleet),
    }))
}

/// Refuses times before the trace's origin, in the format's own unit.
pub(super) fn since_origin(field: &str, time: f64) -> Result<f64, TraceFault> {
    if time.is_finite() && time >= 0.0 {
        return Ok(time);
    }
    Err(TraceFault::field(
        field,
        format!("expected a time of at least 0, found {time}"),
    ))
}

pub(super) fn time(field: &str, ms: Option<f64>) -> Result<Option<Millis>, TraceFault> {
    match ms {
        Some(ms) if !(ms.is_finite() && ms >= 0.0) => Err(TraceFault::field(
            field,
            format!("expected a time of at least 0, found {ms}"),
        )),
        ms => Ok(ms.map(Millis)),
    }
}

/// Refuses sizes beyond any prompt.
pub(super) fn bounded(field: &str, tokens: u64) -> Result<u64, TraceFault> {
    if tokens > MAX_TOKENS_PER_FIELD {
        return Err(TraceFault::field(
            field,
            format!("{tokens} is more than {MAX_TOKENS_PER_FIELD} tokens"),
        ));
    }
    Ok(tokens)
}

pub(super) fn expand_runs(runs: &[u64]) -> Result<Vec<u64>, TraceFault> {
    let fault = |reason: &str| TraceFault::field("block_runs", reason);
    if !runs.len().is_multiple_of(2) {
        return Err(fault("expected pairs of first id and count"));
    }
    let total = runs
        .iter()
        .skip(1)
        .step_by(2)
        .try_fold(0u64, |sum, count| sum.checked_add(*count));
    let total = total
        .filter(|total| *total <= MAX_BLOCKS_PER_TURN)
        .ok_or_else(|| fault("too many blocks"))?;
    let mut ids = Vec::with_capacity(total as usize);
    for pair in runs.chunks_exact(2) {
        let (first, count) = (pair[0], pair[1]);
        let end = first.checked_add(count).ok_or_else(|| fault("ids past 2^64"))?;
        ids.extend(first..end);
    }
    Ok(ids)
}
