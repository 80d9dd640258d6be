//! Several replicas of the router.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsPath, AsText};
use super::checker::Checker;
use super::secret::{Secret, secret};
use super::worker::check_name;
use crate::file;

/// Other replicas of this router, in front of the same workers. Through a NATS server they report the turns that they
/// send, so that they do not all select the same idle worker, and each knows the prefixes that the others' turns leave
/// in caches. Workers are identified by name: every replica must use the same names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(
    rename = "Fleet",
    bound = "Self: Default, Servers: Serialize + JsonSchema, Token: Serialize + JsonSchema"
)]
pub struct Fleet<Servers = Vec<String>, Token = Option<Secret>> {
    /// NATS server, as in `nats://10.0.0.5:4222`, or several of one cluster, separated by commas; `tls://` to use TLS.
    /// Empty: no other replicas. While no server responds, the router works on its own.
    #[serde(rename = "nats")]
    pub servers: Servers,
    /// File of NATS credentials (`.creds`: a user's JWT and its seed). Read again at each connection. Empty: none.
    #[serde(rename = "credentials_file", with = "AsPath")]
    pub credentials: Option<PathBuf>,
    /// File with the token that the server requires. Empty: none.
    #[serde(rename = "token_file")]
    pub token: Token,
    /// Root certificates (PEM) for the server, with `tls://`. Empty: the system's roots.
    #[serde(rename = "ca_file", with = "AsPath")]
    pub ca: Option<PathBuf>,
    /// Client certificate of the router (PEM). Empty: none.
    #[serde(rename = "cert_file", with = "AsPath")]
    pub cert: Option<PathBuf>,
    /// Private key of that certificate (PEM).
    #[serde(rename = "key_file", with = "AsPath")]
    pub key: Option<PathBuf>,
    /// Name that the replicas of one fleet share, and no other fleet of the NATS server has: letters, digits, `-` and
    /// `_`. It is the prefix of their subjects and names their bucket.
    pub cluster: String,
    /// Name of this replica in logs and for the others. Empty: the host name.
    #[serde(with = "AsText")]
    pub replica: Option<String>,
}

impl Default for Fleet<String, String> {
    fn default() -> Self {
        Self {
            servers: String::new(),
            credentials: None,
            token: String::new(),
            ca: None,
            cert: None,
            key: None,
            cluster: "tailroute".to_owned(),
            replica: None,
        }
    }
}

/// Length of the longest file of credentials or certificates.
const LONGEST_FILE_BYTES: u64 = 1 << 20;
const MOST_SERVERS: usize = 16;
/// Length of the longest name of a fleet, which is the prefix of its subjects and names its bucket.
const LONGEST_CLUSTER: usize = 32;
const CREDENTIALS: [&str; 2] = ["-----BEGIN NATS USER JWT-----", "-----BEGIN USER NKEY SEED-----"];

impl Fleet {
    /// Returns whether the servers use TLS: all of them, or none.
    pub fn is_encrypted(&self) -> bool {
        uses_tls(&self.servers)
    }

    /// Returns the paths of the client certificate and its key, if the router has one.
    pub fn identity(&self) -> Option<(&Path, &Path)> {
        self.cert.as_deref().zip(self.key.as_deref())
    }
}

impl Fleet<String, String> {
    /// Checks the section; `None` if there are no other replicas.
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Option<Fleet> {
        let cluster_is_plain = (1..=LONGEST_CLUSTER).contains(&self.cluster.len())
            && (self.cluster.bytes()).all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !cluster_is_plain {
            let what = format!(
                "expected 1 to {LONGEST_CLUSTER} letters, digits, `-` and `_`, found {:?}",
                self.cluster
            );
            checker.report("fleet.cluster", what, None);
        }
        if let Some(replica) = &self.replica {
            check_name(replica, "fleet.replica", checker);
        }
        let servers = servers(&self.servers, checker);
        self.check_files(uses_tls(&servers), checker);
        if servers.is_empty() {
            return None;
        }
        let token = self
            .token_file()
            .and_then(|file| secret(file, "fleet.token_file", checker));
        Some(Fleet {
            servers,
            credentials: self.credentials,
            token,
            ca: self.ca,
            cert: self.cert,
            key: self.key,
            cluster: self.cluster,
            replica: self.replica,
        })
    }

    fn token_file(&self) -> Option<&Path> {
        (!self.token.is_empty()).then(|| Path::new(&self.token))
    }

    /// Reports named files that cannot be used with the other settings.
    fn check_files(&self, is_encrypted: bool, checker: &mut Checker<'_>) {
        let named = [
            ("fleet.credentials_file", self.credentials.as_deref()),
            ("fleet.token_file", self.token_file()),
            ("fleet.ca_file", self.ca.as_deref()),
            ("fleet.cert_file", self.cert.as_deref()),
            ("fleet.key_file", self.key.as_deref()),
        ];
        for (path, file) in named {
            let Some(file) = file else { continue };
            if self.servers.is_empty() {
                let what = "is set, but `fleet.nats` has no servers".to_owned();
                checker.report(path, what, Some("set fleet.nats, or leave this out".to_owned()));
            } else if path != "fleet.token_file" && file::read(file, LONGEST_FILE_BYTES).is_err() {
                checker.report(path, format!("{} cannot be read", file.display()), None);
            }
        }
        for (path, file) in &named[2..] {
            if file.is_some() && !is_encrypted && !self.servers.is_empty() {
                let what = "is set with a server that does not use TLS".to_owned();
                checker.report(path, what, Some("write tls:// in fleet.nats".to_owned()));
            }
        }
        if self.cert.is_some() != self.key.is_some() {
            let what = "a certificate and its key go together".to_owned();
            checker.report("fleet.cert_file", what, Some("set both, or neither".to_owned()));
        }
        if self.credentials.is_some() && self.token_file().is_some() {
            let what =
                "is set together with fleet.credentials_file; a server uses only one of them".to_owned();
            checker.report("fleet.token_file", what, Some("remove one of the two".to_owned()));
        }
        if let Some(path) = &self.credentials
            && let Ok(text) = file::read_text(path, LONGEST_FILE_BYTES)
            && !CREDENTIALS.iter().all(|part| text.contains(part))
        {
            let what = format!(
                "{} holds no NATS credentials: expected a user's JWT and its seed, as `nsc generate creds` writes them",
                path.display()
            );
            checker.report("fleet.credentials_file", what, None);
        }
    }
}

fn uses_tls(servers: &[String]) -> bool {
    servers.iter().any(|server| server.starts_with("tls://"))
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
    let encrypted = servers
        .iter()
        .filter(|server| server.starts_with("tls://"))
        .count();
    if (1..servers.len()).contains(&encrypted) {
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
