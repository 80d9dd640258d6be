//! Fields and headers by which a request steers an engine: sources of its KV cache, or the rank that computes it.
//!
//! From a client they name hosts that an engine connects to, select ranks past the router, and can crash the engine:
//! vLLM with a connector asserts on `{"do_remote_prefill": true}`. They are refused unless `http.transfer_fields`
//! allows them. `docs/http.md` lists where they are looked for. A `null` member counts as absent, as in engines.

use http::{HeaderMap, HeaderName};

use crate::error::ApiError;

/// Fields that vLLM, SGLang, TensorRT-LLM, Dynamo and this router read, at any depth.
const FIELDS: [&str; 24] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "kv_router_hint",
    "kv_hint",
    "kv_hints",
    "data_parallel_rank",
    "data_parallel_rank_decode",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "decode_tp_size",
    "http_worker_ipc",
    "pd_prefill_admission_ack",
    "decode_token_reservation_id",
    "disaggregated_params",
    "disagg_request_id",
    "backend_instance_id",
    "prefill_worker_id",
    "decode_worker_id",
    "prefill_dp_rank",
    "tailroute_evict_first_tokens",
];

/// Members in which engines also accept such fields.
const CONTAINERS: [&str; 6] = [
    "extra_body",
    "vllm_xargs",
    "extra_args",
    "nvext",
    "sampling_params",
    "custom_params",
];

/// Headers of vLLM, llm-d and Dynamo.
const HEADERS: [&str; 9] = [
    "x-data-parallel-rank",
    "x-data-parallel-host-port",
    "x-prefiller-host-port",
    "x-encoder-hosts-ports",
    "x-kv-cache-source-host-port",
    "x-worker-instance-id",
    "x-prefill-instance-id",
    "x-decode-instance-id",
    "x-dp-rank",
];

/// Prefix by which SGLang accepts any field as a header: `x-override-routed-dp-rank`.
pub(crate) const OVERRIDE: &str = "x-override-";

const LONGEST: usize = 31;

/// Lengths of [`FIELDS`], one bit each. Most names of a body are ruled out by length.
const LENGTHS: u32 = {
    let (mut lengths, mut at) = (0, 0);
    while at < FIELDS.len() {
        lengths |= 1 << FIELDS[at].len();
        at += 1;
    }
    lengths
};

/// Returns the field of this name, if it steers an engine.
pub fn field(name: &[u8]) -> Option<&'static str> {
    if name.len() > LONGEST || LENGTHS >> name.len() & 1 == 0 {
        return None;
    }
    FIELDS.into_iter().find(|field| field.as_bytes() == name)
}

/// Returns whether such fields may be nested in the member of this name.
pub fn is_container(name: &[u8]) -> bool {
    CONTAINERS.iter().any(|container| container.as_bytes() == name)
}

fn header(name: &HeaderName) -> Option<&'static str> {
    let name = name.as_str();
    match name.strip_prefix(OVERRIDE) {
        Some(field) => self::field(field.replace('-', "_").as_bytes()),
        None => HEADERS.into_iter().find(|header| *header == name),
    }
}

/// Checks a request's head. Fails with 400 if it steers an engine, unless `http.transfer_fields` is `allowed`.
pub fn permit_head(allowed: bool, head: &HeaderMap) -> Result<(), ApiError> {
    if allowed {
        return Ok(());
    }
    head.keys()
        .find_map(header)
        .map_or(Ok(()), |what| Err(ApiError::Steering(what)))
}

/// Checks a field of a body. Fails with 400 if it steers an engine, unless `http.transfer_fields` is `allowed`.
pub fn permit_body(allowed: bool, field: Option<&'static str>) -> Result<(), ApiError> {
    match field {
        Some(what) if !allowed => Err(ApiError::Steering(what)),
        _ => Ok(()),
    }
}

