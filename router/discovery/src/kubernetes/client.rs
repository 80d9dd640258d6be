//! As much of a client of a Kubernetes API server as a list and a watch take.
//!
//! In a cluster the server is told by the environment, and a token, a certificate and a namespace are in a folder that the
//! kubelet keeps new; so each of them is read whenever it is needed. Whatever the server says is bounded in size and time.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION};
use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;

use tailroute_http::error::with_causes;
use tailroute_http::tls::{self, Connector};

/// Where a pod has what its service account may use.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// For a connection to come up.
const CONNECT: Duration = Duration::from_secs(5);
/// For an answer to a list, or the beginning of a watch.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest answer to a list.
const LONGEST_LIST: usize = 64 << 20;
/// Longest event of a watch: no object is longer than 1.5 MiB in etcd.
const LONGEST_EVENT: usize = 8 << 20;
/// Longest answer that says what is wrong.
const LONGEST_STATUS: usize = 64 << 10;
/// Longest token.
const LONGEST_TOKEN: u64 = 64 << 10;

/// An API server, and the namespace that is watched there.
pub(super) struct Server {
    client: Client<Connector, Empty<Bytes>>,
    url: Uri,
    token_file: Option<PathBuf>,
    pub(super) namespace: String,
}

/// Why the server did not do what it was asked for.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It said so.
    Said {
        /// The status.
        code: u16,
        /// What it said of it.
        message: String,
    },
    /// It could not be asked, or what it said cannot be understood.
    Failed(String),
}

/// As the server says that something is wrong.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) message: String,
}

impl Server {
    /// Prepares the connection; none is made yet.
    ///
    /// # Errors
    /// What is missing, in words.
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
                let namespace = config::file::read_text(&account("namespace"), LONGEST_TOKEN);
                let namespace = namespace.map_err(|error| {
                    format!(
                        "{ACCOUNT}/namespace cannot be read ({error}): the router runs in no pod, or without its service \
                         account's token (automountServiceAccountToken); set discovery.kubernetes.api_url outside of a cluster"
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
        let connector = tls::towards_kubernetes(http, &url, ca.as_deref(), CONNECT);
        let connector = connector.map_err(|error| with_causes(&error))?;
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            url,
            token_file,
            namespace: settings.namespace.clone().unwrap_or(namespace),
        })
    }

    /// Asks for a whole answer.
    pub(super) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Bytes, Refusal> {
        let answer = self.ask(path, query);
        let whole = async { read(answer.await?, LONGEST_LIST).await };
        tokio::time::timeout(PATIENCE, whole)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Asks for an answer that comes line by line.
    pub(super) async fn lines(&self, path: &str, query: &[(&str, &str)]) -> Result<Lines, Refusal> {
        let answer = tokio::time::timeout(PATIENCE, self.ask(path, query)).await;
        Ok(Lines {
            body: answer.unwrap_or_else(|_| Err(late()))?.into_body(),
            buffer: BytesMut::new(),
            searched: 0,
        })
    }

    async fn ask(&self, path: &str, query: &[(&str, &str)]) -> Result<Response<Incoming>, Refusal> {
        let failed = |error: &dyn std::fmt::Display| Refusal::Failed(error.to_string());
        let uri = at(&self.url, path, query).map_err(|error| failed(&error))?;
        let mut request = Request::get(uri).header(ACCEPT, "application/json");
        if let Some(token) = self.token().await? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::new()).map_err(|error| failed(&error))?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| Refusal::Failed(with_causes(&error)))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let body = read(answer, LONGEST_STATUS).await.unwrap_or_default();
        let status = serde_json::from_slice::<Status>(&body).unwrap_or_default();
        let message = status.message;
        Err(Refusal::Said { code, message })
    }

    async fn token(&self) -> Result<Option<HeaderValue>, Refusal> {
        let Some(path) = self.token_file.clone() else {
            return Ok(None);
        };
        let shown = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || config::file::read_text(&path, LONGEST_TOKEN));
        let read = read.await.map_err(|error| Refusal::Failed(error.to_string()))?;
        let text = read.map_err(|error| Refusal::Failed(format!("{shown} cannot be read: {error}")))?;
        let token = text.trim();
        let header = HeaderValue::from_str(&format!("Bearer {token}"))
            .ok()
            .filter(|_| !token.is_empty());
        let mut header = header.ok_or_else(|| Refusal::Failed(format!("{shown} holds no token")))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

fn late() -> Refusal {
    Refusal::Failed(format!("no answer within {} s", PATIENCE.as_secs()))
}

/// The server that the environment of a pod names.
fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Uri, String> {
    let read =
        |name: &str| variable(name).ok_or_else(|| format!("{name} is not set: the router runs in no pod"));
    let (host, port) = (read("KUBERNETES_SERVICE_HOST")?, read("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    let url = format!("https://{host}:{port}");
    url.parse()
        .map_err(|_| format!("KUBERNETES_SERVICE_HOST and _PORT make no url: {url}"))
}

/// A path and a query below the server's url.
fn at(base: &Uri, path: &str, query: &[(&str, &str)]) -> Result<Uri, http::Error> {
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(query)
        .finish();
    let text = format!("{}{path}?{query}", base.path().trim_end_matches('/'));
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(text.parse::<PathAndQuery>()?);
    Ok(Uri::from_parts(parts)?)
}

async fn read(answer: Response<Incoming>, most: usize) -> Result<Bytes, Refusal> {
    let body = Limited::new(answer.into_body(), most).collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|error| Refusal::Failed(with_causes(error.as_ref())))
}

/// An answer that comes line by line.
pub(super) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// Bytes of the buffer that hold no end of a line.
    searched: usize,
}

impl Lines {
    /// The next line, without its end; `None` where the answer ends, or breaks off.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
                let line = self.buffer.split_to(self.searched + at).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST_EVENT {
                return Err(Refusal::Failed(format!(
                    "an event of more than {LONGEST_EVENT} bytes"
                )));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                // A watch may break off at any time, and the next one goes on from there.
                Some(Err(_)) | None => return Ok(None),
            }
        }
    }
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
    fn what_is_asked_for_is_below_the_url_and_encoded() {
        let base = "http://127.0.0.1:8001/cluster/".parse().unwrap();
        let uri = at(
            &base,
            "/api/v1/pods",
            &[("labelSelector", "app in (a,b)&x=1"), ("watch", "true")],
        )
        .unwrap();
        assert_eq!(
            uri,
            "http://127.0.0.1:8001/cluster/api/v1/pods?labelSelector=app+in+%28a%2Cb%29%26x%3D1&watch=true"
        );
    }
}
