//! Where workers are found, and what is taken of those that are.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::worker::{self, Worker, WorkerSection};
use crate::load::{LoadError, read_list};

mod dns;
mod kubernetes;
mod template;

pub use self::dns::Dns;
use self::dns::{DnsSection, dns};
pub use self::kubernetes::{Api, Kubernetes, Port, Watched};
use self::kubernetes::{KubernetesSection, kubernetes};
pub use self::template::Template;
use self::template::template;

/// Longest name of a Kubernetes object, and of one in the DNS.
const LONGEST_NAME: usize = 253;
/// Most names of Services or records.
const MOST_NAMES: usize = 64;

/// Workers that are found while the router serves, beside those of `[[workers]]`: they join when a source names them, get
/// nothing new while it calls them not ready, and end what they have and leave when it no longer names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Discovery")]
pub(crate) struct DiscoverySection {
    /// Most workers that are taken from all sources together. Those that come later are left out, and
    /// `GET /admin/v1/discovery` says so.
    #[schemars(range(min = 1, max = 5_000))]
    pub max_workers: u32,
    /// What is taken of every worker that Kubernetes or DNS names.
    #[schemars(schema_with = "template::schema")]
    pub worker: WorkerSection,
    /// Workers that a Kubernetes API server names.
    pub kubernetes: KubernetesSection,
    /// Workers that SRV records of the DNS name.
    pub dns: DnsSection,
    /// Workers that a file lists.
    pub file: WatchedFile,
}

impl Default for DiscoverySection {
    fn default() -> Self {
        Self {
            max_workers: 1_000,
            worker: WorkerSection::default(),
            kubernetes: KubernetesSection::default(),
            dns: DnsSection::default(),
            file: WatchedFile::default(),
        }
    }
}

/// Workers that a file lists: `[[workers]]` sections in TOML, or `{"workers": […]}` in a file whose name ends in `.json`,
/// with the keys that they have here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WatchedFile {
    /// The file, looked at twice a second; a link that is swapped, as of a mounted ConfigMap, is a change. One that is
    /// wrong changes nothing. Empty: none.
    pub path: String,
}

/// How workers are spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// In plain text.
    #[default]
    Http,
    /// By TLS, as `[tls.workers]` says.
    Https,
}

/// A file of workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["workers"]))]
pub(crate) struct WorkersFile {
    /// The workers: `workers = []` for none.
    pub workers: Vec<WorkerSection>,
}

/// Where workers are found.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovery {
    /// Most of them, from all sources together; positive.
    pub max_workers: usize,
    /// What is taken of those that come without settings of their own.
    pub template: Template,
    /// In Kubernetes, if there.
    pub kubernetes: Option<Kubernetes>,
    /// In the DNS, if there.
    pub dns: Option<Dns>,
    /// In a file, if there.
    pub file: Option<PathBuf>,
}

impl Discovery {
    /// Whether workers are found anywhere.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.kubernetes.is_some() || self.dns.is_some() || self.file.is_some()
    }
}

/// Reads a file of workers: TOML, or JSON if its name ends in `.json`.
///
/// # Errors
/// If it cannot be read, or what is wrong with it.
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

/// Checks the section.
pub(super) fn discovery(written: DiscoverySection, checker: &mut Checker<'_>) -> Discovery {
    Discovery {
        max_workers: written.max_workers as usize,
        template: template(written.worker, checker),
        kubernetes: kubernetes(written.kubernetes, checker),
        dns: dns(written.dns, checker),
        file: (!written.file.path.is_empty()).then(|| written.file.path.into()),
    }
}

fn few(names: &[String], path: &str, checker: &mut Checker<'_>) {
    if names.len() > MOST_NAMES {
        let what = format!("{} names; expected at most {MOST_NAMES}", names.len());
        checker.report(path, what, None);
    }
    let twice = (1..names.len()).find(|&at| names[..at].contains(&names[at]));
    if let Some(at) = twice {
        checker.report(
            &format!("{path}[{at}]"),
            format!("{:?} is there already", names[at]),
            None,
        );
    }
}
