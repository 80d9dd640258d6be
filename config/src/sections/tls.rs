//! Encryption on both sides: which files it takes. What is in them is read by the router, and read again when it changes.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;

/// Encryption of the data port. The files are read again when they change; connections that are open stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Tls")]
pub(crate) struct TlsSection {
    /// The router's certificate and those that lead to its root, as PEM. Empty: the data port is not encrypted.
    pub cert_file: String,
    /// The certificate's private key, as PEM.
    pub key_file: String,
    /// Roots, as PEM: clients must show a certificate that leads to one of them. Empty: none is asked for.
    pub client_ca_file: String,
    /// Encryption towards workers whose url is `https`.
    pub workers: WorkersTlsSection,
}

/// Encryption towards the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "WorkersTls")]
pub(crate) struct WorkersTlsSection {
    /// Roots, as PEM, that workers' certificates must lead to. Empty: the machine's own.
    pub ca_file: String,
    /// The certificate that the router shows to workers, as PEM. Empty: none.
    pub cert_file: String,
    /// That certificate's private key, as PEM.
    pub key_file: String,
}

/// Encryption on both sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Of the data port, if it is encrypted.
    pub server: Option<ServerTls>,
    /// Towards workers whose url is `https`.
    pub workers: WorkersTls,
}

/// Encryption of the data port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// What the router shows.
    pub identity: Identity,
    /// Roots that clients' certificates must lead to, if they must show one.
    pub client_ca: Option<PathBuf>,
}

/// Encryption towards the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkersTls {
    /// Roots in place of the machine's own.
    pub ca: Option<PathBuf>,
    /// What the router shows.
    pub identity: Option<Identity>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The chain, PEM.
    pub cert: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

impl Tls {
    /// Every file that is named.
    #[must_use]
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

pub(super) fn tls(written: TlsSection, checker: &mut Checker<'_>) -> Tls {
    let identity = identity("tls", written.cert_file, written.key_file, checker);
    let client_ca = path(written.client_ca_file);
    if identity.is_none() && client_ca.is_some() {
        let what = "asks for clients' certificates, but the port is not encrypted".to_owned();
        checker.report(
            "tls.client_ca_file",
            what,
            Some("set tls.cert_file and tls.key_file".to_owned()),
        );
    }
    let workers = written.workers;
    Tls {
        server: identity.map(|identity| ServerTls { identity, client_ca }),
        workers: WorkersTls {
            ca: path(workers.ca_file),
            identity: self::identity("tls.workers", workers.cert_file, workers.key_file, checker),
        },
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
