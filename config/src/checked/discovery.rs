//! Sources of discovered workers, and the settings of those workers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;

use super::base_url::base_url;
use super::checker::Checker;
use super::worker::{self, Worker};
use crate::load::{LoadError, read_list};
use crate::problem::{Origin, Problem, Problems};
use crate::schema::Schema;
use crate::tree::{Node, Value};
use crate::validate::{nearest, validate};
use crate::written::{self, Scheme};

/// Longest name of a Kubernetes object or DNS record.
const LONGEST_NAME: usize = 253;
const LONGEST_SELECTOR: usize = 1_024;
/// Most names of Services or records.
const MOST_NAMES: usize = 64;
/// Keys of `[[workers]]` that annotations may not set: annotating a pod must not determine which files are read, or
/// which other hosts the router connects to.
const NOT_ANNOTATED: [&str; 6] = [
    "api_key_file",
    "calibration",
    "kv_events",
    "kv_events_replay",
    "name",
    "url",
];

/// Section with the settings of every discovered worker.
const SECTION: &str = "discovery.worker";

/// Settings of discovery.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovery {
    /// Most discovered workers from all sources together; positive.
    pub max_workers: usize,
    /// Settings of workers that come without their own.
    pub template: Template,
    /// Kubernetes, if enabled.
    pub kubernetes: Option<Kubernetes>,
    /// DNS, if enabled.
    pub dns: Option<Dns>,
    /// File, if enabled.
    pub file: Option<PathBuf>,
}

impl Discovery {
    /// Returns whether any source is enabled.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.kubernetes.is_some() || self.dns.is_some() || self.file.is_some()
    }
}

/// What is watched on a Kubernetes API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Kubernetes {
    /// Objects that name workers.
    pub watched: Watched,
    /// Namespace; `None`: the router's own.
    pub namespace: Option<String>,
    /// Port of the workers; `None`: the only one.
    pub port: Option<Port>,
    /// Scheme of the workers' urls.
    pub scheme: Scheme,
    /// API server; `None`: that of the router's own cluster.
    pub api: Option<Api>,
}

/// Kubernetes objects that name workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The EndpointSlices of these Services; never empty.
    Services(Vec<String>),
    /// Pods by this label selector.
    Pods(String),
}

/// A port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// By number; positive.
    Number(u16),
    /// By name.
    Name(String),
}

impl Port {
    /// Parses a number from 1 to 65535, or a Kubernetes port name.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse::<u16>() {
            return (number > 0).then_some(Self::Number(number));
        }
        let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = (1..=63).contains(&text.len())
            && text.bytes().all(named)
            && text.bytes().any(|byte| byte.is_ascii_lowercase());
        is_name.then(|| Self::Name(text.to_owned()))
    }
}

/// A configured API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Api {
    /// Url of the server.
    pub url: Uri,
    /// File with its token.
    pub token_file: Option<PathBuf>,
    /// File with roots for its certificate.
    pub ca: Option<PathBuf>,
}

/// DNS queries for workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Dns {
    /// Names of SRV records; never empty.
    pub names: Vec<String>,
    /// Time between two queries; positive.
    pub interval: Duration,
    /// Time limit for a response; positive.
    pub timeout: Duration,
    /// DNS server; `None`: those of the system.
    pub server: Option<SocketAddr>,
    /// Scheme of the workers' urls.
    pub scheme: Scheme,
}

/// Settings of workers that come without their own.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    worker: written::Worker,
    /// Keys that were set.
    keys: Vec<String>,
}

