//! Discovery by a Kubernetes API server: `[discovery.kubernetes]`.

use std::path::PathBuf;

use http::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::{LONGEST_NAME, check_list};
use super::scheme::Scheme;
use crate::sections::as_written::{AsPath, AsText};
use crate::sections::checker::Checker;

const LONGEST_SELECTOR: usize = 1_024;

/// Workers of a Kubernetes API server: the endpoints of Services, or pods. They are watched, so that changes apply at
/// once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Kubernetes", deny_unknown_fields)]
pub(crate) struct KubernetesSection {
    /// Services whose EndpointSlices are watched. Empty: none.
    pub services: Vec<String>,
    /// Label selector of pods to watch, as in `app=vllm,role!=canary`; their annotations can set more
    /// (docs/kubernetes.md). Empty: none.
    pub pods: String,
    /// Namespace of the Services and pods. Empty: the router's own namespace.
    #[serde(with = "AsText")]
    pub namespace: Option<String>,
    /// Port of the workers, by name or number. Empty: their only port.
    #[serde(with = "AsText")]
    pub port: Option<String>,
    /// Scheme of the workers' urls.
    pub scheme: Scheme,
    /// API server.
    #[serde(flatten)]
    pub api: Api<String>,
}

/// Services or pods to watch on a Kubernetes API server.
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
    /// Pods that match this label selector.
    Pods(String),
}

/// Port of a pod or a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// By number; positive.
    Number(u16),
    /// By name.
    Name(String),
}

impl Port {
    /// Parses a number from 1 to 65535, or a Kubernetes port name.
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(bound = "Self: Default, Url: Serialize + JsonSchema")]
pub struct Api<Url = Uri> {
    /// Url of the API server, as in `http://127.0.0.1:8001` for `kubectl proxy`. Empty: that of the router's own
    /// cluster, with the token and the certificate of its service account.
    #[serde(rename = "api_url")]
    pub url: Url,
    /// File with a token for the server of `api_url`, read again every minute. Empty: none.
    #[serde(with = "AsPath")]
    pub token_file: Option<PathBuf>,
    /// Root certificates (PEM) for an `https` server of `api_url`. Empty: the system's roots.
    #[serde(rename = "ca_file", with = "AsPath")]
    pub ca: Option<PathBuf>,
}

impl KubernetesSection {
    /// Checks the section; `None` if it selects nothing.
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Option<Kubernetes> {
        let port = self.check_names(checker);
        let api = self.api.checked(checker);
        let pods = self.pods.trim();
        let watched = match (self.services.is_empty(), pods.is_empty()) {
            (true, true) => return None,
            (false, true) => Watched::Services(self.services),
            (true, false) => Watched::Pods(pods.to_owned()),
            (false, false) => {
                let what = "is set together with discovery.kubernetes.services, which selects the same pods";
                let hint = "remove one of the two".to_owned();
                checker.report("discovery.kubernetes.pods", what.to_owned(), Some(hint));
                return None;
            }
        };
        Some(Kubernetes {
            watched,
            namespace: self.namespace,
            port,
            scheme: self.scheme,
            api,
        })
    }

    /// Checks the names of Kubernetes objects. Returns the port.
    fn check_names(&self, checker: &mut Checker<'_>) -> Option<Port> {
        let path = |key: &str| format!("discovery.kubernetes.{key}");
        let expected = "expected a name of lower case letters, digits, `-` and `.`";
        let services = self.services.iter().enumerate();
        for (at, name) in services.filter(|(_, name)| !is_name(name)) {
            let what = format!("{expected}, found {name:?}");
            checker.report(&format!("{}[{at}]", path("services")), what, None);
        }
        check_list(&self.services, &path("services"), checker);
        if let Some(name) = self.namespace.as_ref().filter(|name| !is_name(name)) {
            checker.report(&path("namespace"), format!("{expected}, found {name:?}"), None);
        }
        let port = self.port.as_deref().map(Port::read);
        if let (Some(text), Some(None)) = (&self.port, &port) {
            let what =
                format!("expected a number from 1 to 65535, or a port's name such as http, found {text:?}");
            checker.report(&path("port"), what, None);
        }
        let pods = self.pods.trim();
        let visible = pods.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if pods.len() > LONGEST_SELECTOR || !visible {
            let what =
                format!("expected a label selector of at most {LONGEST_SELECTOR} visible ASCII characters");
            let hint = "as in app=vllm,role!=canary".to_owned();
            checker.report(&path("pods"), what, Some(hint));
        }
        port.flatten()
    }
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(fits)
}

impl Api<String> {
    /// Checks the keys; `None` if there is no url.
    fn checked(self, checker: &mut Checker<'_>) -> Option<Api> {
        let path = |key: &str| format!("discovery.kubernetes.{key}");
        if self.url.is_empty() {
            for (key, given) in [("token_file", &self.token_file), ("ca_file", &self.ca)] {
                if given.is_some() {
                    let what = "applies to discovery.kubernetes.api_url, which is not set".to_owned();
                    let hint = "remove it: in a cluster the service account's own file is read".to_owned();
                    checker.report(&path(key), what, Some(hint));
                }
            }
            return None;
        }
        let url = checker.url(&path("api_url"), &self.url)?;
        let is_encrypted = url.scheme_str() == Some("https");
        if !is_encrypted && self.ca.is_some() {
            let what = "is set with an api_url that is not `https`, so no certificate is verified".to_owned();
            checker.report(&path("ca_file"), what, Some("remove one of the two".to_owned()));
        }
        if !is_encrypted && self.token_file.is_some() {
            let what =
                "is set with an api_url that is not `https`, so it would be sent unencrypted".to_owned();
            let hint = "write https, or leave it out".to_owned();
            checker.report(&path("token_file"), what, Some(hint));
        }
        Some(Api {
            url,
            token_file: self.token_file,
            ca: self.ca,
        })
    }
}
