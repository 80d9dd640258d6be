//! Several replicas of the router.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::secret::{Secret, secret};
use super::worker::check_name;
use crate::file;

/// Other replicas of this router, in front of the same workers. Through a NATS server they report the turns that they
/// send, so that they do not all select the same idle worker, and each knows the prefixes that the others' turns leave
/// in caches. Workers are identified by name: every replica must use the same names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Fleet")]
pub(crate) struct FleetSection {
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

impl Default for FleetSection {
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

/// Length of the longest file of credentials or certificates.
const LONGEST_FILE_BYTES: u64 = 1 << 20;
const MOST_SERVERS: usize = 16;
/// Length of the longest name of a fleet, which is the prefix of its subjects and names its bucket.
const LONGEST_CLUSTER: usize = 32;
const CREDENTIALS: [&str; 2] = ["-----BEGIN NATS USER JWT-----", "-----BEGIN USER NKEY SEED-----"];

/// Other replicas in front of the same workers, and the NATS servers between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// `nats://host:port` or `tls://host:port`, all of one scheme. Never empty.
    pub servers: Vec<String>,
    /// Whether TLS is used.
    pub is_encrypted: bool,
    /// Credentials file, if there is one.
    pub credentials: Option<PathBuf>,
    /// Token for the server, if there is one.
    pub token: Option<Secret>,
    /// Roots in place of the system's.
    pub ca: Option<PathBuf>,
    /// Client certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name of the fleet: 1 to 32 letters, digits, `-` and `_`.
    pub cluster: String,
    /// Name of the replica, if configured: 1 to 64 visible ASCII characters.
    pub replica: Option<String>,
}

/// Checks the section; `None` if there are no other replicas.
pub(super) fn fleet(written: FleetSection, checker: &mut Checker<'_>) -> Option<Fleet> {
    let cluster_is_plain = (1..=LONGEST_CLUSTER).contains(&written.cluster.len())
        && (written.cluster.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !cluster_is_plain {
        let what = format!(
            "expected 1 to {LONGEST_CLUSTER} letters, digits, `-` and `_`, found {:?}",
            written.cluster
        );
        checker.report("fleet.cluster", what, None);
    }
    if !written.replica.is_empty() {
        check_name(&written.replica, "fleet.replica", checker);
    }
    let servers = servers(&written.nats, checker);
    let is_encrypted = servers.iter().any(|server| server.starts_with("tls://"));
    files(&written, is_encrypted, checker);
    if servers.is_empty() {
        return None;
    }
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    Some(Fleet {
        servers,
        is_encrypted,
        credentials: path(&written.credentials_file),
        token: secret(&written.token_file, "fleet.token_file", checker),
        ca: path(&written.ca_file),
        identity: path(&written.cert_file).zip(path(&written.key_file)),
        cluster: written.cluster,
        replica: Some(written.replica).filter(|name| !name.is_empty()),
    })
}

fn servers(text: &str, checker: &mut Checker<'_>) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
    for url in urls {
        match server(url) {
            Ok(server) => servers.push(server),
            Err((what, hint)) => {
                let what = format!("{what}; expected a url such as nats://10.0.0.5:4222, found {url:?}");
                checker.report("fleet.nats", what, hint.map(str::to_owned));
            }
        }
    }
    let scheme = |server: &String| server.starts_with("tls://");
    if servers.iter().any(scheme) && !servers.iter().all(scheme) {
        let what = "some use TLS and some do not".to_owned();
        checker.report(
            "fleet.nats",
            what,
            Some("write tls:// for all, or for none".to_owned()),
        );
    }
    if servers.len() > MOST_SERVERS {
        let what = format!("{} servers; expected at most {MOST_SERVERS}", servers.len());
        let hint = "list a few: they announce the others of their cluster".to_owned();
        checker.report("fleet.nats", what, Some(hint));
    }
    servers
}

/// Parses the url of a server, and adds the default port.
fn server(url: &str) -> Result<String, (&'static str, Option<&'static str>)> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(("no scheme", Some("put nats:// in front")));
    };
    if !matches!(scheme, "nats" | "tls") {
        return Err(("neither nats:// nor tls://", None));
    }
    let authority: http::uri::Authority = rest.parse().map_err(|_| ("no host", None))?;
    if authority.as_str().contains('@') {
        let hint = "use fleet.credentials_file or fleet.token_file";
        return Err(("credentials in a url end up in logs", Some(hint)));
    }
    if authority.host().is_empty() {
        return Err(("no host", None));
    }
    let port = match authority.port_u16() {
        Some(0) => return Err(("no usable port", None)),
        Some(port) => port,
        None if authority.as_str() == authority.host() => 4222,
        None => return Err(("no usable port", None)),
    };
    Ok(format!("{scheme}://{}:{port}", authority.host()))
}

/// Reports named files that cannot be used with the other settings.
fn files(written: &FleetSection, is_encrypted: bool, checker: &mut Checker<'_>) {
    let named = [
        ("fleet.credentials_file", &written.credentials_file),
        ("fleet.token_file", &written.token_file),
        ("fleet.ca_file", &written.ca_file),
        ("fleet.cert_file", &written.cert_file),
        ("fleet.key_file", &written.key_file),
    ];
    for (path, file) in named.into_iter().filter(|(_, file)| !file.is_empty()) {
        if written.nats.is_empty() {
            let what = "is set, but `fleet.nats` has no servers".to_owned();
            checker.report(path, what, Some("set fleet.nats, or leave this out".to_owned()));
        } else if path != "fleet.token_file" && file::read(Path::new(file), LONGEST_FILE_BYTES).is_err() {
            checker.report(path, format!("{file} cannot be read"), None);
        }
    }
    for (path, file) in &named[2..] {
        if !file.is_empty() && !is_encrypted && !written.nats.is_empty() {
            let what = "is set with a server that does not use TLS".to_owned();
            checker.report(path, what, Some("write tls:// in fleet.nats".to_owned()));
        }
    }
    if written.cert_file.is_empty() != written.key_file.is_empty() {
        let what = "a certificate and its key go together".to_owned();
        checker.report("fleet.cert_file", what, Some("set both, or neither".to_owned()));
    }
    if !written.credentials_file.is_empty() && !written.token_file.is_empty() {
        let what = "is set together with fleet.credentials_file; a server uses only one of them".to_owned();
        checker.report("fleet.token_file", what, Some("remove one of the two".to_owned()));
    }
    if let Ok(text) = file::read_text(Path::new(&written.credentials_file), LONGEST_FILE_BYTES)
        && !CREDENTIALS.iter().all(|part| text.contains(part))
    {
        let what = format!(
            "{} holds no NATS credentials: expected a user's JWT and its seed, as `nsc generate creds` writes them",
            written.credentials_file
        );
        checker.report("fleet.credentials_file", what, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_with_a_port_or_the_usual_one() {
        assert_eq!(server("nats://a").unwrap(), "nats://a:4222");
        assert_eq!(server("tls://[::1]:5222").unwrap(), "tls://[::1]:5222");
        for (wrong, what) in [
            ("10.0.0.5:4222", "no scheme"),
            ("http://a", "neither nats:// nor tls://"),
            ("nats://", "no host"),
            ("nats://user:canary@a", "credentials in a url end up in logs"),
            ("nats://a:0", "no usable port"),
            ("nats://a:99999", "no usable port"),
            ("nats://a/path", "no host"),
        ] {
            assert_eq!(server(wrong).unwrap_err().0, what, "{wrong}");
        }
    }
}
