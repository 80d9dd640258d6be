//! A client of the admin port, with one connection per request, bounded in time and size.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use futures_util::{Stream, stream};
use http::header::IF_MATCH;
use http::{Method, StatusCode, Uri};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;

use super::answer::printable_json;
use crate::bounded::{self, FetchError, Fetched, Limits, fetch, open};

/// Limits of the response to a GET.
const READ: Limits = Limits {
    time: Duration::from_secs(5),
    bytes: 16 << 20,
};
/// Limits of the response to a change or a preview, on which the router works for at most 20 s.
const CHANGE: Limits = Limits {
    time: Duration::from_secs(40),
    ..READ
};
/// Limits of a metrics page.
const TEXT: Limits = Limits {
    bytes: 64 << 20,
    ..READ
};
/// Limits of a capture's turns.
const TURNS: Limits = Limits {
    time: Duration::from_secs(300),
    bytes: 512 << 20,
};
/// Longest silence of the event stream: three of the router's keep-alives.
const SILENCE: Duration = Duration::from_secs(45);
/// Longest event, in bytes.
const EVENT_BYTES: usize = 1 << 20;

/// The address and the credentials of a router.
#[derive(Clone, Debug)]
pub struct Target {
    /// `http` or `https`.
    scheme: &'static str,
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
        // The admin port itself is plain; https reaches it through a proxy, at that proxy's own port.
        let (scheme, port) = match uri.scheme_str() {
            Some("http") => ("http", 9090),
            Some("https") => ("https", 443),
            _ => bail!("--admin {admin}: expected an http or https URL such as http://127.0.0.1:9090"),
        };
        let host = uri.host().unwrap_or("127.0.0.1");
        let token = token_file.map(|file| {
            let token = std::fs::read_to_string(file)
                .with_context(|| format!("--token-file {}: cannot be read", file.display()))?;
            anyhow::Ok(token.trim().to_owned())
        });
        Ok(Self {
            scheme,
            authority: format!("{host}:{}", uri.port_u16().unwrap_or(port)),
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
        let http = bounded::client().pool_max_idle_per_host(0).build()?;
        Ok(Self { target, http })
    }

    /// Sends a GET and parses the JSON response. Fails if the router cannot be reached, or rejects the request.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.json(self.request(Method::GET, path), READ).await
    }

    /// Sends a GET and returns the response as text. Fails if the router cannot be reached, or rejects the request.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let answer = self.whole(self.request(Method::GET, path), TEXT).await?;
        Ok(answer.text())
    }

    /// Fetches the turns of the capture. Fails if the router cannot be reached, or rejects the request.
    pub async fn turns(&self) -> anyhow::Result<String> {
        let request = self.request(Method::GET, "/admin/v1/capture/turns");
        Ok(self.whole(request, TURNS).await?.text())
    }

    /// Sends a change. Fails if the router cannot be reached, or rejects the request.
    pub async fn send(&self, method: Method, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(method, path).json(body), CHANGE).await
    }

    /// Sends a change, conditional on this entity tag. Fails if the router cannot be reached, or rejects the request.
    pub async fn send_matching(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        tag: &str,
    ) -> anyhow::Result<Value> {
        let request = self.request(method, path).header(IF_MATCH, tag).json(body);
        self.json(request, CHANGE).await
    }

    /// Streams changes as they happen. Fails if the router cannot be reached, or rejects the request. The stream fails
    /// if the router is silent, even without changes.
    pub async fn events(&self) -> anyhow::Result<impl Stream<Item = anyhow::Result<Value>>> {
        let request = self.request(Method::GET, "/admin/v1/events");
        let response = open(request, READ.time).await;
        let response = response.map_err(|error| self.unreached(error))?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(self.refusal(status, ""));
        }
        let follow = EventFollower {
            response,
            events: sse::Events::new(EVENT_BYTES),
            ready: VecDeque::new(),
        };
        Ok(Box::pin(stream::try_unfold(follow, EventFollower::next)))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let Target {
            scheme, authority, ..
        } = &self.target;
        let request = self.http.request(method, format!("{scheme}://{authority}{path}"));
        match &self.target.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn whole(&self, request: RequestBuilder, limits: Limits) -> anyhow::Result<Fetched> {
        let answer = fetch(request, limits).await;
        let answer = answer.map_err(|error| self.unreached(error))?;
        match answer.status.is_success() {
            true => Ok(answer),
            false => Err(self.refusal(answer.status, &answer.text())),
        }
    }

    async fn json(&self, request: RequestBuilder, limits: Limits) -> anyhow::Result<Value> {
        let answer = self.whole(request, limits).await?;
        serde_json::from_slice(&answer.body).with_context(|| {
            format!(
                "{} did not answer in JSON: is it an admin port? (--admin URL)",
                self.target.authority
            )
        })
    }

    fn unreached(&self, error: FetchError) -> anyhow::Error {
        let authority = &self.target.authority;
        match error {
            FetchError::Connect(why) => anyhow!(
                "cannot reach the admin port at {authority}: {why}; is `tailroute serve` running there? (--admin URL)"
            ),
            error => anyhow::Error::new(error).context(format!("the admin port at {authority} failed")),
        }
    }

    /// Formats a problem document, with one line per invalid field.
    fn refusal(&self, status: StatusCode, body: &str) -> anyhow::Error {
        let problem: Value = serde_json::from_str(body).unwrap_or_default();
        if problem["detail"].is_null() && status == StatusCode::NOT_FOUND {
            return anyhow!(
                "{} answered 404, so it is no admin port; is it the data port? --admin takes the address of the \
                 section [admin], by default http://127.0.0.1:9090",
                self.target.authority
            );
        }
        refusal(status, &printable_json(&problem))
    }
}

