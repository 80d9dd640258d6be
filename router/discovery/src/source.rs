//! The kinds of sources.

use schemars::JsonSchema;
use serde::Serialize;

/// A kind of source that names workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiscoverySource {
    /// A Kubernetes API server.
    Kubernetes,
    /// SRV records.
    Dns,
    /// A watched file.
    File,
}

impl DiscoverySource {
    /// Returns the name in metrics, logs and the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Dns => "dns",
            Self::File => "file",
        }
    }
}
