//! TLS on both sides: client certificates, renewals, and error responses.

mod hostile;
mod tools;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use config::{Config, Identity, ServerTls};
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::json;
use sim_engine::{Engine, EngineConfig};
use tailroute::serve::Server;
use tailroute_e2e::client::CHAT;
use tailroute_e2e::fleet::{Fleet, configured, metrics, quick, stuck_in_prefill};
use tailroute_e2e::raw::request;
use tailroute_e2e::replies;
use tailroute_e2e::talk::ask;
use tailroute_e2e::wait::{PATIENCE, until, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tower_service::Service as _;

pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub(crate) struct Paper {
    cert: String,
    key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn sign(&self) -> Paper {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        Paper {
            cert: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap())
            .unwrap();
        roots
    }
}

impl Paper {
    fn write(&self, folder: &Path, name: &str) -> Identity {
        let identity = Identity {
            cert: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        };
        std::fs::write(&identity.cert, &self.cert).unwrap();
        std::fs::write(&identity.key, &self.key).unwrap();
        identity
    }

    fn der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let cert = CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap();
        (
            vec![cert],
            PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap(),
        )
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

async fn connect(
    address: SocketAddr,
    authority: &Authority,
    own: Option<&Paper>,
    alpn: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(authority.roots());
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let (chain, key) = own.der();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

/// Sends a request over HTTP/1.1 or HTTP/2.
async fn question(stream: TlsStream<TcpStream>) -> hyper::Result<Response<Incoming>> {
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let body = Full::new(Bytes::from(ask("hi", json!({})).to_string()));
    let request = Request::post(format!("https://localhost{CHAT}")).header("host", "localhost");
    let request = request.body(body).unwrap();
    let io = TokioIo::new(stream);
    if is_h2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        within(sender.send_request(request)).await
    } else {
        #[expect(clippy::disallowed_methods, reason = "the client of a test")]
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
        tokio::spawn(connection);
        within(sender.send_request(request)).await
    }
}

async fn status(stream: std::io::Result<TlsStream<TcpStream>>) -> Option<u16> {
    Some(question(stream.ok()?).await.ok()?.status().as_u16())
}

fn encrypted(folder: &Path, authority: &Authority) -> impl FnOnce(&mut Config) {
    let identity = authority.sign().write(folder, "router");
    move |config| {
        config.tls.server = Some(ServerTls {
            identity,
            client_ca: None,
        });
    }
}

#[tokio::test]
async fn the_data_port_serves_both_http_versions_only_within_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let fleet = Fleet::start(vec![quick()], encrypted(folder.path(), &authority)).await;
    for (alpn, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let stream = connect(fleet.address(), &authority, None, alpn).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn.as_bytes()));
        let answer = question(stream).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, version));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["usage"].is_object());
    }
    let mut plain = TcpStream::connect(fleet.address()).await.unwrap();
    plain
        .write_all(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut said = Vec::new();
    let _ = within(plain.read_to_end(&mut said)).await;
    assert!(
        !said.starts_with(b"HTTP"),
        "nothing in the clear but TLS's own alert: {said:?}"
    );
    let page = fleet.metrics().await;
    assert!(page.sum("tailroute_tls_failures_total", &[]) >= 1.0);
    // Input that hyper cannot parse gets a JSON error over TLS too.
    let mut stream = connect(fleet.address(), &authority, None, "http/1.1")
        .await
        .unwrap();
    stream.write_all(b"GARBAGE\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    let _ = within(stream.read_to_end(&mut said)).await;
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.starts_with("HTTP/1.1 400 ") && said.contains("malformed_http"),
        "{said}"
    );
}

#[tokio::test]
async fn a_disconnect_within_tls_is_detected_whatever_follows_the_request() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let fleet = Fleet::start(vec![stuck_in_prefill()], encrypted(folder.path(), &authority)).await;
    let body = ask("a question", json!({ "stream": true })).to_string();
    let length = format!("content-length: {}", body.len());
    let question = request(&format!("POST {CHAT}"), &[&length], &body);
    let engine = &fleet.engines[0];
    for (left, rest) in (1..).zip([&b""[..], b"\r\n", &question]) {
        let mut stream = connect(fleet.address(), &authority, None, "http/1.1")
            .await
            .unwrap();
        stream.write_all(&[&question[..], rest].concat()).await.unwrap();
        within(engine.stats_when(|stats| stats.running + stats.waiting == 1)).await;
        drop(stream);
        within(engine.stats_when(|stats| stats.aborted.total() == left)).await;
    }
    fleet.at_rest().await;
}

