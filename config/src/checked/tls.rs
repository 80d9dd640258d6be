//! Encryption on both sides: which files it takes. What is in them is read by the router, and read again when it changes.

use std::path::PathBuf;

use super::checker::Checker;
use crate::written;

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

pub(super) fn tls(written: written::Tls, checker: &mut Checker<'_>) -> Tls {
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
