//! Discovery of workers: `[discovery]`.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Worker;

/// Workers discovered while the router serves, beside those of `[[workers]]`. They join when a source lists them, get
/// no new turns while it reports them as not ready, and are drained and removed when it no longer lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Discovery {
    /// Most discovered workers from all sources together. Further ones are left out, and `GET /admin/v1/discovery`
    /// lists them.
    #[schemars(range(min = 1, max = 5_000))]
    pub max_workers: u32,
    /// Settings of every worker that is discovered in Kubernetes or DNS.
    #[schemars(schema_with = "template")]
    pub worker: Worker,
    /// Discovery in Kubernetes.
    pub kubernetes: Kubernetes,
    /// Discovery by SRV records.
    pub dns: Dns,
    /// Discovery from a file.
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

/// Workers of a Kubernetes API server: the endpoints of Services, or pods. They are watched, so that changes apply at
/// once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// Services whose EndpointSlices are watched. Empty: none.
    pub services: Vec<String>,
    /// Label selector of pods to watch, as in `app=vllm,role!=canary`; their annotations can set more
    /// (docs/kubernetes.md). Empty: none.
    pub pods: String,
    /// Namespace of the Services and pods. Empty: the router's own namespace.
    pub namespace: String,
    /// Port of the workers, by name or number. Empty: their only port.
    pub port: String,
    /// Scheme of the workers' urls.
    pub scheme: Scheme,
    /// Url of the API server, as in `http://127.0.0.1:8001` for `kubectl proxy`. Empty: that of the router's own
    /// cluster, with the token and the certificate of its service account.
    pub api_url: String,
    /// File with a token for the server of `api_url`, read again every minute. Empty: none.
    pub token_file: String,
    /// Root certificates (PEM) for an `https` server of `api_url`. Empty: the system's roots.
    pub ca_file: String,
}

/// Workers listed by SRV records. DNS is polled, since it sends no notification of changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// Names of the records, as in `_http._tcp.vllm.inference.svc.cluster.local`. Empty: none.
    pub srv: Vec<String>,
    /// Seconds between two queries.
    #[schemars(range(min = 0.05, max = 3_600))]
    pub interval_s: f64,
    /// Seconds to wait for a response before the next server is queried.
    #[schemars(range(min = 0.05, max = 60))]
    pub timeout_s: f64,
    /// Address and port of the DNS server, as in `10.96.0.10:53`. Empty: those of `/etc/resolv.conf`.
    pub server: String,
    /// Scheme of the workers' urls. `https` connects by the name in the record, `http` by its address.
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

/// Workers listed in a file: `[[workers]]` sections in TOML, or `{"workers": […]}` in a file whose name ends in
/// `.json`, with the same keys as in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WatchedFile {
    /// Path of the file, which is checked twice a second; replacing a link, as in a mounted ConfigMap, counts as a
    /// change. An invalid file changes nothing. Empty: none.
    pub path: String,
}

/// Scheme of the workers' urls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Plain text.
    #[default]
    Http,
    /// TLS, with the settings of `[tls.workers]`.
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

/// Keys of `[[workers]]` that differ for each worker.
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