#[tokio::test]
async fn an_unfinished_handshake_times_out_and_can_be_evicted() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let within_tls = encrypted(folder.path(), &authority);
    let fleet = Fleet::start(vec![quick()], |config| {
        within_tls(config);
        config.limits.max_connections = 2.try_into().unwrap();
        config.limits.header_timeout = Duration::from_secs(3);
    })
    .await;
    // The header of a handshake record of 16 KiB, and no more.
    let mut halves = Vec::new();
    for _ in 0..2 {
        let mut half = TcpStream::connect(fleet.address()).await.unwrap();
        half.write_all(b"\x16\x03\x01\x40\x00\x01").await.unwrap();
        halves.push(half);
    }
    let answered = status(connect(fleet.address(), &authority, None, "http/1.1").await).await;
    assert_eq!(answered, Some(200));
    for mut half in halves {
        let mut said = Vec::new();
        let _ = within(half.read_to_end(&mut said)).await;
    }
}

#[tokio::test]
async fn a_slow_reader_within_tls_gets_the_exact_stream() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let engine = EngineConfig {
        fast: true,
        ..quick()
    };
    let fleet = Fleet::start(vec![engine], encrypted(folder.path(), &authority)).await;
    let (tokens, words) = (12_000, 5);
    let expected = replies::reference(fleet.engines[0].addr(), tokens, words).await;
    for reads_after in [Duration::ZERO, Duration::from_millis(300)] {
        let stream = connect(fleet.address(), &authority, None, "http/1.1")
            .await
            .unwrap();
        #[expect(clippy::disallowed_methods, reason = "the client of a test")]
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let reading = tokio::spawn(async move {
            tokio::time::sleep(reads_after).await;
            connection.await
        });
        let request = Request::post(CHAT)
            .header("host", "localhost")
            .header("x-request-id", "late");
        let request = request.body(Full::new(Bytes::from(replies::body(tokens, words))));
        let answer = within(sender.send_request(request.unwrap())).await.unwrap();
        tokio::time::sleep(reads_after).await;
        let body = within(answer.into_body().collect()).await.unwrap().to_bytes();
        assert!(
            replies::timeless(&body, "late") == expected,
            "{} bytes",
            body.len()
        );
        drop(sender);
        within(reading).await.unwrap().unwrap();
    }
    fleet.at_rest().await;
}

/// A router with a certificate of `authority` that accepts only clients of `clients`, and the folder of its files.
async fn for_clients_of(clients: &Authority, authority: &Authority) -> (tempfile::TempDir, Fleet) {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("clients.pem");
    std::fs::write(&ca, &clients.pem).unwrap();
    let identity = authority.sign().write(folder.path(), "router");
    let fleet = Fleet::start(vec![quick()], |config| {
        config.tls.server = Some(ServerTls {
            identity,
            client_ca: Some(ca),
        });
    })
    .await;
    (folder, fleet)
}

#[tokio::test]
async fn with_a_client_ca_only_its_clients_are_accepted() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let (_folder, fleet) = for_clients_of(&clients, &authority).await;
    let address = fleet.address();
    let (known, stranger) = (clients.sign(), Authority::new().sign());
    for alpn in ["h2", "http/1.1"] {
        assert_eq!(
            status(connect(address, &authority, Some(&known), alpn).await).await,
            Some(200)
        );
        assert_eq!(status(connect(address, &authority, None, alpn).await).await, None);
        assert_eq!(
            status(connect(address, &authority, Some(&stranger), alpn).await).await,
            None
        );
    }
    assert_eq!(fleet.received(), [2]);
    // A partly written file does not change that.
    let parts = fleet.router.parts();
    let mut half = (*parts.state.config).clone();
    half.tls.server.as_mut().unwrap().client_ca = None;
    let error = tailroute::reload::reconfigure(parts, &half).unwrap_err();
    assert!(error.to_string().contains("client_ca_file"), "{error}");
}

