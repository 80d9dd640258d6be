//! Records of the router: `[capture]`, `[explain]`, `[log]`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsBytes, at_least_one};
use super::checker::Checker;

/// A capture: one line per completed turn, with times, lengths and shared prefixes. No text, and no hash of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Capture {
    /// File to which turns are written; the previous one becomes `PATH.1`. Empty: nothing is captured.
    pub path: PathBuf,
    /// Length in bytes at which the file is full and a new one begins. A capture takes at most two such files.
    #[schemars(with = "u64", range(min = 65_536))]
    pub max_bytes: NonZeroUsize,
}

impl Default for Capture {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            max_bytes: at_least_one(256 << 20),
        }
    }
}

impl Capture {
    /// Returns the section; `None` if nothing is captured.
    pub(crate) fn checked(self) -> Option<Self> {
        (!self.path.as_os_str().is_empty()).then_some(self)
    }
}

/// Record of recent decisions, and who may request the terms of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Explain {
    /// Memory in bytes for recent decisions, about 1 KiB each, allocated at the start: `GET /admin/v1/decisions`. The
    /// oldest are replaced. 0: none are kept.
    #[serde(with = "AsBytes")]
    #[schemars(range(max = 17_179_869_184_u64))]
    pub max_bytes: usize,
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

/// Log, on standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Format of a line.
    pub format: LogFormat,
    /// Level: `off`, `error`, `warn`, `info`, `debug`, `trace`, or filters by module such as `info,tailroute=debug`.
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

impl Log {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Self {
        if let Some((what, hint)) = level_problem(&self.level) {
            checker.report("log.level", what, hint);
        }
        self
    }
}

/// Returns the problem of a log filter, and a remedy if one is known; `None` if the filter is valid.
pub fn level_problem(text: &str) -> Option<(String, Option<String>)> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    text.split(',').find_map(|directive| {
        // `level`, `target=level`, or `target[span{field=value}]=level`.
        let level = directive.rsplit('=').next().unwrap_or(directive).trim();
        if LEVELS.contains(&level.to_ascii_lowercase().as_str()) {
            return None;
        }
        let hint = crate::validate::nearest(level, LEVELS.into_iter());
        let what = format!("expected one of {}, found {level:?}", LEVELS.join(", "));
        Some((what, hint.map(|name| format!("did you mean `{name}`?"))))
    })
}
