//! Several replicas of the router before the same workers: `[fleet]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Other replicas of this router, before the same workers. They tell each other by a NATS server what they send where, so
/// that they do not all send to the same idle worker, and each knows what the others' turns have left in which cache.
/// Workers go by their names: every replica must call them alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    /// The NATS server, as in `nats://10.0.0.5:4222`, or several of one cluster, separated by commas; `tls://` for one that is
    /// to be spoken to by TLS. Empty: this router knows of no other. Without a server that answers it works by itself.
    pub nats: String,
    /// File of NATS credentials (`.creds`: a user's JWT and its seed). Read again at each connection. Empty: none.
    pub credentials_file: String,
    /// File with the token that the server asks for, where it asks for one. Empty: none.
    pub token_file: String,
    /// Roots, as PEM, that the server's certificate must lead to, with `tls://`. Empty: the machine's own.
    pub ca_file: String,
    /// The certificate that the router shows to the server, as PEM. Empty: none.
    pub cert_file: String,
    /// That certificate's private key, as PEM.
    pub key_file: String,
    /// What the replicas of one fleet have in common, and no other fleet of the NATS server: letters, digits, `-` and `_`. Its
    /// subjects begin with it, and its bucket is named after it.
    pub cluster: String,
    /// What this replica is called in logs and by the others. Empty: the machine's name.
    pub replica: String,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            nats: String::new(),
            credentials_file: String::new(),
            token_file: String::new(),
            ca_file: String::new(),
            cert_file: String::new(),
            key_file: String::new(),
            cluster: "tailroute".to_owned(),
            replica: String::new(),
        }
    }
}
