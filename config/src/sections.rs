//! The sections of the configuration, one file each.
//!
//! A key is a field of its section, with its bounds (`schemars`), its default, and a doc comment for operators, which
//! is its description in the schema and in docs/configuration.md. Most sections are one struct, whose fields have the
//! types that the router uses ([`as_written`] says how they are written). A section with texts to parse or files to
//! read is two structs: `…Section` as written, and its checked form. Times that feed the policies are `Millis`; times
//! that bound sockets are `Duration`, as tokio takes them.
//!
//! The schema checks ranges first; the sections check texts, and values that must agree with each other. For an invalid
//! value a default is used while the check continues. A configuration with problems is never returned.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::problem::{Origin, Problems};

mod admin;
mod admission;
mod as_written;
mod base_url;
mod calibration;
mod checker;
mod discovery;
mod endpoint_picker;
mod engine;
mod failure;
mod fleet;
mod health;
mod http;
mod index;
mod keys;
mod learning;
mod limits;
mod objective;
mod output;
mod own_ports;
mod routing;
mod secret;
mod server;
mod tls;
mod traces;
mod worker;

pub use admin::{Admin, Audit, Role, Token};
pub use admission::Admission;
pub(crate) use checker::Checker;
pub use discovery::{Api, Discovery, Dns, Kubernetes, Port, Scheme, Template, Watched, read_workers};
pub use endpoint_picker::EndpointPicker;
pub use engine::{CachePolicy, Dialect, Priority};
pub use failure::Failure;
pub use fleet::Fleet;
pub use health::Health;
pub use http::{ANY_ORIGIN, Forwarded, Http, Network};
pub use index::{IndexConfig, Snapshot};
pub(crate) use keys::KeySection;
pub use keys::{Key, KeyDigest, Rate};
pub use learning::{Hints, Learning};
pub use limits::Limits;
pub use objective::{Class, Objective};
pub use output::{Capture, Explain, Log, LogFormat, level_problem};
pub(crate) use routing::misnamed;
pub use routing::{OF_HEADER, Requests, Routing, UnlistedModels};
pub use secret::Secret;
pub use server::Server;
pub use tls::{Identity, ServerTls, Tls, WorkersTls};
pub use traces::{OtlpProtocol, Traces};
pub use worker::{KvEvents, Worker};
pub(crate) use worker::{WorkerSection, worker};

use self::admin::{AdminSection, admin};
use self::admission::{AdmissionSection, admission};
use self::discovery::{DiscoverySection, discovery};
use self::endpoint_picker::{EndpointPickerSection, endpoint_picker};
use self::fleet::{FleetSection, fleet};
use self::http::{HttpSection, http};
use self::index::{IndexSection, index};
use self::keys::keys;
use self::output::{CaptureSection, capture};
use self::server::{ServerSection, server};
use self::tls::{TlsSection, tls};
use self::traces::{TracesSection, traces};

/// Configuration of tailroute: its ports, the workers it routes to, and how it selects among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    /// Data port: serves the inference APIs (OpenAI's, Anthropic's and the engines' own), health checks and
    /// `http.extra_paths`. It has no metrics and no administration.
    pub server: ServerSection,
    /// Admin port: metrics, health of the router itself, administration. Keep it off public networks.
    pub admin: AdminSection,
    /// Port at which Envoy-based gateways ask for the worker of a request (`ext_proc`, docs/endpoint-picker.md).
    pub endpoint_picker: EndpointPickerSection,
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
    pub index: IndexSection,
    /// Health probes of the workers.
    pub health: Health,
    /// Handling of failing workers: deadlines, retries, breakers, slow starts, hedges.
    pub failure: Failure,
    /// HTTP between clients and workers: forwarded client information and extra paths.
    pub http: HttpSection,
    /// Limits on sizes, times and numbers. Everything that can grow has one.
    pub limits: Limits,
    /// Admission: when a request is queued, and when it is refused.
    pub admission: AdmissionSection,
    /// API keys, by their hashes. While there is none, and `admission.keys_file` names no file, every caller is
    /// admitted.
    pub keys: Vec<KeySection>,
    /// TLS of the data port and towards the workers.
    pub tls: TlsSection,
    /// Capture of the traffic, for `tailroute replay`.
    pub capture: CaptureSection,
    /// Record of recent decisions, and who may request the terms of one.
    pub explain: Explain,
    /// Traces of requests, sent to a collector.
    pub traces: TracesSection,
    /// Other replicas of this router, in front of the same workers.
    pub fleet: FleetSection,
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

/// Checks a written configuration. The result is valid only if `problems` stays empty.
pub(crate) fn check(file: File, origins: &BTreeMap<String, Origin>, problems: &mut Problems) -> Config {
    let mut checker = Checker { origins, problems };
    let server = server(file.server, &mut checker);
    let admin = admin(file.admin, &mut checker);
    if server.listen == admin.listen && server.listen.port() != 0 {
        let what = format!("{} is also the data port; expected a separate port", admin.listen);
        checker.report("admin.listen", what, None);
    }
    let discovery = discovery(file.discovery, &mut checker);
    if file.workers.is_empty() && !discovery.is_on() {
        let hint =
            "add a [[workers]] section with a url, give --worker http://host:port, or set up [discovery]"
                .to_owned();
        checker.report(
            "workers",
            "no workers; expected at least one".to_owned(),
            Some(hint),
        );
    }
    let urls: Vec<_> = file.workers.iter().map(|worker| worker.url.clone()).collect();
    let workers = worker::check_all(file.workers, &mut checker);
    let objective = file.objective.checked(&mut checker);
    routing::check_overrides(&file.routing, &objective.classes, &mut checker);
    let tls = tls(file.tls, &mut checker);
    let picker = endpoint_picker(&file.endpoint_picker, &server, &admin, &tls, &urls, &mut checker);
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
        routing: file.routing,
        objective,
        hints: file.hints,
        learning: file.learning,
        index: index(file.index, &mut checker),
        health: file.health.checked(&mut checker),
        failure: file.failure.checked(&mut checker),
        http: http(file.http, &mut checker),
        limits: file.limits.checked(&mut checker),
        keys: keys(file.keys, &file.admission.keys_file, &mut checker),
        admission: admission(file.admission, &mut checker),
        tls,
        capture: capture(file.capture, &mut checker),
        explain: file.explain,
        traces: traces(file.traces, &mut checker),
        fleet: fleet(file.fleet, &mut checker),
        log: file.log.checked(&mut checker),
    }
}