impl Template {
    /// Returns the worker of this name and url, once for each of its ranks. `changes` overrides keys of `[[workers]]`,
    /// which are spelled with dashes; `prefix` precedes them in problems.
    ///
    /// # Errors
    /// Everything that is wrong with the settings.
    pub fn workers(
        &self,
        name: &str,
        url: &str,
        changes: &BTreeMap<String, String>,
        prefix: &str,
    ) -> Result<Vec<Worker>, Problems> {
        let mut problems = Problems::default();
        let mut table = toml::Table::try_from(&self.worker).unwrap_or_default();
        let mut keys = self.keys.clone();
        for (key, value) in annotated(changes, prefix, &mut problems) {
            keys.push(key.clone());
            table.insert(key, value);
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        table.insert("name".to_owned(), name.into());
        table.insert("url".to_owned(), url.into());
        let written = table.try_into::<written::Worker>();
        let written = written.map_err(|error| one(prefix, error.message()))?;
        let origins = keys
            .into_iter()
            .map(|key| (format!("workers[0].{key}"), Origin::Nowhere));
        let mut checker = Checker {
            origins: &origins.collect(),
            problems: &mut problems,
        };
        let workers = worker::check_all(vec![written], &mut checker);
        if problems.is_empty() {
            return Ok(workers);
        }
        let mut told = Problems::default();
        for problem in &problems {
            told.push(Problem {
                path: said_at(&problem.path, changes, prefix),
                ..problem.clone()
            });
        }
        Err(told)
    }
}

/// Returns where a key was set: by an annotation, or in the section.
fn said_at(path: &str, changes: &BTreeMap<String, String>, prefix: &str) -> String {
    let key = path.strip_prefix("workers[0].").unwrap_or(path);
    let name = key.replace('_', "-");
    if changes.contains_key(&name) {
        format!("{prefix}{name}")
    } else {
        format!("{SECTION}.{key}")
    }
}

fn one(path: &str, what: &str) -> Problems {
    let mut problems = Problems::default();
    problems.push(Problem {
        origin: Origin::Nowhere,
        path: path.to_owned(),
        what: what.to_owned(),
        hint: None,
    });
    problems
}

/// Converts annotations to keys of `[[workers]]`.
fn annotated(
    changes: &BTreeMap<String, String>,
    prefix: &str,
    problems: &mut Problems,
) -> Vec<(String, toml::Value)> {
    let schema = crate::schema::schema_of::<written::Worker>();
    let schema = Schema::of(&schema);
    let allowed = |key: &str| !NOT_ANNOTATED.contains(&key);
    let mut read = Vec::new();
    for (name, text) in changes {
        let (key, path) = (name.replace('-', "_"), format!("{prefix}{name}"));
        let Some(property) = schema.property(&key).filter(|_| allowed(&key)) else {
            let names = schema
                .properties()
                .map(|(name, _)| name)
                .filter(|name| allowed(name));
            let hint = nearest(&key, names)
                .map(|name| format!("did you mean `{prefix}{}`?", name.replace('_', "-")));
            problems.push(Problem {
                origin: Origin::Nowhere,
                path: crate::problem::shortened(path),
                what: "not an annotation that is read".to_owned(),
                hint,
            });
            continue;
        };
        let leaf = |text: &str| Node {
            origin: Origin::Query { name: path.clone() },
            value: Value::Text(text.trim().to_owned()),
        };
        let mut node = leaf(text);
        if property.kind() == "array" {
            let elements = text.split(',').filter(|text| !text.trim().is_empty());
            node.value = Value::List(elements.map(leaf).collect());
        }
        let mut wrong = Problems::default();
        if validate(&mut node, property, &path, &mut wrong) {
            read.push((key, node.to_toml()));
        }
        for problem in &wrong {
            problems.push(Problem {
                origin: Origin::Nowhere,
                ..problem.clone()
            });
        }
    }
    read
}

/// Reads a file of workers: TOML, or JSON if its name ends in `.json`.
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub fn read_workers(path: &Path) -> Result<Vec<Worker>, LoadError> {
    let mut read = read_list::<written::WorkersFile>(path)?;
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

pub(super) fn discovery(written: written::Discovery, checker: &mut Checker<'_>) -> Discovery {
    Discovery {
        max_workers: written.max_workers as usize,
        template: template(written.worker, checker),
        kubernetes: kubernetes(written.kubernetes, checker),
        dns: dns(written.dns, checker),
        file: (!written.file.path.is_empty()).then(|| written.file.path.into()),
    }
}

/// Checks the common settings on a placeholder worker.
fn template(worker: written::Worker, checker: &mut Checker<'_>) -> Template {
    let prefix = format!("{SECTION}.");
    let keys = checker.origins.keys();
    let keys = keys
        .filter_map(|key| key.strip_prefix(&prefix))
        .map(str::to_owned);
    let template = Template {
        keys: keys.collect(),
        worker,
    };
    if !matches!(template.worker.kv_events.as_str(), "auto" | "off") {
        let what = format!("expected auto or off, found {:?}", template.worker.kv_events);
        let hint = "a publisher is one worker's own: let the workers be asked for it, or list them in discovery.file";
        checker.report(&format!("{prefix}kv_events"), what, Some(hint.to_owned()));
        return template;
    }
    if let Err(found) = template.workers("a", "http://a:1", &BTreeMap::new(), "") {
        for problem in &found {
            checker.report(&problem.path, problem.what.clone(), problem.hint.clone());
        }
    }
    template
}

fn kubernetes(written: written::Kubernetes, checker: &mut Checker<'_>) -> Option<Kubernetes> {
    let path = |key: &str| format!("discovery.kubernetes.{key}");
    let is_name = |name: &str| {
        let fits =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
        (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(fits)
    };
    let expected = "expected a name of lower case letters, digits, `-` and `.`";
    for (at, name) in written
        .services
        .iter()
        .enumerate()
        .filter(|(_, name)| !is_name(name))
    {
        let what = format!("{expected}, found {name:?}");
        checker.report(&format!("{}[{at}]", path("services")), what, None);
    }
    few(&written.services, &path("services"), checker);
    if !written.namespace.is_empty() && !is_name(&written.namespace) {
        let what = format!("{expected}, found {:?}", written.namespace);
        checker.report(&path("namespace"), what, None);
    }
    let port = (!written.port.is_empty()).then(|| Port::read(&written.port));
    if port == Some(None) {
        let what = format!(
            "expected a number from 1 to 65535, or a port's name such as http, found {:?}",
            written.port
        );
        checker.report(&path("port"), what, None);
    }
    let pods = written.pods.trim();
    let visible = pods.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if pods.len() > LONGEST_SELECTOR || !visible {
        let what =
            format!("expected a label selector of at most {LONGEST_SELECTOR} visible ASCII characters");
        checker.report(
            &path("pods"),
            what,
            Some("as in app=vllm,role!=canary".to_owned()),
        );
    }
    let api = api(&written, checker);
    let watched = match (written.services.is_empty(), pods.is_empty()) {
        (true, true) => return None,
        (false, true) => Watched::Services(written.services),
        (true, false) => Watched::Pods(pods.to_owned()),
        (false, false) => {
            let what = "stands beside discovery.kubernetes.services, which names the same pods".to_owned();
            checker.report(&path("pods"), what, Some("leave one of the two out".to_owned()));
            return None;
        }
    };
    Some(Kubernetes {
        watched,
        namespace: (!written.namespace.is_empty()).then_some(written.namespace),
        port: port.flatten(),
        scheme: written.scheme,
        api,
    })
}

/// Returns the configured API server, if any.
fn api(written: &written::Kubernetes, checker: &mut Checker<'_>) -> Option<Api> {
    let path = |key: &str| format!("discovery.kubernetes.{key}");
    let file = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let (token_file, ca) = (file(&written.token_file), file(&written.ca_file));
    if written.api_url.is_empty() {
        for (key, given) in [("token_file", &token_file), ("ca_file", &ca)] {
            if given.is_some() {
                let what = "is for the server of discovery.kubernetes.api_url, which is not set".to_owned();
                let hint = "leave it out: in a cluster the service account's own is read".to_owned();
                checker.report(&path(key), what, Some(hint));
            }
        }
        return None;
    }
    let url = base_url(&written.api_url);
    let url = url.map_err(|(what, hint)| checker.report(&path("api_url"), what, hint.map(str::to_owned)));
    let url = url.ok()?;
    if url.scheme_str() != Some("https") {
        if ca.is_some() {
            let what =
                "stands beside an api_url that is not `https`, whose certificate nobody looks at".to_owned();
            checker.report(
                &path("ca_file"),
                what,
                Some("leave one of the two out".to_owned()),
            );
        }
        if token_file.is_some() {
            let what = "stands beside an api_url that is not `https`, where anybody could read it".to_owned();
            checker.report(
                &path("token_file"),
                what,
                Some("write https, or leave it out".to_owned()),
            );
        }
    }
    Some(Api { url, token_file, ca })
}

fn dns(written: written::Dns, checker: &mut Checker<'_>) -> Option<Dns> {
    let path = |key: &str| format!("discovery.dns.{key}");
    for (at, name) in written.srv.iter().enumerate() {
        let label = |label: &str| {
            (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let bare = name.strip_suffix('.').unwrap_or(name);
        if bare.len() > LONGEST_NAME || !bare.split('.').all(label) {
            let what = format!(
                "expected a name such as _http._tcp.vllm.inference.svc.cluster.local, found {name:?}"
            );
            checker.report(&format!("{}[{at}]", path("srv")), what, None);
        }
    }
    few(&written.srv, &path("srv"), checker);
    let interval = checker.seconds(&path("interval_s"), written.interval_s);
    let timeout = checker.seconds(&path("timeout_s"), written.timeout_s);
    let server = (!written.server.is_empty()).then(|| checker.address(&path("server"), &written.server));
    (!written.srv.is_empty()).then_some(Dns {
        names: written.srv,
        interval,
        timeout,
        server,
        scheme: written.scheme,
    })
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
