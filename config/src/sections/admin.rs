//! The admin port, and who may do what there.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::keys::KeyDigest;
use super::worker::check_name;

/// The admin port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Admin")]
pub(crate) struct AdminSection {
    /// Address and port of metrics and administration. Without `tokens_file` it has to be a loopback address.
    pub listen: String,
    /// File of tokens, `[[tokens]]` sections as `tailroute key new --role` makes them: who may read, operate and
    /// administer. Empty: whoever reaches the port, which is then a loopback address, may do everything.
    pub tokens_file: String,
    /// Whether `/metrics` is shown to whoever asks, even where there are tokens.
    pub open_metrics: bool,
    /// File that every change is written to as a line of JSON, and beside it as `FILE.refused` what was refused. Empty: they
    /// are only kept in memory.
    pub audit_file: String,
    /// Bytes at which either file is full; it then becomes `….1`, in place of the one before.
    #[schemars(range(min = 65_536))]
    pub audit_max_bytes: u64,
}

impl Default for AdminSection {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9090".to_owned(),
            tokens_file: String::new(),
            open_metrics: false,
            audit_file: String::new(),
            audit_max_bytes: 64 << 20,
        }
    }
}

/// One token of the admin port. Only its hash is written down; `tailroute key new --role ROLE NAME` makes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "sha256", "role"]))]
#[schemars(rename = "Token")]
pub(crate) struct TokenSection {
    /// Whose it is, in the audit log. Unique.
    pub name: String,
    /// SHA-256 of the token, as 64 hexadecimal digits. Only for tokens of 128 random bits or more.
    pub sha256: String,
    /// What it may do.
    pub role: Role,
}

impl Default for TokenSection {
    fn default() -> Self {
        Self {
            name: String::new(),
            sha256: String::new(),
            role: Role::Read,
        }
    }
}

/// What a token of the admin port may do. Each may do what the one before may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Read,
    /// Take workers out and back, start and stop captures, try weights on what was captured.
    Operate,
    /// Change the policy and its weights.
    Admin,
}

impl Role {
    /// The name, as written in a file of tokens.
    #[must_use]
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

/// A file of tokens, apart from the configuration: so that it can be a secret, and change by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TokensFile {
    /// The tokens.
    pub tokens: Vec<TokenSection>,
}

/// The admin port.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Address of metrics and administration. A loopback address unless there is a file of tokens.
    pub listen: SocketAddr,
    /// The file of tokens, if there is one.
    pub tokens_file: Option<PathBuf>,
    /// What it holds.
    pub tokens: Vec<Token>,
    /// Whether `/metrics` needs no token.
    pub open_metrics: bool,
    /// Where changes are written to, if anywhere.
    pub audit: Option<Audit>,
}

/// A token of the admin port.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Unique; 1 to 64 visible ASCII characters.
    pub name: String,
    /// Of the token itself.
    pub digest: KeyDigest,
    /// What it may do.
    pub role: Role,
}

/// The file of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The file.
    pub path: PathBuf,
    /// Bytes at which it is full.
    pub max_bytes: NonZeroUsize,
}

pub(super) fn admin(written: AdminSection, checker: &mut Checker<'_>) -> Admin {
    let listen = checker.address("admin.listen", &written.listen);
    if !listen.ip().is_loopback() && written.tokens_file.is_empty() {
        let what = format!(
            "missing; {listen} is no loopback address, and without tokens anybody there could change the policy"
        );
        let hint = "write tokens (`tailroute key new --role admin NAME`), or listen on 127.0.0.1".to_owned();
        checker.report("admin.tokens_file", what, Some(hint));
    }
    let max_bytes = checker.bytes("admin.audit_max_bytes", written.audit_max_bytes);
    Admin {
        listen,
        tokens: tokens(&written.tokens_file, checker),
        tokens_file: (!written.tokens_file.is_empty()).then(|| written.tokens_file.into()),
        open_metrics: written.open_metrics,
        audit: (!written.audit_file.is_empty()).then(|| Audit {
            path: written.audit_file.into(),
            max_bytes,
        }),
    }
}

fn tokens(file: &str, checker: &mut Checker<'_>) -> Vec<Token> {
    if file.is_empty() {
        return Vec::new();
    }
    match crate::load::read_apart::<TokensFile>(Path::new(file)) {
        Ok(mut read) => {
            let mut checker_of_file = Checker {
                origins: &read.origins,
                problems: &mut read.problems,
            };
            let tokens = check_all(read.written.tokens, &mut checker_of_file);
            for problem in &read.problems {
                checker.problems.push(problem.clone());
            }
            tokens
        }
        Err(error) => {
            checker.report("admin.tokens_file", error.to_string(), None);
            Vec::new()
        }
    }
}

/// Who else stands in the audit log: the router itself, and who asks where there are no tokens.
const RESERVED: [&str; 2] = ["router", "loopback"];

fn check_all(written: Vec<TokenSection>, checker: &mut Checker<'_>) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::with_capacity(written.len());
    for (at, token) in written.into_iter().enumerate() {
        let path = |key: &str| format!("tokens[{at}].{key}");
        check_name(&token.name, &path("name"), checker);
        if RESERVED
            .iter()
            .any(|reserved| token.name.eq_ignore_ascii_case(reserved))
        {
            let what = format!("`{}` stands for somebody else in the audit log", token.name);
            checker.report(&path("name"), what, Some("take another name".to_owned()));
        }
        let Some(digest) = KeyDigest::read(&token.sha256) else {
            let what = "expected the 64 hexadecimal digits of a SHA-256".to_owned();
            let hint = "`tailroute key new --role ROLE NAME` makes a token and writes its section".to_owned();
            checker.report(&path("sha256"), what, Some(hint));
            continue;
        };
        if tokens.iter().any(|known| known.name == token.name) {
            let what = format!("`{}` is the name of another token already", token.name);
            checker.report(&path("name"), what, None);
        }
        if let Some(known) = tokens.iter().find(|known| known.digest == digest) {
            let what = format!("is the token `{}` already", known.name);
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
