//! Outcome of the configuration's last reload.

use schemars::JsonSchema;
use serde::Serialize;

/// Result of the last reload.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ReloadState {
    /// Number of configurations applied, including the first.
    pub generation: u64,
    /// Reason why the last configuration read was refused; `null` if it was applied.
    pub refused: Option<String>,
    /// Changed sections that take effect only after a restart.
    pub needs_restart: Vec<&'static str>,
}

impl Default for ReloadState {
    fn default() -> Self {
        Self {
            generation: 1,
            refused: None,
            needs_restart: Vec::new(),
        }
    }
}
