//! TLS of the data port and towards workers, collectors, Kubernetes and NATS: loading, checking and reloading
//! certificates.
//!
//! A reload replaces the whole state at once; a connection keeps the state that it started with. TLS 1.2 and 1.3
//! without renegotiation or compression, with the default ciphers of rustls. ALPN of the data port offers HTTP/2 and
//! HTTP/1.1.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tower_service::Service;

/// Size in bytes of the longest certificate file; a bundle of all public roots takes a quarter of it.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// Reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or contains no PEM.
    #[error("{}: cannot be read as PEM", path.display())]
    File {
        path: PathBuf,
        source: rustls::pki_types::pem::Error,
    },
    /// A file contains no certificate.
    #[error("{}: holds no certificate", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// Certificate and key do not match, or rustls rejects them.
    #[error("{}: cannot be used", path.display())]
    Unusable {
        /// Path of the file with the certificate or the root.
        path: PathBuf,
        source: rustls::Error,
    },
    /// No client certificate can be verified with these roots.
    #[error("{}: no root certificates to verify clients", path.display())]
    Roots {
        path: PathBuf,
        source: rustls::server::VerifierBuilderError,
    },
    /// The machine has no root certificates to verify workers with.
    #[error("this machine has no root certificates for https workers; set tls.workers.ca_file")]
    NoRoots,
    /// The machine has no root certificates to verify the trace collector with.
    #[error("this machine has no root certificates for an https collector; set traces.ca_file")]
    NoRootsForTraces,
    /// The machine has no root certificates to verify the Kubernetes API server with.
    #[error(
        "this machine has no root certificates for an https API server; set discovery.kubernetes.ca_file"
    )]
    NoRootsForKubernetes,
    /// The machine has no root certificates to verify the NATS server with.
    #[error("this machine has no root certificates for a NATS server with TLS; set fleet.ca_file")]
    NoRootsForNats,
}

/// TLS configurations in force.
#[derive(Debug)]
pub struct Tls {
    server: Option<ArcSwap<ServerConfig>>,
    workers: Arc<ArcSwap<ClientConfig>>,
}

impl Tls {
    /// Loads the files named in the configuration.
    pub fn load(config: &config::Config) -> Result<Self, TlsError> {
        let server = config.tls.server.as_ref().map(server).transpose()?;
        Ok(Self {
            server: server.map(ArcSwap::from_pointee),
            workers: Arc::new(ArcSwap::from_pointee(workers(config)?)),
        })
    }

    /// Loads the files again. Fails, and changes nothing, if one cannot be read or used. Turning TLS on or off for the
    /// data port needs a restart.
    pub fn reload(&self, config: &config::Config) -> Result<(), TlsError> {
        let fresh = Self::load(config)?;
        if let (Some(server), Some(fresh)) = (&self.server, fresh.server) {
            server.store(fresh.load_full());
        }
        self.workers.store(fresh.workers.load_full());
        Ok(())
    }

    /// Returns the acceptor for a new connection; `None` if the data port is in plain text.
    pub fn acceptor(&self) -> Option<tokio_rustls::TlsAcceptor> {
        self.server.as_ref().map(|server| server.load_full().into())
    }

    /// Returns a connector to workers, with `timeout` for connect and handshake together.
    pub fn connector(&self, http: HttpConnector, timeout: Duration) -> Connector {
        Connector::new(http, timeout, Arc::clone(&self.workers))
    }
}

/// Connects to a worker, a collector or an API server, with TLS where the URL is `https`. A reload of [`Tls`] applies
/// to new connections to workers.
#[derive(Clone, Debug)]
pub struct Connector {
    http: HttpConnector,
    /// Time limit for connect and handshake together: a worker may accept a connection and send nothing.
    timeout: Duration,
    tls: Arc<ArcSwap<ClientConfig>>,
}

impl Connector {
    fn new(mut http: HttpConnector, timeout: Duration, tls: Arc<ArcSwap<ClientConfig>>) -> Self {
        http.enforce_http(false);
        Self { http, timeout, tls }
    }
}

