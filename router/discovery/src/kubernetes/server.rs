//! The API server: URL, certificates, token and namespace. In a cluster they come from the environment and from files.

#![expect(
    clippy::disallowed_types,
    reason = "the API server is no worker, and no request of a client goes there"
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::uri::{PathAndQuery, Uri};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tailroute_http::error::with_causes;
use tailroute_http::tls::{self, Connector};

const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_TOKEN_BYTES: u64 = 64 << 10;

pub(super) struct ApiServer {
    pub(super) client: Client<Connector, Empty<Bytes>>,
    url: Uri,
    pub(super) token_file: Option<PathBuf>,
    pub(super) namespace: String,
}

impl ApiServer {
    /// Reads the settings and files for a connection, without connecting.
    pub(super) fn new(settings: &config::Kubernetes) -> Result<Self, String> {
        let account = |file: &str| PathBuf::from(format!("{ACCOUNT}/{file}"));
        let (url, token_file, ca, namespace) = match &settings.api {
            Some(api) => (
                api.url.clone(),
                api.token_file.clone(),
                api.ca.clone(),
                "default".to_owned(),
            ),
            None => {
                let namespace = config::file::read_text(&account("namespace"), MAX_TOKEN_BYTES);
                let namespace = namespace.map_err(|error| {
                    format!(
                        "{ACCOUNT}/namespace cannot be read ({error}): the router does not run in a pod, or runs \
                         without its service account's token (automountServiceAccountToken); set \
                         discovery.kubernetes.api_url outside of a cluster"
                    )
                })?;
                let url = of_environment(|name| std::env::var(name).ok())?;
                (
                    url,
                    Some(account("token")),
                    Some(account("ca.crt")),
                    namespace.trim().to_owned(),
                )
            }
        };
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        let connector = tls::towards_kubernetes(http, &url, ca.as_deref(), CONNECT_TIMEOUT);
        let connector = connector.map_err(|error| with_causes(&error))?;
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            url,
            token_file,
            namespace: settings.namespace.clone().unwrap_or(namespace),
        })
    }

    pub(super) fn at(&self, path: &str) -> Result<Uri, http::Error> {
        below(&self.url, path)
    }
}

fn below(base: &Uri, path: &str) -> Result<Uri, http::Error> {
    let text = format!("{}{path}", base.path().trim_end_matches('/'));
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(text.parse::<PathAndQuery>()?);
    Ok(Uri::from_parts(parts)?)
}

pub(super) fn token(path: &Path) -> Result<HeaderValue, String> {
    let shown = path.display();
    let text = config::file::read_text(path, MAX_TOKEN_BYTES);
    let text = text.map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let token = text.trim();
    let header = HeaderValue::from_str(&format!("Bearer {token}")).ok();
    let mut header = header
        .filter(|_| !token.is_empty())
        .ok_or_else(|| format!("{shown} contains no token"))?;
    header.set_sensitive(true);
    Ok(header)
}

fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Uri, String> {
    let read = |name: &str| {
        variable(name).ok_or_else(|| format!("{name} is not set: the router does not run in a pod"))
    };
    let (host, port) = (read("KUBERNETES_SERVICE_HOST")?, read("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    let url = format!("https://{host}:{port}");
    url.parse()
        .map_err(|_| format!("KUBERNETES_SERVICE_HOST and _PORT do not form a valid url: {url}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_pod_is_told_by_its_environment() {
        let of = |host: &str, port: &str| {
            let (host, port) = (host.to_owned(), port.to_owned());
            of_environment(move |name| {
                Some(if name.ends_with("HOST") {
                    host.clone()
                } else {
                    port.clone()
                })
            })
        };
        assert_eq!(of("10.96.0.1", "443").unwrap(), "https://10.96.0.1:443");
        assert_eq!(of("fd00::1", "6443").unwrap(), "https://[fd00::1]:6443");
        assert!(
            of_environment(|_| None)
                .unwrap_err()
                .contains("KUBERNETES_SERVICE_HOST is not set")
        );
    }

    #[test]
    fn a_path_is_below_the_url_of_the_server() {
        let base = "http://127.0.0.1:8001/cluster/".parse().unwrap();
        assert_eq!(
            below(&base, "/api/v1/pods?watch=true").unwrap(),
            "http://127.0.0.1:8001/cluster/api/v1/pods?watch=true"
        );
    }
}
