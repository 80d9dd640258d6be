//! `tailroute key`: creates API keys and tokens, and hashes existing ones.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use operator::secret::hash;
use protocol::tenant::hex;
use proxy::admission::keys::make;

/// Shortest key whose hash may be stored; a shorter one could be guessed from it.
const SHORTEST: usize = 20;
/// Longest key that fits into a request.
const LONGEST: usize = 4_096;

/// Make an API key or a token of the admin API, or the hash of one.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tailroute key new team-a >> keys.toml\n  printf %s \"$KEY\" | tailroute key hash team-a >> keys.toml\n  tailroute key new --role operate alice >> tokens.toml"
)]
pub struct Args {
    #[command(subcommand)]
    what: KeyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KeyCommand {
    /// Make a new key. The key goes to standard error, once; its section of the configuration to standard output.
    New {
        /// Name of the key in metrics and logs; of a token, in the audit log.
        name: String,
        /// Make a token of the admin API with this role instead: read, operate or admin.
        #[arg(long)]
        role: Option<RoleArg>,
    },
    /// Read an existing key from standard input, and print its section of the configuration.
    Hash {
        /// Name of the key in metrics and logs; of a token, in the audit log.
        name: String,
        /// The key is a token of the admin API with this role: read, operate or admin.
        #[arg(long)]
        role: Option<RoleArg>,
    },
}

/// Role of a token, as typed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RoleArg {
    /// Read only.
    Read,
    /// Cordon and drain workers, and preview weights.
    Operate,
    /// Change the policy.
    Admin,
}

impl RoleArg {
    fn as_str(self) -> &'static str {
        let role = match self {
            Self::Read => config::Role::Read,
            Self::Operate => config::Role::Operate,
            Self::Admin => config::Role::Admin,
        };
        role.as_str()
    }
}

/// Runs the command. Fails if there is no randomness, or no key to read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        KeyCommand::New { name, role } => {
            let key = make().context("the system provides no random bytes")?;
            simulator::terminal::print(&section(name, *role, &key)?)?;
            simulator::terminal::complain(&format!("{key}\nThe key is not shown again."));
        }
        KeyCommand::Hash { name, role } => {
            let mut key = String::new();
            let read = std::io::stdin().take(LONGEST as u64 + 1).read_to_string(&mut key);
            read.context("cannot read a key from standard input")?;
            let key = key.trim();
            if !(SHORTEST..=LONGEST).contains(&key.len()) {
                bail!(
                    "a key has at least {SHORTEST} random characters; a shorter one can be recovered from its hash"
                );
            }
            simulator::terminal::print(&section(name, *role, key)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn section(name: &str, role: Option<RoleArg>, key: &str) -> anyhow::Result<String> {
    if name.is_empty() || name.len() > 64 || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("a name is 1 to 64 visible ASCII characters");
    }
    let name = toml_string(name);
    let (list, role) = match role {
        Some(role) => ("tokens", format!("\nrole = \"{}\"", role.as_str())),
        None => ("keys", String::new()),
    };
    Ok(format!(
        "[[{list}]]\nname = {name}\nsha256 = \"{}\"{role}",
        hex(&hash(key.as_bytes()).0)
    ))
}

/// Formats visible ASCII as a TOML string.
fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_written_down_and_holds_no_key() {
        let key = make().unwrap();
        assert_eq!((key.len(), key.starts_with("tr-")), (67, true));
        assert_ne!(key, make().unwrap());
        let section = section(r#"a"\"#, None, &key).unwrap();
        assert!(!section.contains(&key[3..]));
        let text = format!("[[workers]]\nurl = \"http://a:1\"\n{section}\n");
        let config = config::load(&config::Sources {
            file: Some(("t.toml", &text)),
            ..config::Sources::default()
        });
        let config = config.unwrap();
        assert_eq!(config.keys[0].name, r#"a"\"#);
        assert_eq!(config.keys[0].digest, hash(key.as_bytes()));
        let tokens = super::section("alice", Some(RoleArg::Operate), &key).unwrap();
        assert!(tokens.starts_with("[[tokens]]\nname = \"alice\"") && tokens.ends_with("role = \"operate\""));
        assert!(super::section("a b", None, &key).is_err());
    }
}
