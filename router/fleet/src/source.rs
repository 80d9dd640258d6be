//! Source of a worker's registration.

use schemars::JsonSchema;
use serde::Serialize;

/// The source of a worker's registration, which also decides when the worker leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerSource {
    /// The configuration at the router's start.
    #[default]
    Configuration,
    /// An operator, through the admin API.
    Operator,
    /// A Kubernetes API server.
    Kubernetes,
    /// SRV records.
    Dns,
    /// A watched file.
    File,
}

impl WorkerSource {
    /// Returns whether workers are discovered by this source.
    pub fn finds(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Dns | Self::File)
    }

    /// Returns the name in metrics, logs and the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Operator => "operator",
            Self::Kubernetes => "kubernetes",
            Self::Dns => "dns",
            Self::File => "file",
        }
    }
}
