//! Encryption on both sides: `[tls]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Encryption of the data port. The files are read again when they change; connections that are open stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The router's certificate and those that lead to its root, as PEM. Empty: the data port is not encrypted.
    pub cert_file: String,
    /// The certificate's private key, as PEM.
    pub key_file: String,
    /// Roots, as PEM: clients must show a certificate that leads to one of them. Empty: none is asked for.
    pub client_ca_file: String,
    /// Encryption towards workers whose url is `https`.
    pub workers: WorkersTls,
}

/// Encryption towards the workers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersTls {
    /// Roots, as PEM, that workers' certificates must lead to. Empty: the machine's own.
    pub ca_file: String,
    /// The certificate that the router shows to workers, as PEM. Empty: none.
    pub cert_file: String,
    /// That certificate's private key, as PEM.
    pub key_file: String,
}
