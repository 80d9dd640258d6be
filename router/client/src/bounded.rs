//! HTTP with every read bounded in time and size, so that a server that hangs, drips or floods costs only seconds and
//! megabytes. All programs of this crate use it.

use std::error::Error;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use reqwest::{Body, ClientBuilder, RequestBuilder, Response};
use tokio::time::{Instant, timeout};

/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Bounds of one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Time from the request to the end of the response.
    pub(crate) time: Duration,
    /// Size of the response's body.
    pub(crate) bytes: usize,
}

/// The error of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Connect(String),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("{0}")]
    Broken(String),
}

impl FetchError {
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        match error.is_connect() {
            true if error.is_timeout() => Self::Late(CONNECT),
            true => Self::Connect(words(error)),
            false => Self::Broken(words(error)),
        }
    }

    fn of_body(error: &(dyn Error + 'static), limit: usize) -> Self {
        match error.is::<LengthLimitError>() {
            true => Self::TooLong(limit),
            false => Self::Broken(format!("its answer broke off: {}", words(error))),
        }
    }
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Fetched {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Time from the request to the response's head.
    pub(crate) head_after: Duration,
}

impl Fetched {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns a builder of clients that connect directly and follow no redirects.
pub(crate) fn client() -> ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
}

/// Sends a request and reads the whole response.
pub(crate) async fn fetch(request: RequestBuilder, limits: Limits) -> Result<Fetched, FetchError> {
    let whole = async {
        let sent = Instant::now();
        let response = request.send().await.map_err(|error| FetchError::of(&error))?;
        let head_after = sent.elapsed();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = Limited::new(Body::from(response), limits.bytes).collect().await;
        let body = body.map_err(|error| FetchError::of_body(&*error, limits.bytes))?;
        Ok(Fetched {
            status,
            headers,
            body: body.to_bytes(),
            head_after,
        })
    };
    let in_time = timeout(limits.time, whole).await;
    in_time.unwrap_or(Err(FetchError::Late(limits.time)))
}

/// Sends a request and returns its response once its head has arrived, which it has to within `limit`.
pub(crate) async fn open(request: RequestBuilder, limit: Duration) -> Result<Response, FetchError> {
    let opened = timeout(limit, request.send()).await;
    let opened = opened.map_err(|_| FetchError::Late(limit))?;
    opened.map_err(|error| FetchError::of(&error))
}

/// Returns the next piece of a response, or `None` at its end. Fails if there is no piece within `idle`.
pub(crate) async fn next(response: &mut Response, idle: Duration) -> Result<Option<Bytes>, FetchError> {
    let piece = timeout(idle, response.chunk()).await;
    let piece = piece.map_err(|_| FetchError::Late(idle))?;
    piece.map_err(|error| FetchError::of_body(&error, usize::MAX))
}

/// Names the innermost cause of an error.
pub(crate) fn words(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    loop {
        if let Some(error) = cause.downcast_ref::<io::Error>()
            && let Some(words) = io_words(error)
        {
            return words.to_owned();
        }
        match cause.source() {
            Some(inner) => cause = inner,
            None => break,
        }
    }
    match cause.to_string() {
        text if text.starts_with("invalid HTTP") => "its answer is not HTTP".to_owned(),
        text if text.starts_with("connection closed before") => "the connection was closed".to_owned(),
        text if text.starts_with("error reading a body") => "the connection was closed".to_owned(),
        text if text.starts_with("invalid peer certificate") => {
            format!("{text}; SSL_CERT_FILE names a file of the roots to trust")
        }
        text => text,
    }
}

fn io_words(error: &io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset",
        io::ErrorKind::ConnectionAborted | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "the connection was closed"
        }
        io::ErrorKind::HostUnreachable => "host unreachable",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::TimedOut => "the connection timed out",
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Starts a server that treats each connection, after its request, as `act` says. Returns host and port.
    pub(crate) async fn server<F>(act: fn(TcpStream) -> F) -> String
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = socket.read_buf(&mut Vec::with_capacity(4096)).await;
                    let _ = act(socket).await;
                });
            }
        });
        address
    }

    pub(crate) async fn hang(socket: TcpStream) -> io::Result<()> {
        std::future::pending::<()>().await;
        drop(socket);
        Ok(())
    }

    pub(crate) async fn drip(mut socket: TcpStream) -> io::Result<()> {
        socket
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            .await?;
        loop {
            socket.write_all(b" ").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn interim(mut socket: TcpStream) -> io::Result<()> {
        loop {
            socket.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").await?;
        }
    }

    async fn endless_head(mut socket: TcpStream) -> io::Result<()> {
        socket.write_all(b"HTTP/1.1 200 OK\r\nx: ").await?;
        loop {
            socket.write_all(&[b'a'; 4096]).await?;
        }
    }

    pub(crate) async fn flood(mut socket: TcpStream) -> io::Result<()> {
        socket
            .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await?;
        loop {
            socket
                .write_all(&[&b"10000\r\n"[..], &[b' '; 65536], b"\r\n"].concat())
                .await?;
        }
    }

    async fn gibberish(mut socket: TcpStream) -> io::Result<()> {
        socket.write_all(b"SSH-2.0-OpenSSH\r\n").await
    }

    async fn close(socket: TcpStream) -> io::Result<()> {
        drop(socket);
        Ok(())
    }

    const LIMITS: Limits = Limits {
        time: Duration::from_millis(300),
        bytes: 1 << 20,
    };

    async fn fetched(address: &str, limits: Limits) -> Result<Fetched, FetchError> {
        let http = client().build().unwrap();
        fetch(http.get(format!("http://{address}/")), limits).await
    }

    #[tokio::test]
    async fn an_answer_that_never_ends_is_given_up_in_time() {
        for address in [server(hang).await, server(drip).await] {
            assert_eq!(
                fetched(&address, LIMITS).await.unwrap_err(),
                FetchError::Late(LIMITS.time)
            );
        }
        for address in [server(interim).await, server(endless_head).await] {
            fetched(&address, LIMITS).await.unwrap_err();
        }
    }

    #[tokio::test]
    async fn an_answer_beyond_its_size_is_given_up() {
        let limits = Limits {
            time: Duration::from_secs(30),
            ..LIMITS
        };
        let error = fetched(&server(flood).await, limits).await.unwrap_err();
        assert_eq!(error, FetchError::TooLong(1 << 20));
    }

    #[tokio::test]
    async fn errors_are_in_plain_words() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nowhere = listener.local_addr().unwrap().to_string();
        drop(listener);
        let limits = Limits {
            time: Duration::from_secs(30),
            ..LIMITS
        };
        for (address, expected) in [
            (nowhere, "connection refused"),
            (server(gibberish).await, "its answer is not HTTP"),
        ] {
            assert_eq!(fetched(&address, limits).await.unwrap_err().to_string(), expected);
        }
        let closed = fetched(&server(close).await, limits)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            closed == "the connection was closed" || closed == "connection reset",
            "{closed}"
        );
    }

    #[tokio::test]
    async fn a_silent_stream_is_given_up() {
        let http = client().build().unwrap();
        let address = server(drip).await;
        let request = http.get(format!("http://{address}/"));
        let mut response = open(request, Duration::from_secs(30)).await.unwrap();
        assert!(
            next(&mut response, Duration::from_secs(30))
                .await
                .unwrap()
                .is_some()
        );
        let idle = Duration::from_nanos(1);
        while next(&mut response, idle).await != Err(FetchError::Late(idle)) {}
        let request = http.get(format!("http://{}/", server(hang).await));
        assert_eq!(
            open(request, Duration::from_millis(50)).await.unwrap_err(),
            FetchError::Late(Duration::from_millis(50))
        );
    }
}
