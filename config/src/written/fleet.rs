//! Several replicas of the router in front of the same workers: `[fleet]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Other replicas of this router, in front of the same workers. Through a NATS server they report the turns that they
/// send, so that they do not all select the same idle worker, and each knows the prefixes that the others' turns leave
/// in caches. Workers are identified by name: every replica must use the same names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    /// NATS server, as in `nats://10.0.0.5:4222`, or several of one cluster, separated by commas; `tls://` to use TLS.
    /// Empty: no other replicas. While no server responds, the router works on its own.
    pub nats: String,
    /// File of NATS credentials (`.creds`: a user's JWT and its seed). Read again at each connection. Empty: none.
    pub credentials_file: String,
    /// File with the token that the server requires. Empty: none.
    pub token_file: String,
    /// Root certificates (PEM) for the server, with `tls://`. Empty: the system's roots.
    pub ca_file: String,
    /// Client certificate of the router (PEM). Empty: none.
    pub cert_file: String,
    /// Private key of that certificate (PEM).
    pub key_file: String,
    /// Name that the replicas of one fleet share, and no other fleet of the NATS server has: letters, digits, `-` and
    /// `_`. It is the prefix of their subjects and names their bucket.
    pub cluster: String,
    /// Name of this replica in logs and for the others. Empty: the host name.
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
