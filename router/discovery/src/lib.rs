//! Discovers workers at run time: in Kubernetes, DNS or a file (docs/discovery.md).
//!
//! Each configured source has one task ([`SourceTask`]), which stores the named workers ([`Found`]) in the shared
//! [`DiscoveryState`]. The router applies that state to its fleet. To add a source, write its module with an
//! `async fn run`, and add it to [`DiscoverySource`] and to this file.

mod dns;
mod file;
mod kubernetes;
mod pause;
mod source;
mod state;

use std::sync::Arc;

pub use self::source::DiscoverySource;
pub use self::state::{
    DiscoveredWorker, DiscoveryFailure, DiscoveryObserver, DiscoveryState, Found, NotTaken, RefusedEntries,
    SourceState,
};

/// Target of log lines, so that `log.level` covers this crate.
const LOG: &str = "tailroute::discovery";

/// The task of one configured source.
#[derive(Clone, Debug)]
pub struct SourceTask {
    source: DiscoverySource,
    settings: Arc<config::Discovery>,
    state: Arc<DiscoveryState>,
}

/// Returns the tasks of all configured sources.
pub fn tasks(settings: &config::Discovery, state: &Arc<DiscoveryState>) -> Vec<SourceTask> {
    let settings = Arc::new(settings.clone());
    let task = |(source, _)| SourceTask {
        source,
        settings: Arc::clone(&settings),
        state: Arc::clone(state),
    };
    configured(&settings).into_iter().map(task).collect()
}

impl SourceTask {
    /// Returns the task's name, for supervision.
    pub fn name(&self) -> &'static str {
        match self.source {
            DiscoverySource::Kubernetes => "discovery_kubernetes",
            DiscoverySource::Dns => "discovery_dns",
            DiscoverySource::File => "discovery_file",
        }
    }

    /// Runs the source forever.
    pub async fn run(self) {
        let (state, settings) = (&self.state, &*self.settings);
        match (self.source, &settings.kubernetes, &settings.dns, &settings.file) {
            (DiscoverySource::Kubernetes, Some(kubernetes), _, _) => {
                kubernetes::run(kubernetes, &settings.template, state).await;
            }
            (DiscoverySource::Dns, _, Some(dns), _) => dns::run(dns, settings, state).await,
            (DiscoverySource::File, _, _, Some(path)) => file::run(path, state).await,
            // Tasks exist for configured sources only.
            _ => {}
        }
    }
}

/// Returns the configured sources in order of precedence, each with a description of what is watched.
fn configured(settings: &config::Discovery) -> Vec<(DiscoverySource, String)> {
    let kubernetes = settings.kubernetes.as_ref().map(|kubernetes| {
        let of = match &kubernetes.watched {
            config::Watched::Services(names) => format!("endpoints of {}", names.join(", ")),
            config::Watched::Pods(selector) => format!("pods of {selector}"),
        };
        (DiscoverySource::Kubernetes, of)
    });
    let dns = settings.dns.as_ref();
    let dns = dns.map(|dns| {
        (
            DiscoverySource::Dns,
            format!("SRV records of {}", dns.names.join(", ")),
        )
    });
    let file = settings.file.as_ref();
    let file = file.map(|path| (DiscoverySource::File, path.display().to_string()));
    kubernetes.into_iter().chain(dns).chain(file).collect()
}
