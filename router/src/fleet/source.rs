//! Who named a worker.

use schemars::JsonSchema;
use serde::Serialize;

/// Who named a worker, and so who says when it is to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The configuration that the router was started with.
    #[default]
    Configuration,
    /// Somebody, by the admin port.
    Operator,
    /// A Kubernetes API server.
    Kubernetes,
    /// SRV records.
    Dns,
    /// A file that is watched.
    File,
}

impl Source {
    /// Whether it finds workers while the router serves.
    #[must_use]
    pub fn finds(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Dns | Self::File)
    }

    /// Its name, in metrics, logs and the admin port.
    #[must_use]
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

impl From<discovery::Source> for Source {
    fn from(source: discovery::Source) -> Self {
        match source {
            discovery::Source::Kubernetes => Self::Kubernetes,
            discovery::Source::Dns => Self::Dns,
            discovery::Source::File => Self::File,
        }
    }
}
