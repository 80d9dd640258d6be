//! Certificates, of the data port and towards the workers: read, checked, and read again when they change.
//!
//! What is in force is swapped whole. Each connection takes what is there when it begins and keeps it, so that a renewed
//! certificate drops nobody, and one that cannot be used changes nothing. TLS 1.2 and 1.3, no renegotiation, no
//! compression, rustls's own choice of ciphers; HTTP/2 and HTTP/1.1 are offered by ALPN.

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

/// Longest file of certificates; a bundle of every public root is a quarter of it.
const LONGEST_FILE_BYTES: u64 = 1 << 20;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM.
    #[error("{}: cannot be read as PEM", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds no certificate.
    #[error("{}: holds no certificate", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not fit, or are of no use.
    #[error("{}: cannot be used", path.display())]
    Unusable {
        /// The file with the certificate.
        path: PathBuf,
        /// What was wrong.
        source: rustls::Error,
    },
    /// No client could ever be verified by these roots.
    #[error("{}: no roots to verify clients by", path.display())]
    Roots {
        /// The file with the roots.
        path: PathBuf,
        /// What was wrong.
        source: rustls::server::VerifierBuilderError,
    },
    /// There are no roots at all.
    #[error("this machine has no root certificates for https workers; set tls.workers.ca_file")]
    NoRoots,
    /// There are none for the collector.
    #[error("this machine has no root certificates for an https collector; set traces.ca_file")]
    NoRootsForTraces,
    /// There are none for the API server.
    #[error(
        "this machine has no root certificates for an https API server; set discovery.kubernetes.ca_file"
    )]
    NoRootsForKubernetes,
    /// There are none for NATS.
    #[error("this machine has no root certificates for a NATS server with TLS; set fleet.ca_file")]
    NoRootsForNats,
}

/// What is in force.
#[derive(Debug)]
pub struct Tls {
    server: Option<ArcSwap<ServerConfig>>,
    workers: Arc<ArcSwap<ClientConfig>>,
}

impl Tls {
    /// Reads what the configuration names.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn load(config: &config::Config) -> Result<Self, TlsError> {
        let server = config.tls.server.as_ref().map(server).transpose()?;
        Ok(Self {
            server: server.map(ArcSwap::from_pointee),
            workers: Arc::new(ArcSwap::from_pointee(workers(config)?)),
        })
    }

    /// Reads it again. If any of it cannot be used, all of it stays as it was. Whether the data port is encrypted at all
    /// does not change.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn reload(&self, config: &config::Config) -> Result<(), TlsError> {
        let fresh = Self::load(config)?;
        if let (Some(server), Some(fresh)) = (&self.server, fresh.server) {
            server.store(fresh.load_full());
        }
        self.workers.store(fresh.workers.load_full());
        Ok(())
    }

    /// Encryption of a connection that begins now; `None` if the data port has none.
    #[must_use]
    pub fn acceptor(&self) -> Option<tokio_rustls::TlsAcceptor> {
        self.server.as_ref().map(|server| server.load_full().into())
    }

    /// Connects to workers, within this time.
    #[must_use]
    pub fn connector(&self, mut http: HttpConnector, timeout: Duration) -> Connector {
        http.enforce_http(false);
        Connector {
            http,
            timeout,
            tls: Arc::clone(&self.workers),
        }
    }
}

/// Connects to workers, by TLS where their url says `https`, with what is in force when it does.
#[derive(Clone, Debug)]
pub struct Connector {
    http: HttpConnector,
    /// For all of it, the handshake included: a worker may take connections and say nothing.
    timeout: Duration,
    tls: Arc<ArcSwap<ClientConfig>>,
}

type ConnectError = Box<dyn std::error::Error + Send + Sync>;

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
    let roots = match &tls.ca {
        Some(path) => roots(path)?,
        None if is_needed => machine_roots()?,
        None => RootCertStore::empty(),
    };
    let path = || tls.identity.as_ref().map(|identity| identity.cert.clone());
    let unusable = |source| TlsError::Unusable {
        path: path().unwrap_or_default(),
        source,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    match &tls.identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => builder
            .with_client_auth_cert(chain(&identity.cert)?, key(&identity.key)?)
            .map_err(unusable),
    }
}

/// Connects to a collector of traces: where its url says `https`, verified by the roots that are named, or the machine's.
///
/// # Errors
/// If it has to be verified, and the roots cannot be read, or the machine has none.
pub fn towards_collector(
    mut http: HttpConnector,
    traces: &config::Traces,
    timeout: Duration,
) -> Result<Connector, TlsError> {
    http.enforce_http(false);
    let is_encrypted = traces.endpoint.scheme_str() == Some("https");
    let roots = match &traces.ca {
        Some(path) => roots(path)?,
        None if is_encrypted => machine_roots().map_err(|_| TlsError::NoRootsForTraces)?,
        None => RootCertStore::empty(),
    };
    let mut tls = trusting(roots)?;
    if traces.protocol == config::OtlpProtocol::Grpc {
        tls.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(Connector {
        http,
        timeout,
        tls: Arc::new(ArcSwap::from_pointee(tls)),
    })
}

/// Connects to an API server of this url: where it is `https`, its certificate has to lead to a root of this file, or to the
/// machine's.
///
/// # Errors
/// If the roots cannot be read, or the machine has none.
pub fn towards_kubernetes(
    mut http: HttpConnector,
    url: &Uri,
    ca: Option<&Path>,
    timeout: Duration,
) -> Result<Connector, TlsError> {
    http.enforce_http(false);
    let is_encrypted = url.scheme_str() == Some("https");
    let roots = match ca.filter(|_| is_encrypted) {
        Some(path) => roots(path)?,
        None if is_encrypted => machine_roots().map_err(|_| TlsError::NoRootsForKubernetes)?,
        None => RootCertStore::empty(),
    };
    Ok(Connector {
        http,
        timeout,
        tls: Arc::new(ArcSwap::from_pointee(trusting(roots)?)),
    })
}

/// Of a client without a certificate of its own that trusts these roots.
fn trusting(roots: RootCertStore) -> Result<ClientConfig, TlsError> {
    let versions = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let versions = versions.map_err(|source| TlsError::Unusable {
        path: PathBuf::new(),
        source,
    })?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}

/// TLS towards a NATS server, verified by the roots that are named, or the machine's.
///
/// # Errors
/// If a file cannot be used, or the machine has no roots.
pub fn towards_nats(fleet: &config::Fleet) -> Result<ClientConfig, TlsError> {
    let unusable = |source| TlsError::Unusable {
        path: (fleet.identity.as_ref()).map_or_else(PathBuf::new, |(cert, _)| cert.clone()),
        source,
    };
    let roots = match &fleet.ca {
        Some(path) => roots(path)?,
        None => machine_roots().map_err(|_| TlsError::NoRootsForNats)?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    match &fleet.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, secret)) => builder
            .with_client_auth_cert(chain(certificate)?, key(secret)?)
            .map_err(unusable),
    }
}

fn machine_roots() -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    // A root that cannot be read is passed over: there are many, and what matters is that a worker's is among them.
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if store.is_empty() {
        return Err(TlsError::NoRoots);
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