#[tokio::test]
async fn a_worker_without_a_tls_handshake_hits_the_connect_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let mut config = configured(&[address]);
    config.tls.workers.ca = None;
    let tls = tailroute_http::tls::Tls::load(&config).unwrap();
    let mut connector = tls.connector(HttpConnector::new(), Duration::from_millis(20));
    let connection = connector.call(format!("https://{address}").parse().unwrap());
    assert!(within(connection).await.is_err());
}

#[tokio::test]
async fn a_renewed_certificate_applies_to_new_connections_and_closes_none() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let fleet = Fleet::start(vec![quick()], encrypted(folder.path(), &authority)).await;
    let parts = fleet.router.parts();
    let shown = |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].clone();
    let before = connect(fleet.address(), &authority, None, "http/1.1")
        .await
        .unwrap();
    let old = shown(&before);
    authority.sign().write(folder.path(), "router");
    tailroute::reload::reconfigure(parts, &parts.state.config).unwrap();
    let after = connect(fleet.address(), &authority, None, "http/1.1")
        .await
        .unwrap();
    let new = shown(&after);
    assert_ne!(old, new);
    assert_eq!(
        question(before).await.unwrap().status(),
        200,
        "who was connected stays so"
    );
    assert_eq!(question(after).await.unwrap().status(), 200);
    // A key that does not match, as in the middle of a renewal, changes nothing.
    let other = authority.sign();
    std::fs::write(folder.path().join("router.crt"), &other.cert).unwrap();
    let error = tailroute::reload::reconfigure(parts, &parts.state.config).unwrap_err();
    assert!(error.to_string().contains("router.crt"), "{error}");
    let still = connect(fleet.address(), &authority, None, "http/1.1")
        .await
        .unwrap();
    assert_eq!(shown(&still), new);
}

/// Puts TLS in front of a server, with client certificates of this authority, if any.
pub(crate) async fn in_front_of(
    engine: SocketAddr,
    paper: &Paper,
    clients: Option<&Authority>,
) -> SocketAddr {
    let (chain, key) = paper.der();
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let roots = Arc::new(clients.roots());
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider());
            config.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let config = config.with_single_cert(chain, key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(stream).await else {
                    return;
                };
                let mut worker = TcpStream::connect(engine).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut worker).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn https_workers_are_verified_and_get_the_routers_certificate() {
    let (folder, workers, routers) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let engine = Engine::start(quick()).await.unwrap();
    let address = in_front_of(engine.addr(), &workers.sign(), Some(&routers)).await;
    let ca = folder.path().join("workers.pem");
    std::fs::write(&ca, &workers.pem).unwrap();
    let own = routers.sign().write(folder.path(), "own");
    let wrong = Authority::new().sign().write(folder.path(), "wrong");
    let other_ca: PathBuf = folder.path().join("others.pem");
    std::fs::write(&other_ca, Authority::new().pem).unwrap();
    for (ca, identity, works) in [
        (&ca, Some(own.clone()), true),
        (&ca, None, false),
        (&ca, Some(wrong), false),
        (&other_ca, Some(own), false),
    ] {
        let mut config = configured(&[address]);
        config.workers[0].url = format!("https://{address}").parse().unwrap();
        config.tls.workers.ca = Some(ca.clone());
        config.tls.workers.identity = identity;
        config.health.interval = std::time::Duration::from_millis(10);
        let router = Server::start(config).await.unwrap();
        if works {
            assert!(router.wait_ready(PATIENCE).await);
            let body = ask("hi", json!({})).to_string();
            let answer = tailroute_e2e::client::call(router.address, "POST", CHAT, &[], body).await;
            assert_eq!(answer.status, 200);
        } else {
            let parts = router.parts();
            until("a probe has failed", || parts.state.routing.clock.now().0 > 200.0).await;
            assert!(!parts.state.routing.fleet.any_ready());
            assert_eq!(metrics(&router).await.sum("tailroute_worker_ready", &[]), 0.0);
        }
    }
    assert_eq!(engine.stats().received, 1);
}

#[tokio::test]
async fn an_unusable_certificate_fails_the_start_with_its_path() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let mut config = configured(&["127.0.0.1:1".parse().unwrap()]);
    encrypted(folder.path(), &authority)(&mut config);
    std::fs::write(folder.path().join("router.key"), "no key").unwrap();
    let error = format!("{:#}", Server::start(config).await.unwrap_err());
    assert!(error.contains("router.key"), "{error}");
}
