//! `tailroute check FILE`: reports every problem of a configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use config::{LoadError, Overrides};
use serde_json::json;

use crate::budget::Budget;

/// Check a configuration file and name every problem in it
///
/// Prints the router's worst-case memory and the keys that set it. Reads the file as `serve` would, including the
/// environment's TAILROUTE_SECTION__KEY variables. Exit code 0: no problem; 1: any problem.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tailroute check /etc/tailroute/tailroute.toml")]
pub struct Args {
    /// The file to check.
    file: PathBuf,
    /// Print the result as JSON: `{ok, file, problems: [{origin, path, what, hint}],
    /// memory: {bytes, parts: [{what, bytes, keys}]}}`.
    #[arg(long)]
    json: bool,
    /// Ignore the environment.
    #[arg(long)]
    no_env: bool,
}

/// Runs the check. Fails if the file cannot be read, or the result cannot be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let environment = if args.no_env {
        BTreeMap::new()
    } else {
        config::environment()
    };
    let result = config::load_file(Some(&args.file), environment, Overrides::default());
    let (config, problems) = match result {
        Ok(config) => (Some(config), config::Problems::default()),
        Err(LoadError::Wrong(problems)) => (None, problems),
        Err(unreadable) => return Err(unreadable).context("cannot check the configuration"),
    };
    let file = args.file.display().to_string();
    if args.json {
        let memory = config.as_ref().map(Budget::of);
        let report = json!({ "ok": config.is_some(), "file": file, "problems": problems, "memory": memory });
        simulator::terminal::print(&serde_json::to_string_pretty(&report)?)?;
    } else if let Some(config) = &config {
        simulator::terminal::print(&format!(
            "{file}: no problems\n{}\n{}",
            summary(config),
            Budget::of(config)
        ))?;
    } else {
        let noun = if problems.len() == 1 {
            "problem"
        } else {
            "problems"
        };
        simulator::terminal::complain(&format!("{problems}\n{file}: {} {noun}", problems.len()));
    }
    Ok(if config.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn summary(config: &config::Config) -> String {
    let workers = config.workers.len();
    let noun = if workers == 1 { "worker" } else { "workers" };
    let discovery = &config.discovery;
    let sources = [
        ("Kubernetes", discovery.kubernetes.is_some()),
        ("the DNS", discovery.dns.is_some()),
        ("a file", discovery.file.is_some()),
    ];
    let sources: Vec<&str> = sources
        .iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| *name)
        .collect();
    let found = match sources.as_slice() {
        [] => String::new(),
        sources => format!(" and those found in {}", sources.join(", ")),
    };
    format!(
        "{workers} {noun}{found}, policy {}, {} % of turns within {:.0} ms, data port {}, admin port {}",
        config.routing.policy,
        (config.objective.share * 1e6).round() / 1e4,
        config.objective.ttft.0,
        config.server.listen,
        config.admin.listen,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, json: bool) -> anyhow::Result<ExitCode> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.toml");
        std::fs::write(&file, text).unwrap();
        run(Args {
            file,
            json,
            no_env: true,
        })
    }

    #[test]
    fn the_example_is_good() {
        assert_eq!(check(config::EXAMPLE, false).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_bad_file_is_exit_code_one() {
        assert_eq!(check("[server]\nlisten = 3\n", true).unwrap(), ExitCode::FAILURE);
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = run(Args {
            file: "/nowhere/t.toml".into(),
            json: false,
            no_env: true,
        })
        .unwrap_err();
        assert!(
            format!("{error:#}").contains("/nowhere/t.toml: cannot be read"),
            "{error:#}"
        );
    }
}
