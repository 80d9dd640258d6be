//! The admin port: `[admin]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The admin port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port of metrics and administration. Must be a loopback address unless `tokens_file` is set.
    pub listen: String,
    /// File of tokens with their roles, as `[[tokens]]` sections made by `tailroute key new --role`. Empty: every
    /// caller on the port, which is then a loopback address, has all rights.
    pub tokens_file: String,
    /// Whether `/metrics` needs no token, even where there are tokens.
    pub open_metrics: bool,
    /// File to which every change is appended as a line of JSON; refused requests go to `FILE.refused` beside it.
    /// Empty: entries are only kept in memory.
    pub audit_file: String,
    /// Bytes at which either file is full; it is then renamed to `….1`, replacing the previous one.
    #[schemars(range(min = 65_536))]
    pub audit_max_bytes: u64,
}

impl Default for Admin {
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

/// A token of the admin port. The file has only its hash; `tailroute key new --role ROLE NAME` makes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "sha256", "role"]))]
pub struct Token {
    /// Name of the token in the audit log. Unique.
    pub name: String,
    /// SHA-256 of the token, as 64 hexadecimal digits. Only for tokens of 128 random bits or more.
    pub sha256: String,
    /// Role of the token.
    pub role: Role,
}

impl Default for Token {
    fn default() -> Self {
        Self {
            name: String::new(),
            sha256: String::new(),
            role: Role::Read,
        }
    }
}

/// Role of a token of the admin port. Each includes the rights of the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read only.
    Read,
    /// Cordon and drain workers, start and stop captures, preview weights on captured turns.
    Operate,
    /// Change the policy and its weights.
    Admin,
}

impl Role {
    /// Returns the name, as written in a file of tokens.
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

/// A file of tokens, separate from the configuration so that it can be a secret and change by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokensFile {
    /// The tokens.
    pub tokens: Vec<Token>,
}
