//! A client of the admin port, with one connection per request.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest response body that is read.
const MAX_ANSWER_BYTES: usize = 512 << 20;

/// The address and the credentials of a router.
#[derive(Clone, Debug)]
pub struct Target {
    authority: String,
    token: Option<String>,
}

impl Target {
    /// Parses a URL or `host:port`, and reads the token from a file.
    ///
    /// # Errors
    /// If the address is invalid, or the file cannot be read.
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
            bail!(
                "--admin {admin}: the admin port speaks http; reach it over a tunnel where the network is not yours"
            );
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
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }
}

/// A client of one router's admin port.
#[derive(Clone, Debug)]
pub struct Client(Target);

impl Client {
    /// Returns a client of this router.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self(target)
    }

    /// Sends a GET and parses the JSON response.
    ///
    /// # Errors
    /// If the router cannot be reached, or rejects the request.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.text(path).await?)?)
    }

    /// Sends a GET and returns the response as text.
    ///
    /// # Errors
    /// If the router cannot be reached, or rejects the request.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let response = self.request(Method::GET, path, None, None).await?;
        whole(response).await
    }

    /// Sends a change.
    ///
    /// # Errors
    /// If the router cannot be reached, or rejects the request.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.send_matching(method, path, body, None).await
    }

    /// Sends a change, conditional on this entity tag.
    ///
    /// # Errors
    /// If the router cannot be reached, or rejects the request.
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

    /// Streams changes as they happen.
    ///
    /// # Errors
    /// If the router cannot be reached, or rejects the request.
    pub async fn events(&self) -> anyhow::Result<impl Stream<Item = anyhow::Result<Value>> + Unpin> {
        let response = self.request(Method::GET, "/admin/v1/events", None, None).await?;
        let body = response.into_body();
        let events = stream::unfold((body, Vec::new()), |(mut body, mut held)| async move {
            loop {
                if let Some(event) = take_event(&mut held) {
                    return Some((Ok(event), (body, held)));
                }
                match body.frame().await? {
                    Ok(frame) => held.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                    Err(error) => return Some((Err(error.into()), (body, held))),
                }
                if held.len() > MAX_ANSWER_BYTES {
                    return None;
                }
            }
        });
        Ok(events.boxed_local())
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        tag: Option<&str>,
    ) -> anyhow::Result<Response<Incoming>> {
        let authority = &self.0.authority;
        let stream = TcpStream::connect(authority).await.with_context(|| {
            format!("cannot reach the admin port at {authority}; is `tailroute serve` running there? (--admin URL)")
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The task ends with the response. Connection errors also surface in the response.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, authority);
        if let Some(token) = &self.0.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(tag) = tag {
            request = request.header("if-match", tag);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = request.body(Full::new(body)).context("this cannot be asked")?;
        let response = sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        Err(refusal(status, &whole(response).await?))
    }
}

async fn whole(response: Response<Incoming>) -> anyhow::Result<String> {
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
        .collect()
        .await;
    let body = body.map_err(|error| anyhow!("the answer broke off: {error}"))?;
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

/// Takes the data of the first complete event, skipping comments.
fn take_event(held: &mut Vec<u8>) -> Option<Value> {
    loop {
        let end = held.windows(2).position(|pair| pair == b"\n\n")?;
        let event: Vec<u8> = held.drain(..end + 2).collect();
        let text = String::from_utf8_lossy(&event);
        let data = text.lines().find_map(|line| line.strip_prefix("data: "));
        if let Some(data) = data.and_then(|data| serde_json::from_str(data).ok()) {
            return Some(data);
        }
    }
}

#[cfg(test)]
mod tests {
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
                .contains("speaks http")
        );
        assert!(authority("a b").is_err());
    }

    #[test]
    fn only_complete_events_are_taken_and_comments_skipped() {
        let mut held = b": hello\n\nevent: policy\ndata: {\"n\":1}\n\ndata: {\"n\"".to_vec();
        assert_eq!(take_event(&mut held).unwrap()["n"], 1);
        assert!(take_event(&mut held).is_none());
        held.extend_from_slice(b":2}\n\n");
        assert_eq!(take_event(&mut held).unwrap()["n"], 2);
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
