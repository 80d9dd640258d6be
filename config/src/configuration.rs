//! The whole configuration: [`File`] as written, and [`Config`] as checked.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::{Origin, Problems};
use crate::sections::admin::{Admin, Audit};
use crate::sections::admission::Admission;
use crate::sections::checker::Checker;
use crate::sections::discovery::{Discovery, DiscoverySection};
use crate::sections::endpoint_picker::EndpointPicker;
use crate::sections::failure::Failure;
use crate::sections::fleet::Fleet;
use crate::sections::health::Health;
use crate::sections::http::Http;
use crate::sections::index::{IndexConfig, Snapshot};
use crate::sections::keys::{Key, KeySection, keys};
use crate::sections::learning::{Hints, Learning};
use crate::sections::limits::Limits;
use crate::sections::objective::Objective;
use crate::sections::output::{Capture, Explain, Log};
use crate::sections::own_ports;
use crate::sections::routing::{self, Routing};
use crate::sections::server::Server;
use crate::sections::tls::{Tls, TlsSection};
use crate::sections::traces::Traces;
use crate::sections::worker::{self, Worker, WorkerSection};

/// Configuration of tailroute: its ports, the workers it routes to, and how it selects among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    /// Data port: serves the inference APIs (OpenAI's, Anthropic's and the engines' own), health checks and
    /// `http.extra_paths`. It has no metrics and no administration.
    pub server: Server<String>,
    /// Admin port: metrics, health of the router itself, administration. Keep it off public networks.
    pub admin: Admin<String, Audit>,
    /// Port at which Envoy-based gateways ask for the worker of a request (`ext_proc`, docs/endpoint-picker.md).
    pub endpoint_picker: EndpointPicker<String>,
    /// Inference workers, one section each. At least one, in the file, the environment or on the command line, unless
    /// `[discovery]` is enabled.
    pub workers: Vec<WorkerSection>,
    /// Discovery of workers while the router serves: from Kubernetes, DNS or a file.
    pub discovery: DiscoverySection,
    /// Routing policy, which selects the worker for a turn.
    pub routing: Routing,
    /// Objective: the time to first token, and the share of turns that has to meet it.
    pub objective: Objective,
    /// Hints to workers about the cache that they may evict first.
    pub hints: Hints,
    /// Learning of costs and habits from responses while the router serves.
    pub learning: Learning,
    /// Index of the prefixes that each worker holds.
    pub index: IndexConfig<Snapshot>,
    /// Health probes of the workers.
    pub health: Health,
    /// Handling of failing workers: deadlines, retries, breakers, slow starts, hedges.
    pub failure: Failure,
    /// HTTP between clients and workers: forwarded client information and extra paths.
    pub http: Http<String>,
    /// Limits on sizes, times and numbers. Everything that can grow has one.
    pub limits: Limits,
    /// Admission: when a request is queued, and when it is refused.
    pub admission: Admission,
    /// API keys, by their hashes. While there is none, and `admission.keys_file` names no file, every caller is
    /// admitted.
    pub keys: Vec<KeySection>,
    /// TLS of the data port and towards the workers.
    pub tls: TlsSection,
    /// Capture of the traffic, for `tailroute replay`.
    pub capture: Capture,
    /// Record of recent decisions, and who may request the terms of one.
    pub explain: Explain,
    /// Traces of requests, sent to a collector.
    pub traces: Traces<String>,
    /// Other replicas of this router, in front of the same workers.
    pub fleet: Fleet<String, String>,
    /// Log, on standard error.
    pub log: Log,
}