/// Error of an attempt to connect.
pub type ConnectError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.http.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connection = HttpsConnector::from((self.http.clone(), self.tls.load_full())).call(uri);
        let timeout = self.timeout;
        Box::pin(async move {
            match tokio::time::timeout(timeout, connection).await {
                Ok(connection) => connection,
                Err(late) => Err(late.into()),
            }
        })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn server(tls: &config::ServerTls) -> Result<ServerConfig, TlsError> {
    let (cert, unusable) = (&tls.identity.cert, |source| TlsError::Unusable {
        path: tls.identity.cert.clone(),
        source,
    });
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            let verifier = verifier.map_err(|source| TlsError::Roots {
                path: path.clone(),
                source,
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut server = builder
        .with_single_cert(chain(cert)?, key(&tls.identity.key)?)
        .map_err(unusable)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(server)
}

fn workers(config: &config::Config) -> Result<ClientConfig, TlsError> {
    let tls = &config.tls.workers;
    let is_needed = config
        .workers
        .iter()
        .any(|worker| worker.url.scheme_str() == Some("https"));
    let roots = trusted(tls.ca.as_deref(), is_needed, TlsError::NoRoots)?;
    let identity = tls.identity.as_ref();
    client(roots, identity.map(|identity| (&*identity.cert, &*identity.key)))
}

/// Returns a client configuration with these roots, and with this certificate and its key, if given.
fn client(roots: RootCertStore, identity: Option<(&Path, &Path)>) -> Result<ClientConfig, TlsError> {
    let unusable = |source| TlsError::Unusable {
        path: identity.map_or_else(PathBuf::new, |(cert, _)| cert.to_owned()),
        source,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, secret)) => builder
            .with_client_auth_cert(chain(cert)?, key(secret)?)
            .map_err(unusable),
    }
}

/// Returns a connector to a trace collector. An `https` certificate is verified against `traces.ca`, or else against
/// the machine's roots. Fails if the endpoint is `https` and the roots cannot be read or the machine has none.
pub fn towards_collector(
    http: HttpConnector,
    traces: &config::Traces,
    timeout: Duration,
) -> Result<Connector, TlsError> {
    let is_encrypted = traces.endpoint.scheme_str() == Some("https");
    let roots = trusted(traces.ca.as_deref(), is_encrypted, TlsError::NoRootsForTraces)?;
    let mut tls = client(roots, None)?;
    if traces.protocol == config::OtlpProtocol::Grpc {
        tls.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(Connector::new(
        http,
        timeout,
        Arc::new(ArcSwap::from_pointee(tls)),
    ))
}

/// Returns a connector to a Kubernetes API server. With an `https` URL the certificate is verified against the roots in
/// `ca`, or else against the machine's. Fails if the roots cannot be read or the machine has none.
pub fn towards_kubernetes(
    http: HttpConnector,
    url: &Uri,
    ca: Option<&Path>,
    timeout: Duration,
) -> Result<Connector, TlsError> {
    let is_encrypted = url.scheme_str() == Some("https");
    let ca = ca.filter(|_| is_encrypted);
    let roots = trusted(ca, is_encrypted, TlsError::NoRootsForKubernetes)?;
    let tls = client(roots, None)?;
    Ok(Connector::new(
        http,
        timeout,
        Arc::new(ArcSwap::from_pointee(tls)),
    ))
}

/// Returns the client configuration for a NATS server. Its certificate is verified against `fleet.ca`, or else against
/// the machine's roots. Fails if a file cannot be used or the machine has no roots.
pub fn towards_nats(fleet: &config::Fleet) -> Result<ClientConfig, TlsError> {
    let roots = trusted(fleet.ca.as_deref(), true, TlsError::NoRootsForNats)?;
    client(roots, fleet.identity())
}

/// Returns the roots in `ca`, or else the machine's if they are needed. Fails with `none` if the machine has none.
fn trusted(ca: Option<&Path>, is_needed: bool, none: TlsError) -> Result<RootCertStore, TlsError> {
    if let Some(path) = ca {
        return roots(path);
    }
    let mut store = RootCertStore::empty();
    if is_needed {
        // An unreadable root is skipped: there are many, and only the peer's own matters.
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if store.is_empty() {
            return Err(none);
        }
    }
    Ok(store)
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in chain(path)? {
        store.add(certificate).map_err(|source| TlsError::Unusable {
            path: path.to_owned(),
            source,
        })?;
    }
    Ok(store)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |source| TlsError::File {
        path: path.to_owned(),
        source,
    };
    let pem = pem(path)?;
    let chain = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(read)?;
    if chain.is_empty() {
        return Err(TlsError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(chain)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&pem(path)?).map_err(|source| TlsError::File {
        path: path.to_owned(),
        source,
    })
}

fn pem(path: &Path) -> Result<Vec<u8>, TlsError> {
    config::file::read(path, LONGEST_FILE_BYTES).map_err(|error| TlsError::File {
        path: path.to_owned(),
        source: rustls::pki_types::pem::Error::Io(error),
    })
}