/// The event stream of a router.
struct EventFollower {
    response: Response,
    events: sse::Events,
    ready: VecDeque<Value>,
}

impl EventFollower {
    async fn next(mut self) -> anyhow::Result<Option<(Value, Self)>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some((event, self)));
            }
            let piece = bounded::next(&mut self.response, SILENCE).await;
            let Some(piece) = piece.context("the router's events ended")? else {
                return Ok(None);
            };
            let Self { events, ready, .. } = &mut self;
            let mut malformed = None;
            events
                .push(&piece, |data| match serde_json::from_slice(data) {
                    Ok(event) => ready.push_back(event),
                    Err(error) => malformed = Some(error),
                })
                .context("the router's events ended")?;
            if let Some(error) = malformed {
                return Err(error).context("an event of the router is not JSON");
            }
        }
    }
}

/// Escapes text for use as one path segment or query value.
pub(super) fn escaped(text: &str) -> String {
    let escaped: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    escaped.replace('+', "%20")
}

fn refusal(status: StatusCode, problem: &Value) -> anyhow::Error {
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
    use futures_util::StreamExt as _;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::bounded::tests::server;

    #[test]
    fn addresses_are_urls_or_hosts_with_ports() {
        let authority = |text: &str| Target::new(text, None).map(|target| target.authority);
        assert_eq!(authority("http://10.0.0.1:9091").unwrap(), "10.0.0.1:9091");
        assert_eq!(authority("localhost:9090").unwrap(), "localhost:9090");
        assert_eq!(authority("http://[::1]").unwrap(), "[::1]:9090");
        assert_eq!(authority("https://admin.example").unwrap(), "admin.example:443");
        assert!(
            authority("ftp://a:1")
                .unwrap_err()
                .to_string()
                .contains("http or https")
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
            error.starts_with(&format!(
                "cannot reach the admin port at {address}: connection refused; is"
            )),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_server_that_is_no_admin_port_is_named() {
        let address = server(|mut socket: TcpStream| async move {
            let body = r#"{"error":{"message":"no route"}}"#;
            let head = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n", body.len());
            socket.write_all(format!("{head}{body}").as_bytes()).await
        })
        .await;
        let client = Client::new(Target::new(&address, None).unwrap()).unwrap();
        let error = client.get("/admin/v1/workers").await.unwrap_err().to_string();
        assert!(error.contains("is it the data port?"), "{error}");
    }

    #[tokio::test]
    async fn control_characters_of_a_problem_are_escaped() {
        let address = server(|mut socket: TcpStream| async move {
            let body = r#"{"detail":"a\u001b[2Kb\nc\u009bd\u202ee"}"#;
            let head = format!("HTTP/1.1 409 Conflict\r\ncontent-length: {}\r\n\r\n", body.len());
            socket.write_all(format!("{head}{body}").as_bytes()).await
        })
        .await;
        let client = Client::new(Target::new(&address, None).unwrap()).unwrap();
        let error = client.get("/admin/v1/workers").await.unwrap_err().to_string();
        assert_eq!(error, r"refused (409): a\u001b[2Kb\nc\u009bd\u202ee");
    }

    #[tokio::test]
    async fn an_endless_event_ends_the_stream() {
        let address = server(|mut socket: TcpStream| async move {
            socket.write_all(b"HTTP/1.1 200 OK\r\n\r\ndata: ").await?;
            loop {
                socket.write_all(&[b'x'; 65536]).await?;
            }
        })
        .await;
        let client = Client::new(Target::new(&address, None).unwrap()).unwrap();
        let mut events = client.events().await.unwrap();
        let error = events.next().await.unwrap().unwrap_err();
        assert!(
            format!("{error:#}").contains("more than 1048576 bytes"),
            "{error:#}"
        );
    }

    #[test]
    fn a_problem_names_each_field_on_its_line() {
        let problem = json!({ "detail": "d", "errors": [
            { "field": "settings.policy", "detail": "wrong", "hint": "did you mean `tail`?" },
        ] });
        let text = refusal(StatusCode::UNPROCESSABLE_ENTITY, &problem).to_string();
        assert_eq!(
            text,
            "refused (422), nothing was changed:\n  settings.policy: wrong; did you mean `tail`?"
        );
    }
}