/// A valid configuration. There are workers or a source that discovers them; their names and urls are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Settings of the data port.
    pub server: Server,
    /// Settings of the admin port, which differs from the data port.
    pub admin: Admin,
    /// Settings of the endpoint picker's port, if enabled.
    pub endpoint_picker: Option<EndpointPicker>,
    /// Configured workers, in the order of the file. Not empty unless discovery is enabled.
    pub workers: Vec<Worker>,
    /// Sources of discovered workers.
    pub discovery: Discovery,
    /// The routing policy, which selects the worker for a turn.
    pub routing: Routing,
    /// Objective of all turns, and those of classes.
    pub objective: Objective,
    /// Hints to workers.
    pub hints: Hints,
    /// Learning from responses.
    pub learning: Learning,
    /// Index of prefixes.
    pub index: IndexConfig,
    /// Settings of health probes.
    pub health: Health,
    /// Handling of failing workers.
    pub failure: Failure,
    /// Settings of HTTP between clients and workers.
    pub http: Http,
    /// Limits on sizes, times and numbers.
    pub limits: Limits,
    /// Settings of admission.
    pub admission: Admission,
    /// API keys. Without any, every caller is admitted, unless `admission` names a file of keys: then none is.
    pub keys: Vec<Key>,
    /// TLS of the data port and towards the workers.
    pub tls: Tls,
    /// Capture of traffic, if enabled.
    pub capture: Option<Capture>,
    /// Settings of the record of recent decisions.
    pub explain: Explain,
    /// Traces, if enabled.
    pub traces: Option<Traces>,
    /// Other replicas, if configured.
    pub fleet: Option<Fleet>,
    /// Settings of the log, on standard error.
    pub log: Log,
}

impl Config {
    /// Returns whether callers need a key.
    pub fn requires_keys(&self) -> bool {
        !self.keys.is_empty() || self.admission.keys_file.is_some()
    }
}

impl File {
    /// Checks the configuration. The result is valid only if `problems` stays empty.
    pub(crate) fn checked(self, origins: &BTreeMap<String, Origin>, problems: &mut Problems) -> Config {
        let mut checker = Checker { origins, problems };
        let server = self.server.checked(&mut checker);
        let admin = self.admin.checked(&mut checker);
        if server.listen == admin.listen && server.listen.port() != 0 {
            let what = format!("{} is also the data port; expected a separate port", admin.listen);
            checker.report("admin.listen", what, None);
        }
        let discovery = self.discovery.checked(&mut checker);
        if self.workers.is_empty() && !discovery.is_on() {
            let hint =
                "add a [[workers]] section with a url, give --worker http://host:port, or set up [discovery]"
                    .to_owned();
            checker.report(
                "workers",
                "no workers; expected at least one".to_owned(),
                Some(hint),
            );
        }
        let urls: Vec<_> = self.workers.iter().map(|worker| worker.url.clone()).collect();
        let workers = worker::check_all(self.workers, &mut checker);
        let objective = self.objective.checked(&mut checker);
        routing::check_overrides(&self.routing, &objective.classes, &mut checker);
        let tls = self.tls.checked(&mut checker);
        let picker = self
            .endpoint_picker
            .checked(&server, &admin, &tls, &urls, &mut checker);
        let ports = [
            ("data", Some(server.listen)),
            ("admin", Some(admin.listen)),
            ("endpoint picker's", picker.as_ref().map(|picker| picker.listen)),
        ];
        own_ports::check(&urls, &ports, &mut checker);
        Config {
            endpoint_picker: picker,
            server,
            admin,
            workers,
            discovery,
            routing: self.routing,
            objective,
            hints: self.hints,
            learning: self.learning,
            index: self.index.checked(),
            health: self.health.checked(&mut checker),
            failure: self.failure.checked(&mut checker),
            http: self.http.checked(&mut checker),
            limits: self.limits.checked(&mut checker),
            keys: keys(self.keys, self.admission.keys_file.as_deref(), &mut checker),
            admission: self.admission.checked(&mut checker),
            tls,
            capture: self.capture.checked(),
            explain: self.explain,
            traces: self.traces.checked(&mut checker),
            fleet: self.fleet.checked(&mut checker),
            log: self.log.checked(&mut checker),
        }
    }
}
