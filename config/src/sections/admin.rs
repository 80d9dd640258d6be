//! The admin port, its tokens and its audit log.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsPath, at_least_one};
use super::checker::Checker;
use super::keys::KeyDigest;
use super::worker::check_name;

/// Settings of the admin port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(
    rename = "Admin",
    deny_unknown_fields,
    bound = "Self: Default, Address: Serialize + JsonSchema, AuditFile: JsonSchema"
)]
pub struct Admin<Address = SocketAddr, AuditFile = Option<Audit>> {
    /// Address and port of metrics and administration. Must be a loopback address unless `tokens_file` is set.
    pub listen: Address,
    /// File of tokens with their roles, as `[[tokens]]` sections made by `tailroute key new --role`. Empty: every
    /// caller on the port, which is then a loopback address, has all rights.
    #[serde(with = "AsPath")]
    pub tokens_file: Option<PathBuf>,
    /// Tokens of that file.
    #[serde(skip)]
    pub tokens: Vec<Token>,
    /// Whether `/metrics` needs no token, even where there are tokens.
    pub open_metrics: bool,
    /// Audit file, if enabled.
    #[serde(flatten)]
    pub audit: AuditFile,
}

impl Default for Admin<String, Audit> {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9090".to_owned(),
            tokens_file: None,
            tokens: Vec::new(),
            open_metrics: false,
            audit: Audit::default(),
        }
    }
}

/// Settings of the audit file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Audit {
    /// File to which every change is appended as a line of JSON; refused requests go to `FILE.refused` beside it.
    /// Empty: entries are only kept in memory.
    #[serde(rename = "audit_file")]
    pub path: PathBuf,
    /// Length in bytes at which either file is full; it is then renamed to `….1`, replacing the previous one.
    #[serde(rename = "audit_max_bytes")]
    #[schemars(with = "u64", range(min = 65_536))]
    pub max_bytes: NonZeroUsize,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            max_bytes: at_least_one(64 << 20),
        }
    }
}

/// A token of the admin port. The file has only its hash; `tailroute key new --role ROLE NAME` makes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "sha256", "role"]))]
#[schemars(rename = "Token", bound = "Self: Default, Digest: Serialize + JsonSchema")]
pub struct Token<Digest = KeyDigest> {
    /// Name of the token in the audit log. Unique.
    pub name: String,
    /// SHA-256 of the token, as 64 hexadecimal digits. Only for tokens of 128 random bits or more.
    #[serde(rename = "sha256")]
    pub digest: Digest,
    /// Role of the token. Each role includes the rights of the previous one.
    pub role: Role,
}

impl Default for Token<String> {
    fn default() -> Self {
        Self {
            name: String::new(),
            digest: String::new(),
            role: Role::Read,
        }
    }
}

/// Role of a token of the admin port. Each includes the rights of the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read everything.
    Read,
    /// Cordon and drain workers, set their α, calibrate them, reset keys, capture turns, preview and shadow policies,
    /// set the log level.
    Operate,
    /// Change the policy and its weights, add and remove workers.
    Admin,
}

impl Role {
    /// Returns the name as written in a file of tokens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A file of tokens, separate from the configuration so that it can be a secret and change by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TokensFile {
    /// Tokens of the admin port.
    pub tokens: Vec<Token<String>>,
}

impl Admin<String, Audit> {
    pub(crate) fn checked(self, checker: &mut Checker<'_>) -> Admin {
        let listen = checker.address("admin.listen", &self.listen);
        if !listen.ip().is_loopback() && self.tokens_file.is_none() {
            let what = format!(
                "missing; {listen} is not a loopback address, and without tokens anyone who reaches it could change the \
                 policy"
            );
            let hint =
                "write tokens (`tailroute key new --role admin NAME`), or listen on 127.0.0.1".to_owned();
            checker.report("admin.tokens_file", what, Some(hint));
        }
        let mut tokens = Vec::new();
        if let Some(file) = &self.tokens_file {
            checker.check_file("admin.tokens_file", file, |written: TokensFile, checker| {
                tokens = check_all(written.tokens, checker);
            });
        }
        Admin {
            listen,
            tokens,
            tokens_file: self.tokens_file,
            open_metrics: self.open_metrics,
            audit: Some(self.audit).filter(|audit| !audit.path.as_os_str().is_empty()),
        }
    }
}

/// Names in the audit log that are not tokens: the router itself, and callers where there are no tokens.
const RESERVED: [&str; 2] = ["router", "loopback"];

fn check_all(written: Vec<Token<String>>, checker: &mut Checker<'_>) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::with_capacity(written.len());
    for (at, token) in written.into_iter().enumerate() {
        let path = |key: &str| format!("tokens[{at}].{key}");
        check_name(&token.name, &path("name"), checker);
        if RESERVED
            .iter()
            .any(|reserved| token.name.eq_ignore_ascii_case(reserved))
        {
            let what = format!("`{}` is reserved in the audit log", token.name);
            checker.report(&path("name"), what, Some("take another name".to_owned()));
        }
        let Some(digest) = KeyDigest::read(&token.digest) else {
            let what = "expected the 64 hexadecimal digits of a SHA-256".to_owned();
            let hint = "`tailroute key new --role ROLE NAME` makes a token and writes its section".to_owned();
            checker.report(&path("sha256"), what, Some(hint));
            continue;
        };
        if tokens.iter().any(|known| known.name == token.name) {
            let what = format!("`{}` is already the name of another token", token.name);
            checker.report(&path("name"), what, None);
        }
        if let Some(known) = tokens.iter().find(|known| known.digest == digest) {
            let what = format!("is already the token `{}`", known.name);
            checker.report(&path("sha256"), what, None);
        }
        tokens.push(Token {
            name: token.name,
            digest,
            role: token.role,
        });
    }
    tokens
}
