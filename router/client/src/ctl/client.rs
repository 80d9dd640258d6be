//! A client of the admin port, with one connection per request.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use eventsource_stream::Eventsource as _;
use futures_util::{Stream, StreamExt as _};
use http::header::IF_MATCH;
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyDataStream, BodyExt as _, Limited};
use reqwest::{Body, Response};
use serde_json::Value;

const MAX_ANSWER_BYTES: usize = 512 << 20;

/// The address and the credentials of a router.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
    token: Option<String>,
}

impl Target {
    /// Parses a URL or `host:port`, and reads the token. Fails if the address is invalid, or the file cannot be read.
    pub fn new(admin: &str, token_file: Option<&Path>) -> anyhow::Result<Self> {
        let address = if admin.contains("://") {
            admin.to_owned()
        } else {
            format!("http://{admin}")
        };
        let uri: Uri = address
            .parse()
            .with_context(|| format!("--admin {admin}: expected a URL such as http://127.0.0.1:9090"))?;
        if uri.scheme_str() != Some("http") {
            bail!("--admin {admin}: the admin port uses http; reach it over a tunnel on untrusted networks");
        }
        let host = uri.host().unwrap_or("127.0.0.1");
        let token = token_file.map(|file| {
            let token = std::fs::read_to_string(file)
                .with_context(|| format!("--token-file {}: cannot be read", file.display()))?;
            anyhow::Ok(token.trim().to_owned())
        });
        Ok(Self {
            authority: format!("{host}:{}", uri.port_u16().unwrap_or(9090)),
            token: token.transpose()?,
        })
    }

    /// Returns the host and port.
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

/// A client of one router's admin port.
#[derive(Clone, Debug)]
pub struct Client {
    target: Target,
    http: reqwest::Client,
}

impl Client {
    /// Returns a client of this router. Fails if the HTTP client cannot be built.
    pub fn new(target: Target) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0);
        Ok(Self {
            target,
            http: http.build()?,
        })
    }

    /// Sends a GET and parses the JSON response. Fails if the router cannot be reached, or rejects the request.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.text(path).await?)?)
    }

    /// Sends a GET and returns the response as text. Fails if the router cannot be reached, or rejects the request.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.request(Method::GET, path, None, None).await?;
        whole(response).await
    }

    /// Sends a change. Fails if the router cannot be reached, or rejects the request.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send_matching(method, path, body, None).await
    }

    /// Sends a change, conditional on this entity tag. Fails if the router cannot be reached, or rejects the request.
    pub async fn send_matching(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        tag: Option<&str>,
    ) -> anyhow::Result<Value> {
        let response = self.request(method, path, Some(body), tag).await?;
        Ok(serde_json::from_str(&whole(response).await?)?)
    }

    /// Streams changes as they happen. Fails if the router cannot be reached, or rejects the request.
    pub async fn events(&self) -> anyhow::Result<impl Stream<Item = anyhow::Result<Value>> + Unpin> {
        let response = self.request(Method::GET, "/admin/v1/events", None, None).await?;
        let events = BodyDataStream::new(Body::from(response)).eventsource();
        Ok(events.map(|event| Ok(serde_json::from_str(&event?.data)?)))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        tag: Option<&str>,
    ) -> anyhow::Result<Response> {
        let authority = &self.target.authority;
        let mut request = self.http.request(method, format!("http://{authority}{path}"));
        if let Some(token) = &self.target.token {
            request = request.bearer_auth(token);
        }
        if let Some(tag) = tag {
            request = request.header(IF_MATCH, tag);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let request = request.build().context("invalid request")?;
        let response = self.http.execute(request).await;
        let response = response.map_err(|error| match error.is_connect() {
            true => anyhow!(error).context(format!(
                "cannot reach the admin port at {authority}; is `tailroute serve` running there? (--admin URL)"
            )),
            false => error.into(),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        Err(refusal(status, &whole(response).await?))
    }
}

async fn whole(response: Response) -> anyhow::Result<String> {
    let body = Limited::new(Body::from(response), MAX_ANSWER_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| anyhow!("the response was cut off: {error}"))?;
    Ok(String::from_utf8(body.to_bytes().to_vec())?)
}

/// Escapes text for use as one path segment.
pub(super) fn escaped(text: &str) -> String {
    let escaped: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    escaped.replace('+', "%20")
}

/// Formats a problem document, with one line per invalid field.
fn refusal(status: StatusCode, body: &str) -> anyhow::Error {
    let problem: Value = serde_json::from_str(body).unwrap_or_default();
    let Some(detail) = problem["detail"].as_str() else {
        return anyhow!("the router answered {status}");
    };
    let errors = problem["errors"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let remedy = match status {
        StatusCode::UNAUTHORIZED => " (--token-file FILE)",
        _ => "",
    };
    if errors.is_empty() {
        return anyhow!("refused ({}): {detail}{remedy}", status.as_u16());
    }
    let mut text = format!("refused ({}), nothing was changed:", status.as_u16());
    for error in errors {
        let part = |name: &str| error[name].as_str().unwrap_or_default();
        text.push_str(&format!("\n  {}: {}", part("field"), part("detail")));
        if let Some(hint) = error["hint"].as_str() {
            text.push_str(&format!("; {hint}"));
        }
    }
    anyhow!(text)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn addresses_are_urls_or_hosts_with_ports() {
        let authority = |text: &str| Target::new(text, None).map(|target| target.authority);
        assert_eq!(authority("http://10.0.0.1:9091").unwrap(), "10.0.0.1:9091");
        assert_eq!(authority("localhost:9090").unwrap(), "localhost:9090");
        assert_eq!(authority("http://[::1]").unwrap(), "[::1]:9090");
        assert!(
            authority("https://a:1")
                .unwrap_err()
                .to_string()
                .contains("uses http")
        );
        assert!(authority("a b").is_err());
    }

    #[tokio::test]
    async fn events_come_whole_however_they_are_cut_and_comments_are_passed_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
            for piece in [
                "HTTP/1.1 200 OK\r\n\r\n: hello\n\nevent: policy\ndata: {\"n\":1}\n\ndata: {\"n\"",
                ":2}\n\n",
            ] {
                socket.write_all(piece.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let client = Client::new(Target::new(&address, None).unwrap()).unwrap();
        let events = client.events().await.unwrap();
        let numbers = events.map(|event| event.unwrap()["n"].as_u64());
        assert_eq!(numbers.collect::<Vec<_>>().await, [Some(1), Some(2)]);
    }

    #[tokio::test]
    async fn a_router_that_is_not_there_is_named_with_what_to_do() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let client = Client::new(Target::new(&address, None).unwrap()).unwrap();
        let error = client.text("/").await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot reach the admin port at {address}; is")),
            "{error}"
        );
    }

    #[test]
    fn a_problem_names_each_field_on_its_line() {
        let body = r#"{"detail":"d","errors":[{"field":"settings.policy","detail":"wrong","hint":"did you mean `tail`?"}]}"#;
        let text = refusal(StatusCode::UNPROCESSABLE_ENTITY, body).to_string();
        assert_eq!(
            text,
            "refused (422), nothing was changed:\n  settings.policy: wrong; did you mean `tail`?"
        );
    }
}
