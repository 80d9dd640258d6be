//! Certificate files of the data port and towards the workers. The router reads them again when they change.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// TLS of the data port. The files are read again when they change; open connections are not affected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Tls")]
pub(crate) struct TlsSection {
    /// Certificate chain of the router (PEM). Empty: the data port does not use TLS.
    pub cert_file: String,
    /// Private key of the certificate (PEM).
    pub key_file: String,
    /// Root certificates (PEM) for client certificates, which are then required. Empty: not required.
    pub client_ca_file: String,
    /// TLS towards workers whose url is `https`.
    pub workers: WorkersTlsSection,
}

/// TLS towards the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "WorkersTls")]
pub(crate) struct WorkersTlsSection {
    /// Root certificates (PEM) for workers' certificates. Empty: the system's roots.
    pub ca_file: String,
    /// Client certificate that the router presents to workers (PEM). Empty: none.
    pub cert_file: String,
    /// Private key of that certificate (PEM).
    pub key_file: String,
}

/// TLS on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// TLS of the data port, if enabled.
    pub server: Option<ServerTls>,
    /// TLS towards workers with an `https` url.
    pub workers: WorkersTls,
}

/// TLS of the data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Certificate of the router.
    pub identity: Identity,
    /// Roots for clients' certificates, which are then required.
    pub client_ca: Option<PathBuf>,
}

/// TLS towards the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkersTls {
    /// Roots in place of the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate of the router, if there is one.
    pub identity: Option<Identity>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Path of the certificate chain (PEM).
    pub cert: PathBuf,
    /// Path of the private key (PEM).
    pub key: PathBuf,
}

impl Tls {
    /// Returns the paths of all files of certificates and keys.
    pub fn files(&self) -> Vec<&PathBuf> {
        let server = self.server.iter().flat_map(|server| {
            [&server.identity.cert, &server.identity.key]
                .into_iter()
                .chain(&server.client_ca)
        });
        let identity = self.workers.identity.iter();
        let workers = identity.flat_map(|identity| [&identity.cert, &identity.key]);
        server.chain(workers).chain(&self.workers.ca).collect()
    }
}

impl TlsSection {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Tls {
        let own = identity("tls", self.cert_file, self.key_file, checker);
        let client_ca = path(self.client_ca_file);
        if own.is_none() && client_ca.is_some() {
            let what = "asks for clients' certificates, but the port is not encrypted".to_owned();
            checker.report(
                "tls.client_ca_file",
                what,
                Some("set tls.cert_file and tls.key_file".to_owned()),
            );
        }
        let workers = self.workers;
        Tls {
            server: own.map(|identity| ServerTls { identity, client_ca }),
            workers: WorkersTls {
                ca: path(workers.ca_file),
                identity: identity("tls.workers", workers.cert_file, workers.key_file, checker),
            },
        }
    }
}

fn identity(section: &str, cert: String, key: String, checker: &mut Checker<'_>) -> Option<Identity> {
    match (path(cert), path(key)) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some(Identity { cert, key }),
        (cert, _) => {
            let missing = if cert.is_some() { "key_file" } else { "cert_file" };
            let what = "missing; a certificate and its key come together".to_owned();
            checker.report(&format!("{section}.{missing}"), what, None);
            None
        }
    }
}

fn path(text: String) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}
