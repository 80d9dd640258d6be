//! The sections of the configuration, one file each.
//!
//! A key is a field of its section, with its bounds (`schemars`), its default, and a doc comment that operators read: it is the
//! key's description in the schema and in docs/configuration.md. A section whose keys stand by themselves is one struct, whose
//! fields have the types that the router works with ([`as_written`] says how they are written). One with texts that have a
//! grammar of their own, or files to read, is two: `…Section` as it is written, and what it means.
//!
//! Times that feed the policies are `Millis`; times that bound sockets are `Duration`, as tokio takes them.
//!
//! Ranges of single numbers are the schema's business and are checked before anything here; what is left are texts with a
//! grammar, and values that must agree with each other. Where one is wrong the problem is noted, a default stands in, and the
//! rest is still checked; nothing that was put together with a stand-in is ever returned.

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
pub use http::{Forwarded, Http, Network};
pub use index::{IndexConfig, Snapshot};
pub(crate) use keys::KeySection;
pub use keys::{Key, KeyDigest, Rate};
pub use learning::{Hints, Learning};
pub use limits::Limits;
pub use objective::{Class, Objective};
pub use output::{Capture, Explain, Log, LogFormat, level_problem};
pub(crate) use routing::misnamed;
pub use routing::{Requests, Routing};
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

/// Configuration of tailroute: where it listens, the workers it routes to, and how it chooses between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    /// The data port: serves the OpenAI API and nothing else.
    pub server: ServerSection,
    /// The admin port: metrics, health of the router itself, administration. Keep it off public networks.
    pub admin: AdminSection,
    /// A port where Envoy-based gateways ask which worker a request should go to (`ext_proc`, docs/endpoint-picker.md).
    pub endpoint_picker: EndpointPickerSection,
    /// The inference workers, one section each. At least one, here or in the environment or on the command line, unless
    /// `[discovery]` finds them.
    pub workers: Vec<WorkerSection>,
    /// Workers that are found while the router serves: in Kubernetes, in the DNS, in a file.
    pub discovery: DiscoverySection,
    /// How a worker is chosen for a turn.
    pub routing: Routing,
    /// The time to first token to be met, and for which share of turns.
    pub objective: Objective,
    /// What workers are told about the cache they may drop first.
    pub hints: Hints,
    /// What the router learns from answers while it serves.
    pub learning: Learning,
    /// The index of which worker holds which prefix.
    pub index: IndexSection,
    /// The probes that find out whether a worker can be sent requests.
    pub health: Health,
    /// What is done about workers that fail: deadlines, retries, breakers, slow starts, hedges.
    pub failure: Failure,
    /// What workers are told of clients, and which paths clients may ask for.
    pub http: HttpSection,
    /// Bounds on sizes, times and numbers. Nothing that grows is without one.
    pub limits: Limits,
    /// When a request waits here, and when it is turned away.
    pub admission: AdmissionSection,
    /// Who may come in: API keys, by their hashes. As long as there is none, and `admission.keys_file` names no file,
    /// everybody may.
    pub keys: Vec<KeySection>,
    /// Encryption, of the data port and towards the workers.
    pub tls: TlsSection,
    /// A capture of the traffic, for `tailroute replay`.
    pub capture: CaptureSection,
    /// The record of recent decisions, and who may ask for the terms of one.
    pub explain: Explain,
    /// Traces of requests, sent to a collector.
    pub traces: TracesSection,
    /// Other replicas of this router, before the same workers.
    pub fleet: FleetSection,
    /// The log, on standard error.
    pub log: Log,
}

/// A configuration without mistakes. There is at least one worker, or somewhere to find them; names and urls are unique.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The data port.
    pub server: Server,
    /// The admin port; not the data port.
    pub admin: Admin,
    /// The port where gateways ask for workers, if there is to be one.
    pub endpoint_picker: Option<EndpointPicker>,
    /// The workers, in the order in which they were written. Not empty unless they are discovered.
    pub workers: Vec<Worker>,
    /// Where others are found.
    pub discovery: Discovery,
    /// How a worker is chosen.
    pub routing: Routing,
    /// What has to be met.
    pub objective: Objective,
    /// What workers are told.
    pub hints: Hints,
    /// What is learned.
    pub learning: Learning,
    /// The index of prefixes.
    pub index: IndexConfig,
    /// Probes of the workers.
    pub health: Health,
    /// What is done about workers that fail.
    pub failure: Failure,
    /// HTTP between clients and workers.
    pub http: Http,
    /// Bounds.
    pub limits: Limits,
    /// When a request waits, and when it is turned away.
    pub admission: Admission,
    /// Who may come in. Empty means everybody, unless `admission` names a file of keys, which then has none.
    pub keys: Vec<Key>,
    /// Encryption.
    pub tls: Tls,
    /// The capture, if there is to be one.
    pub capture: Option<Capture>,
    /// The record of decisions.
    pub explain: Explain,
    /// Traces, if they are to be sent anywhere.
    pub traces: Option<Traces>,
    /// Other replicas, if there are to be any.
    pub fleet: Option<Fleet>,
    /// The log.
    pub log: Log,
}

impl Config {
    /// Whether callers have to show a key.
    #[must_use]
    pub fn requires_keys(&self) -> bool {
        !self.keys.is_empty() || self.admission.keys_file.is_some()
    }
}

/// Checks what `file` means. The result is whole only if `problems` stays empty.
pub(crate) fn check(file: File, origins: &BTreeMap<String, Origin>, problems: &mut Problems) -> Config {
    let mut checker = Checker { origins, problems };
    let server = server(file.server, &mut checker);
    let admin = admin(file.admin, &mut checker);
    if server.listen == admin.listen && server.listen.port() != 0 {
        let what = format!(
            "{} is the data port as well; expected a port of its own",
            admin.listen
        );
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
    Config {
        endpoint_picker: endpoint_picker(
            &file.endpoint_picker,
            (&server, &admin),
            &tls,
            &urls,
            &mut checker,
        ),
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
