//! What is written down: `[capture]`, `[explain]`, `[log]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A capture: one line per answered turn, with times, lengths and which prompts begin alike. No text, and no hash of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Capture {
    /// File that turns are written to; the one before it becomes `PATH.1`. Empty: nothing is captured.
    pub path: String,
    /// Bytes at which the file is full and a new one begins. Two of them are the most that a capture takes.
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

/// Why turns went where they went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Bytes for recent decisions, about 1 KiB each, taken at the start: `GET /admin/v1/decisions`. The oldest make room.
    /// 0: none are kept.
    #[schemars(range(max = 17_179_869_184_u64))]
    pub max_bytes: u64,
    /// Whether everybody who asks with `x-tailroute-explain: 1` is answered with the terms of the choice, workers' names and
    /// load among them. Keys with `explain` are in any case.
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
    /// The form of a line.
    pub format: LogFormat,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or filters by module such as `info,tailroute=debug`.
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

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}
