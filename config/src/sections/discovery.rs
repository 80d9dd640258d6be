//! Sources of discovered workers, and the settings of those workers.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::AsPath;
use super::checker::Checker;
use super::worker::{self, Worker, WorkerSection};
use crate::read::{LoadError, read_list};

mod dns;
mod kubernetes;
mod names;
mod scheme;
mod template;

pub use self::dns::Dns;
use self::kubernetes::KubernetesSection;
pub use self::kubernetes::{Api, Kubernetes, Port, Watched};
pub use self::scheme::Scheme;
pub use self::template::Template;
use self::template::template;

/// Workers discovered while the router serves, beside those of `[[workers]]`. They join when a source lists them, get
/// no new turns while it reports them as not ready, and are drained and removed when it no longer lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Discovery")]
pub(crate) struct DiscoverySection {
    /// Largest number of discovered workers, from all sources together. Further ones are left out, and `GET
    /// /admin/v1/discovery` lists them.
    #[schemars(range(min = 1, max = 5_000))]
    pub max_workers: u32,
    /// Settings of every worker that is discovered in Kubernetes or DNS.
    #[schemars(schema_with = "template::schema")]
    pub worker: WorkerSection,
    /// Discovery in Kubernetes.
    pub kubernetes: KubernetesSection,
    /// Discovery by SRV records.
    pub dns: Dns<String>,
    /// Discovery from a file.
    pub file: WatchedFile,
}

impl Default for DiscoverySection {
    fn default() -> Self {
        Self {
            max_workers: 1_000,
            worker: WorkerSection::default(),
            kubernetes: KubernetesSection::default(),
            dns: Dns::default(),
            file: WatchedFile::default(),
        }
    }
}

/// Workers listed in a file: `[[workers]]` sections in TOML, or `{"workers": […]}` in a file whose name ends in
/// `.json`, with the same keys as in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WatchedFile {
    /// Path of the file, which is checked twice a second; replacing a link, as in a mounted ConfigMap, counts as a
    /// change. An invalid file changes nothing. Empty: none.
    #[serde(with = "AsPath")]
    pub path: Option<PathBuf>,
}

/// Contents of a file of workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["workers"]))]
pub(crate) struct WorkersFile {
    /// Workers of the file; `workers = []` for none.
    pub workers: Vec<WorkerSection>,
}

/// Settings of discovery.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovery {
    /// Largest number of discovered workers, from all sources together; positive.
    pub max_workers: usize,
    /// Settings of the workers from Kubernetes and DNS.
    pub template: Template,
    /// Kubernetes, if enabled.
    pub kubernetes: Option<Kubernetes>,
    /// DNS, if enabled.
    pub dns: Option<Dns>,
    /// Path of the file of workers, if enabled.
    pub file: Option<PathBuf>,
}

impl Discovery {
    /// Returns whether any source is enabled.
    pub fn is_on(&self) -> bool {
        self.kubernetes.is_some() || self.dns.is_some() || self.file.is_some()
    }
}

/// Reads a file of workers: TOML, or JSON if its name ends in `.json`. Fails if the file cannot be read or is invalid.
pub fn read_workers(path: &Path) -> Result<Vec<Worker>, LoadError> {
    let mut read = read_list::<WorkersFile>(path)?;
    let mut checker = Checker {
        origins: &read.origins,
        problems: &mut read.problems,
    };
    let workers = worker::check_all(read.written.workers, &mut checker);
    if read.problems.is_empty() {
        Ok(workers)
    } else {
        Err(read.problems.into())
    }
}

impl DiscoverySection {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Discovery {
        Discovery {
            max_workers: self.max_workers as usize,
            template: template(self.worker, checker),
            kubernetes: self.kubernetes.checked(checker),
            dns: self.dns.checked(checker),
            file: self.file.path,
        }
    }
}
