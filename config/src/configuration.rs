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

/// Declares the sections: name, type as written, and type as checked.
macro_rules! sections {
    ($($(#[$doc:meta])* $section:ident: $written:ty => $checked:ty,)*) => {
        /// Configuration of tailroute: its ports, the workers it routes to, and how it selects among them.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct File {
            $($(#[$doc])* pub $section: $written,)*
        }

        /// A valid configuration. There are workers or a source that discovers them; their names and urls are unique.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($(#[$doc])* pub $section: $checked,)*
        }
    };
}

sections! {
    /// Data port: serves the inference APIs (OpenAI's, Anthropic's and the engines' own), health checks and
    /// `http.extra_paths`. It has no metrics and no administration.
    server: Server<String> => Server,
    /// Admin port: metrics, health of the router itself, administration. Keep it off public networks.
    admin: Admin<String, Audit> => Admin,
    /// Port at which Envoy-based gateways ask for the worker of a request (`ext_proc`, docs/endpoint-picker.md).
    endpoint_picker: EndpointPicker<String> => Option<EndpointPicker>,
    /// Inference workers, one section each. At least one, in the file, the environment or on the command line, unless
    /// `[discovery]` is enabled.
    workers: Vec<WorkerSection> => Vec<Worker>,
    /// Discovery of workers while the router serves: from Kubernetes, DNS or a file.
    discovery: DiscoverySection => Discovery,
    /// Routing policy, which selects the worker for a turn.
    routing: Routing => Routing,
    /// Objective: the time to first token, and the share of turns that has to meet it.
    objective: Objective => Objective,
    /// Hints to workers about the cache that they may evict first.
    hints: Hints => Hints,
    /// Learning of costs and habits from responses while the router serves.
    learning: Learning => Learning,
    /// Index of the prefixes that each worker holds.
    index: IndexConfig<Snapshot> => IndexConfig,
    /// Health probes of the workers.
    health: Health => Health,
    /// Handling of failing workers: deadlines, retries, breakers, slow starts, hedges.
    failure: Failure => Failure,
    /// HTTP between clients and workers: forwarded client information and extra paths.
    http: Http<String> => Http,
    /// Limits on sizes, times and numbers. Everything that can grow has one.
    limits: Limits => Limits,
    /// Admission: when a request is queued, and when it is refused.
    admission: Admission => Admission,
    /// API keys, by their hashes. While there is none, and `admission.keys_file` names no file, every caller is
    /// admitted.
    keys: Vec<KeySection> => Vec<Key>,
    /// TLS of the data port and towards the workers.
    tls: TlsSection => Tls,
    /// Capture of the traffic, for `tailroute replay`.
    capture: Capture => Option<Capture>,
    /// Record of recent decisions, and who may request the terms of one.
    explain: Explain => Explain,
    /// Traces of requests, sent to a collector.
    traces: Traces<String> => Option<Traces>,
    /// Other replicas of this router, in front of the same workers.
    fleet: Fleet<String, String> => Option<Fleet>,
    /// Log, on standard error.
    log: Log => Log,
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
