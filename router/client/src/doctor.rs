//! `tailroute doctor`: examines a running router and its fleet, and says what keeps them from working well.
//!
//! ```text
//! admin port ─┐
//! workers     ├─▶ gather ─▶ Facts ─▶ CHECKS, pure functions ─▶ Finding ─▶ report
//! clients' url┘
//! ```
//!
//! [`mod@gather`] collects the facts: the router's answers, what each worker says of itself, and the outcome of the
//! test prompts. Each file in `checks` has one check, a function of the facts; [`CHECKS`] lists them. A check
//! that lacks a fact finds `unknown`, so an older router, or a worker that cannot be reached from here, is no
//! failure.

mod checks;
mod exchange;
mod facts;
mod gather;
mod report;
mod stream_probe;
mod verdict;
mod worker_probe;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use policy::text::printable_lines;

use self::checks::{
    access, admin_port, cache_events, cached_tokens, capacity, clients, clock, configuration, cost, health,
    hints, hits, objective, overload, prefix_caching, replicas, sharing, streams, workers,
};
use self::facts::{Facts, WorkerFacts};
pub use self::gather::gather;
pub use self::report::Report;
use self::verdict::CheckVerdict;
pub use self::verdict::{Finding, Status};
use crate::ctl::TargetArgs;
use crate::ctl::client::Client;

/// Exit code of wrong usage, and of a router that cannot be reached.
const UNREACHABLE: u8 = 2;
/// Time between two readings of the workers' queues.
const BETWEEN_READINGS: Duration = Duration::from_millis(1_100);

/// Say what keeps a running router and its workers from working well, and what to do about it
///
/// Sends each worker the same prompt of about 1,000 tokens of random words twice, to see whether it caches prefixes.
/// Exit codes: 0 no problem, 1 a problem (with --strict also a warning), 2 wrong usage or no router.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute doctor\n  \
    tailroute doctor --worker-key-file worker.key --url http://chat.example.com\n  \
    tailroute doctor --no-probes --strict --json")]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// File that contains the workers' API key and nothing else.
    #[arg(long, value_name = "FILE")]
    worker_key_file: Option<PathBuf>,
    /// The base URL that clients use, without /v1: checks that streams arrive unbuffered.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// File that contains a client's API key for --url and nothing else.
    #[arg(long, value_name = "FILE", requires = "url")]
    key_file: Option<PathBuf>,
    /// Send no prompts.
    #[arg(long, conflicts_with = "url")]
    no_probes: bool,
    /// Fail on warnings too.
    #[arg(long)]
    strict: bool,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// The extent of an examination, beyond the admin port.
#[derive(Clone, Debug)]
pub struct Options {
    /// API key of the workers.
    pub worker_key: Option<String>,
    /// Base URL of the clients.
    pub url: Option<String>,
    /// API key for the clients' base URL.
    pub key: Option<String>,
    /// Whether prompts may be sent.
    pub probes: bool,
    /// Time between two readings of the workers' queues.
    pub between_readings: Duration,
}

impl Options {
    fn of(args: &Args) -> anyhow::Result<Self> {
        Ok(Self {
            worker_key: args.worker_key_file.as_deref().map(secret).transpose()?,
            url: args.url.clone(),
            key: args.key_file.as_deref().map(secret).transpose()?,
            probes: !args.no_probes,
            between_readings: BETWEEN_READINGS,
        })
    }
}

fn secret(file: &Path) -> anyhow::Result<String> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    Ok(text.trim().to_owned())
}

#[derive(Clone, Copy)]
enum Scope {
    Worker(fn(&Facts, &WorkerFacts) -> CheckVerdict),
    Router(fn(&Facts) -> CheckVerdict),
}

struct DoctorCheck {
    name: &'static str,
    /// Heading of the check's column, for checks of workers.
    heading: &'static str,
    scope: Scope,
}

const fn of_worker(
    name: &'static str,
    heading: &'static str,
    check: fn(&Facts, &WorkerFacts) -> CheckVerdict,
) -> DoctorCheck {
    DoctorCheck {
        name,
        heading,
        scope: Scope::Worker(check),
    }
}

const fn of_router(name: &'static str, check: fn(&Facts) -> CheckVerdict) -> DoctorCheck {
    DoctorCheck {
        name,
        heading: name,
        scope: Scope::Router(check),
    }
}

const CHECKS: [DoctorCheck; 19] = [
    of_worker("health", "health", health::check),
    of_worker("prefix caching", "caching", prefix_caching::check),
    of_worker("cached tokens", "reports", cached_tokens::check),
    of_worker("capacity", "capacity", capacity::check),
    of_worker("cost", "cost", cost::check),
    of_worker("objective", "objective", objective::check),
    of_worker("cache events", "events", cache_events::check),
    of_worker("hints", "hints", hints::check),
    of_worker("clock", "clock", clock::check),
    of_worker("sharing", "shared", sharing::check),
    of_router("admin", admin_port::check),
    of_router("workers", workers::check),
    of_router("configuration", configuration::check),
    of_router("replicas", replicas::check),
    of_router("clients", clients::check),
    of_router("streams", streams::check),
    of_router("access", access::check),
    of_router("hits", hits::check),
    of_router("overload", overload::check),
];

/// Examines the router and prints the report. Fails if the report cannot be printed.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = match examine(args) {
        Ok(report) => report,
        Err(error) => {
            simulator::terminal::complain(&format!("error: {error:#}"));
            return Ok(ExitCode::from(UNREACHABLE));
        }
    };
    let text = if args.json {
        printable_lines(&serde_json::to_string_pretty(&report)?).into_owned()
    } else {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        report.text(colour)
    };
    simulator::terminal::print_styled(&text)?;
    Ok(match report.is_good(args.strict) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn examine(args: &Args) -> anyhow::Result<Report> {
    let options = Options::of(args)?;
    let target = args.target.target()?;
    let router = target.authority().to_owned();
    let client = Client::new(target)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime
        .block_on(gather(&client, &router, &options))
        .map(|facts| diagnose(&facts))
}

/// Applies every check to the facts.
pub fn diagnose(facts: &Facts) -> Report {
    let mut findings = Vec::new();
    for check in &CHECKS {
        match check.scope {
            Scope::Worker(examine) => {
                findings.extend(facts.workers.iter().map(|worker| {
                    Finding::new(check.name, Some(worker.name.clone()), examine(facts, worker))
                }))
            }
            Scope::Router(examine) => findings.push(Finding::new(check.name, None, examine(facts))),
        }
    }
    let workers = facts.workers.iter().map(|worker| worker.name.clone());
    Report::new(facts.router.clone(), workers.collect(), findings)
}

#[cfg(test)]
mod tests;
