//! The admin port: `[admin]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The admin port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
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

/// One token of the admin port. Only its hash is written down; `tailroute key new --role ROLE NAME` makes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "sha256", "role"]))]
pub struct Token {
    /// Whose it is, in the audit log. Unique.
    pub name: String,
    /// SHA-256 of the token, as 64 hexadecimal digits. Only for tokens of 128 random bits or more.
    pub sha256: String,
    /// What it may do.
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
pub struct TokensFile {
    /// The tokens.
    pub tokens: Vec<Token>,
}
