//! Settings that a reload of the configuration replaces.

use std::path::PathBuf;

use config::Config;

/// Settings that a reload can change and that no other part of the router keeps.
#[derive(Clone, Debug)]
pub struct Live {
    pub objective: config::Objective,
    /// Overrides of the policy that requests may ask for.
    pub requests: config::Requests,
    pub limits: config::Limits,
    pub hints: config::Hints,
    /// Files named by the configuration, which are read again with it.
    pub files: Vec<PathBuf>,
}

impl Live {
    /// Returns these settings of a configuration.
    pub fn of(config: &Config) -> Self {
        let admission = &config.admission;
        let keys = admission.keys_file.iter().chain(&admission.salt_secret_file);
        let keys = keys.chain(&config.admin.tokens_file);
        let traces = config.traces.iter();
        let keys = keys.chain(traces.flat_map(|traces| &traces.headers_file));
        Self {
            objective: config.objective.clone(),
            requests: config.routing.requests.clone(),
            limits: config.limits.clone(),
            hints: config.hints.clone(),
            files: config.tls.files().into_iter().chain(keys).cloned().collect(),
        }
    }
}
