//! `tailroute key`: API keys, and what is written down of them.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::admission::keys::{hash, hex, make};

/// Shortest key whose hash may be written down; what is shorter could be guessed from it.
const SHORTEST: usize = 20;
/// Longest key that a request could carry.
const LONGEST: usize = 4_096;

/// Make an API key, or the hash of one.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tailroute key new team-a >> keys.toml\n  printf %s \"$KEY\" | tailroute key hash team-a >> keys.toml"
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make a new key: the key goes to standard error, once; its section of the configuration to standard output.
    New {
        /// Name of the key in metrics and logs.
        name: String,
    },
    /// Read an existing key from standard input, and print its section of the configuration.
    Hash {
        /// Name of the key in metrics and logs.
        name: String,
    },
}

/// Makes it.
///
/// # Errors
/// If there is no randomness, or no key to read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::New { name } => {
            let key = make().context("the system gives no random bytes")?;
            super::print(&section(name, &key)?)?;
            super::complain(&format!("{key}\nThis is the only time that the key is shown."));
        }
        What::Hash { name } => {
            let mut key = String::new();
            let read = std::io::stdin().take(LONGEST as u64 + 1).read_to_string(&mut key);
            read.context("cannot read a key from standard input")?;
            let key = key.trim();
            if !(SHORTEST..=LONGEST).contains(&key.len()) {
                bail!(
                    "a key has at least {SHORTEST} characters, random ones: a shorter one can be found from its hash"
                );
            }
            super::print(&section(name, key)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn section(name: &str, key: &str) -> anyhow::Result<String> {
    if name.is_empty() || name.len() > 64 || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!("a name is 1 to 64 visible ASCII characters");
    }
    let name = toml_string(name);
    Ok(format!(
        "[[keys]]\nname = {name}\nsha256 = \"{}\"",
        hex(&hash(key.as_bytes()).0)
    ))
}

/// Visible ASCII as a TOML string.
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
        let section = section(r#"a"\"#, &key).unwrap();
        assert!(!section.contains(&key[3..]));
        let text = format!("[[workers]]\nurl = \"http://a:1\"\n{section}\n");
        let config = config::load(&config::Sources {
            file: Some(("t.toml", &text)),
            ..config::Sources::default()
        });
        let config = config.unwrap();
        assert_eq!(config.keys[0].name, r#"a"\"#);
        assert_eq!(config.keys[0].digest, hash(key.as_bytes()));
        assert!(super::section("a b", &key).is_err());
    }
}
