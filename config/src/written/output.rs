//! Captures, explanations and the log: `[capture]`, `[explain]`, `[log]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A capture: one line per completed turn, with times, lengths and shared prefixes. No text, and no hash of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Capture {
    /// File to which turns are written; the previous one becomes `PATH.1`. Empty: nothing is captured.
    pub path: String,
    /// Bytes at which the file is full and a new one begins. A capture takes at most two such files.
    #[schemars(range(min = 65_536))]
    pub max_bytes: u64,
}

impl Default for Capture {
    fn default() -> Self {
        Self {
            path: String::new(),
            max_bytes: 256 << 20,
        }
    }
}

/// Explanations of routing decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Bytes for recent decisions, about 1 KiB each, allocated at the start: `GET /admin/v1/decisions`. The oldest are
    /// replaced. 0: none are kept.
    #[schemars(range(max = 17_179_869_184_u64))]
    pub max_bytes: u64,
    /// Whether `x-tailroute-explain: 1` adds the terms of the decision to every caller's response, including workers'
    /// names and load. Keys with `explain` have this in any case.
    pub in_answers: bool,
}

impl Default for Explain {
    fn default() -> Self {
        Self {
            max_bytes: 16 << 20,
            in_answers: false,
        }
    }
}

/// The log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Format of a line.
    pub format: LogFormat,
    /// Level: `error`, `warn`, `info`, `debug`, `trace`, or filters by module such as `info,tailroute=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::default(),
            level: "info".to_owned(),
        }
    }
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line, for collectors.
    Json,
}
