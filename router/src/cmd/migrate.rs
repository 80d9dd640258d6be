//! `tailroute migrate`: writes a configuration from another router's command line or manifest.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use migrate::{Input, MOST_BYTES, Source};

/// Write a configuration from another router's command line or manifest
///
/// Reads a command line after `--`, or a file with one: a script, a Kubernetes manifest, the values of production-stack's
/// chart, or an nginx configuration. The configuration goes to standard output, with a comment for everything that is
/// carried over and for everything that has no equivalent; the latter also goes to standard error.
///
/// Exit code 0: written; 1: the input cannot be understood; 2: wrong usage.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tailroute migrate -- python -m sglang_router.launch_router --worker-urls http://w1:8000 --policy cache_aware\n  tailroute migrate deployment.yaml > tailroute.toml\n  nginx -T | tailroute migrate --from nginx - > tailroute.toml"
)]
pub struct Args {
    /// File to read; `-` for standard input.
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    file: Option<PathBuf>,
    /// Router that the input belongs to, where the input does not show it.
    #[arg(long)]
    from: Option<Source>,
    /// Command line of the router.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs the command. Fails if the input cannot be read or understood, or the result cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let migration = match &args.file {
        None => migrate::migrate(Input::Words(&args.command), args.from),
        Some(file) => {
            let (name, text) = if file.as_os_str() == "-" {
                ("standard input".to_owned(), standard_input()?)
            } else {
                (file.display().to_string(), text(file)?)
            };
            let input = Input::Text {
                name: &name,
                text: &text,
            };
            migrate::migrate(input, args.from)
        }
    };
    let migration = migration.context("cannot migrate")?;
    simulator::terminal::print(migration.toml.trim_end())?;
    for warning in &migration.warnings {
        simulator::terminal::complain(&format!("warning: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn text(file: &Path) -> anyhow::Result<String> {
    config::file::read_text(file, MOST_BYTES).with_context(|| format!("cannot read {}", file.display()))
}

fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().take(MOST_BYTES + 1).read_to_string(&mut text);
    read.context("cannot read standard input")?;
    if text.len() as u64 > MOST_BYTES {
        bail!("standard input is longer than {MOST_BYTES} bytes");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::process::ExitCode;

    fn code(arguments: &[&str]) -> String {
        let all = ["tailroute", "migrate"].iter().chain(arguments);
        format!("{:?}", crate::cli::run(all.map(OsString::from)))
    }

    #[test]
    fn exit_codes_tell_success_from_a_bad_input_and_from_wrong_usage() {
        let [done, failed, misused] = [0, 1, 2].map(|code| format!("{:?}", ExitCode::from(code)));
        assert_eq!(code(&["--", "smg", "--worker-urls", "http://a:1"]), done);
        assert_eq!(code(&["--", "smg", "--port", "x"]), failed);
        assert_eq!(code(&["/nowhere/nginx.conf"]), failed);
        assert_eq!(code(&[]), misused);
        assert_eq!(code(&["file", "--", "smg"]), misused);
        assert_eq!(code(&["--from", "haproxy", "file"]), misused);
    }
}
