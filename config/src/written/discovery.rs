//! Workers that are found while the router serves: `[discovery]`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Worker;

/// Workers that are found while the router serves, beside those of `[[workers]]`: they join when a source names them, get
/// nothing new while it calls them not ready, and end what they have and leave when it no longer names them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// Most workers that are taken from all sources together. Those that come later are left out, and
    /// `GET /admin/v1/discovery` says so.
    #[schemars(range(min = 1, max = 5_000))]
    pub max_workers: u32,
    /// What is taken of every worker that Kubernetes or DNS names.
    #[schemars(schema_with = "template")]
    pub worker: Worker,
    /// Workers that a Kubernetes API server names.
    pub kubernetes: Kubernetes,
    /// Workers that SRV records of the DNS name.
    pub dns: Dns,
    /// Workers that a file lists.
    pub file: WatchedFile,
}

impl Default for Discovery {
    fn default() -> Self {
        Self {
            max_workers: 1_000,
            worker: Worker::default(),
            kubernetes: Kubernetes::default(),
            dns: Dns::default(),
            file: WatchedFile::default(),
        }
    }
}

/// Workers that a Kubernetes API server names: the endpoints of Services, or pods. Watched, so that a change is in force
/// at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// Services whose EndpointSlices are watched. Empty: none.
    pub services: Vec<String>,
    /// Label selector of pods that are watched, as in `app=vllm,role!=canary`; their annotations may say more of each
    /// (docs/kubernetes.md). Empty: none.
    pub pods: String,
    /// Where both are. Empty: the router's own namespace.
    pub namespace: String,
    /// Port of the workers, by name or number. Empty: the only one that there is.
    pub port: String,
    /// How workers are spoken to.
    pub scheme: Scheme,
    /// Url of the API server, as in `http://127.0.0.1:8001` for `kubectl proxy`. Empty: the cluster's that the router runs
    /// in, with the token and the certificate of its service account.
    pub api_url: String,
    /// File with a token for the server of `api_url`, read again every minute. Empty: none.
    pub token_file: String,
    /// Certificates (PEM) that the certificate of an `https` server of `api_url` has to lead to. Empty: the machine's own
    /// roots.
    pub ca_file: String,
}

/// Workers that SRV records name. Asked for again and again, since DNS tells nobody of a change, but not while the time to
/// live of the last answer lasts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// Names of the records, as in `_http._tcp.vllm.inference.svc.cluster.local`. Empty: none.
    pub srv: Vec<String>,
    /// Seconds between two questions, at least; records are kept for their time to live.
    #[schemars(range(min = 0.05, max = 3_600))]
    pub interval_s: f64,
    /// Seconds for an answer, before the next server is asked.
    #[schemars(range(min = 0.05, max = 60))]
    pub timeout_s: f64,
    /// Address and port of the server to ask, as in `10.96.0.10:53`. Empty: those of `/etc/resolv.conf`.
    pub server: String,
    /// How workers are spoken to. `https` goes by the name that the record gives, `http` by its address.
    pub scheme: Scheme,
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            srv: Vec::new(),
            interval_s: 5.0,
            timeout_s: 2.0,
            server: String::new(),
            scheme: Scheme::default(),
        }
    }
}

/// Workers that a file lists: `[[workers]]` sections in TOML, or `{"workers": […]}` in a file whose name ends in `.json`,
/// with the keys that they have here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WatchedFile {
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
pub struct WorkersFile {
    /// The workers: `workers = []` for none.
    pub workers: Vec<Worker>,
}

/// Keys of `[[workers]]` that are each worker's own.
const EACH_ITS_OWN: [&str; 3] = ["name", "url", "kv_events_replay"];

fn template(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = Worker::json_schema(generator).to_value();
    if let Some(properties) = schema.pointer_mut("/properties").and_then(Json::as_object_mut) {
        properties.retain(|key, _| !EACH_ITS_OWN.contains(&key.as_str()));
    }
    if let Some(entries) = schema.as_object_mut() {
        entries.remove("required");
        entries.remove("default");
        let description = "What is taken of every worker that Kubernetes or DNS names: the keys of `[[workers]]`, but for \
                           those that are each one's own.";
        entries.insert("description".to_owned(), Json::from(description));
        entries.insert("additionalProperties".to_owned(), Json::from(false));
    }
    Schema::try_from(schema).unwrap_or_default()
}
