//! TLS on both sides: `[tls]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// TLS of the data port. The files are read again when they change; open connections are not affected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Certificate chain of the router (PEM). Empty: the data port does not use TLS.
    pub cert_file: String,
    /// Private key of the certificate (PEM).
    pub key_file: String,
    /// Root certificates (PEM) for client certificates, which are then required. Empty: not required.
    pub client_ca_file: String,
    /// TLS towards workers whose url is `https`.
    pub workers: WorkersTls,
}

/// TLS towards the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersTls {
    /// Root certificates (PEM) for workers' certificates. Empty: the system's roots.
    pub ca_file: String,
    /// Client certificate that the router presents to workers (PEM). Empty: none.
    pub cert_file: String,
    /// Private key of that certificate (PEM).
    pub key_file: String,
}
