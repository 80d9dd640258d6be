use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scheme of the workers' urls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Plain text.
    #[default]
    Http,
    /// TLS, with the settings of `[tls.workers]`.
    Https,
}