/// Finder of steering fields among the keys of JSON that arrives in pieces, at any depth and in every spelling. A key
/// is a string followed by a colon, so keys are found in lists, JSON lines and embedded JSON alike. JSON strings do not
/// span lines, so no line can hide keys of the next one.
#[derive(Debug)]
pub struct Keys {
    wanted: fn(&[u8]) -> Option<&'static str>,
    state: KeyScanState,
    /// Decoded prefix of the current string, while it may be a field.
    name: Vec<u8>,
    /// Whether the current string is not a field.
    is_other: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyScanState {
    Between,
    Within,
    Escape,
    /// Remaining digits of `\u`, and the value so far.
    Digits(u8, u32),
    /// After a string that is a field.
    Named(&'static str),
    Value(&'static str),
}

impl Default for Keys {
    fn default() -> Self {
        Self::of(field)
    }
}

impl Keys {
    /// Returns a finder of the keys that `wanted` accepts; none may be longer than the longest [field].
    pub fn of(wanted: fn(&[u8]) -> Option<&'static str>) -> Self {
        Self {
            wanted,
            state: KeyScanState::Between,
            name: Vec::new(),
            is_other: false,
        }
    }

    /// Scans the next piece. Returns the first field that was found in it, with a value other than `null`.
    pub fn push(&mut self, piece: &[u8]) -> Option<&'static str> {
        let mut at = 0;
        while let Some(rest) = piece.get(at..).filter(|rest| !rest.is_empty()) {
            let skipped = match self.state {
                KeyScanState::Between => memchr::memchr(b'"', rest),
                KeyScanState::Within if self.is_other => memchr::memchr3(b'"', b'\\', b'\n', rest),
                _ => Some(0),
            };
            let skipped = skipped?;
            at += skipped + 1;
            if let Some(found) = self.byte(rest[skipped]) {
                return Some(found);
            }
        }
        None
    }

    fn byte(&mut self, byte: u8) -> Option<&'static str> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.state = match (self.state, byte) {
            (KeyScanState::Within | KeyScanState::Escape | KeyScanState::Digits(..), b'\n' | b'\r') => {
                KeyScanState::Between
            }
            (KeyScanState::Within, b'"') => match (self.wanted)(&self.name).filter(|_| !self.is_other) {
                Some(field) => KeyScanState::Named(field),
                None => KeyScanState::Between,
            },
            (KeyScanState::Within, b'\\') => KeyScanState::Escape,
            (KeyScanState::Within, byte) => self.take(byte.into()),
            (KeyScanState::Escape, b'u') => KeyScanState::Digits(4, 0),
            // No field contains the characters of the other escapes.
            (KeyScanState::Escape, _) => self.take(u32::MAX),
            (KeyScanState::Digits(left, so_far), byte) => match char::from(byte).to_digit(16) {
                None => KeyScanState::Between,
                Some(digit) if left == 1 => self.take(so_far << 4 | digit),
                Some(digit) => KeyScanState::Digits(left - 1, so_far << 4 | digit),
            },
            (KeyScanState::Named(field), b':') => KeyScanState::Value(field),
            (state @ (KeyScanState::Named(_) | KeyScanState::Value(_)), _) if is_space => state,
            // `null` counts as absent.
            (KeyScanState::Value(_), b'n') => KeyScanState::Between,
            (KeyScanState::Value(field), _) => return Some(field),
            (KeyScanState::Between | KeyScanState::Named(_), b'"') => {
                self.name.clear();
                self.is_other = false;
                KeyScanState::Within
            }
            (KeyScanState::Between | KeyScanState::Named(_), _) => KeyScanState::Between,
        };
        None
    }

    fn take(&mut self, code: u32) -> KeyScanState {
        match u8::try_from(code) {
            Ok(byte) if byte.is_ascii() && self.name.len() < LONGEST => self.name.push(byte),
            _ => self.is_other = true,
        }
        KeyScanState::Within
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn found(text: &str) -> Option<&'static str> {
        Keys::default().push(text.as_bytes())
    }

    #[test]
    fn no_field_is_longer_than_what_is_kept_of_a_name() {
        assert!(FIELDS.iter().all(|field| field.len() <= LONGEST));
    }

    #[test]
    fn a_field_is_found_in_every_spelling_and_depth() {
        for text in [
            r#"{"kv_transfer_params":{}}"#,
            r#"{"kv\u005ftransfer_params" : 1}"#,
            r#"{"\u006B\u0076_transfer_params":"x"}"#,
            r#"[{"a":1},{"b":{"c":[{"kv_transfer_params":true}]}}]"#,
            "{\"kv_transfer_params\"\n\t:\r\n[]}",
            "{\"a\":1}\n{\"body\":{\"kv_transfer_params\":{}}}\n",
            "\"\n{\"kv_transfer_params\":0}",
            r#"{"a":"\"","kv_transfer_params":-1}"#,
            r#"{"kv_transfer_params":null,"kv_transfer_params":{}}"#,
        ] {
            assert_eq!(found(text), Some("kv_transfer_params"), "{text}");
        }
    }

    #[test]
    fn a_text_that_names_a_field_and_a_field_that_is_null_are_passed_over() {
        for text in [
            r#"{"a":"kv_transfer_params"}"#,
            r#"{"a":"{\"kv_transfer_params\":{}}"}"#,
            r#"["kv_transfer_params",1]"#,
            r#"{"kv_transfer_params": null}"#,
            r#"{"xkv_transfer_params":1,"kv_transfer_paramsx":1,"\/kv_transfer_params":1}"#,
            r#"{"kv_transfer_param\u0173":1}"#,
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn heads_are_looked_through_by_name_and_by_what_they_override() {
        let is_found = |name: &'static str| header(&HeaderName::from_static(name)).is_some();
        for name in [
            "x-data-parallel-rank",
            "x-override-routed-dp-rank",
            "x-override-bootstrap-host",
        ] {
            assert!(is_found(name), "{name}");
        }
        for name in ["x-override-rid", "x-request-id", "x-override-"] {
            assert!(!is_found(name), "{name}");
        }
    }

    /// Returns the result by a full parser.
    fn naive(value: &Value) -> bool {
        match value {
            Value::Object(members) => members
                .iter()
                .any(|(key, value)| (field(key.as_bytes()).is_some() && !value.is_null()) || naive(value)),
            Value::Array(values) => values.iter().any(naive),
            _ => false,
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i16>().prop_map(Value::from),
            "(bootstrap_room|dp|\"|\\\\|\n|:|\\{|\\}|é){0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec(("(bootstrap_room|kv_hint|a|\"|\\\\)", inner), 0..3)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_a_parser_would_however_the_text_is_cut(value in values(), size in 1_usize..9, pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let mut keys = Keys::default();
            let split = text.as_bytes().chunks(size).find_map(|piece| keys.push(piece));
            prop_assert_eq!(split.is_some(), naive(&value), "{}", text);
            prop_assert_eq!(split, found(&text));
        }
    }
}
