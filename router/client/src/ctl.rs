//! `tailroute ctl`: the admin port from a shell.
//!
//! Each command is one request, or a read and a conditional write ([`policy`]). The output is a sentence and a table;
//! `--json` prints the response as received. A problem document is printed with its invalid fields; the exit code is 1.

mod answer;
mod audit;
pub mod client;
mod decisions;
mod event;
pub(crate) mod format;
mod generate;
mod policy;
mod show;
mod status;
mod table;
pub(crate) mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use http::Method;
use serde_json::json;

pub(crate) use self::answer::printable_json;
use self::answer::{CommandOutput, indented};
use self::client::{Client, Target};

/// See and change a running router through its admin port
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    tailroute ctl policy set weights.locality=1.2 --reason 'fewer misses at noon' --for 10m\n  \
    tailroute ctl policy rollback --reason 'worse than before'\n  \
    tailroute ctl workers drain gpu-3 --reason 'new driver' --wait\n  \
    tailroute ctl --admin http://10.0.0.5:9090 --token-file ~/.tailroute-token workers\n  \
    tailroute ctl generate bash > /etc/bash_completion.d/tailroute")]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Print the router's response as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    what: What,
}

/// The address and the credentials of the router.
#[derive(Clone, Debug, clap::Args)]
pub struct TargetArgs {
    /// The router's admin port.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "TAILROUTE_ADMIN_URL",
        default_value = "http://127.0.0.1:9090"
    )]
    admin: String,
    /// File that contains an admin token and nothing else.
    #[arg(long, global = true, value_name = "FILE", env = "TAILROUTE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl TargetArgs {
    /// Returns the router to talk to. Fails if the address is invalid, or the token file cannot be read.
    pub fn target(&self) -> anyhow::Result<Target> {
        Target::new(&self.admin, self.token_file.as_deref())
    }
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// The policy in force: show, set, history, rollback, preview, shadow.
    Policy {
        #[command(subcommand)]
        what: Option<policy::Policy>,
    },
    /// The workers: list, add, remove, cordon, uncordon, drain, alpha.
    Workers {
        #[command(subcommand)]
        what: Option<workers::WorkersCommand>,
    },
    /// The API keys: show what remains of their limits, or reset one.
    Keys {
        #[command(subcommand)]
        what: Option<KeysCommand>,
    },
    /// The capture of recent turns, for trying weights on them.
    Capture {
        #[command(subcommand)]
        what: Option<CaptureCommand>,
    },
    /// Administrative changes and their authors, newest first.
    Audit {
        /// Maximum number of entries.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// Why a request was sent to its worker: the reason, the terms of every worker, the outcome.
    Explain {
        /// The request's id, from the `x-request-id` header of its response, or the beginning of it.
        request: String,
    },
    /// The decisions of a trace, newest first.
    Trace {
        /// The trace's id: 32 hexadecimal digits.
        id: String,
    },
    /// Recent decisions, newest first.
    #[command(after_help = "Example:\n  tailroute ctl decisions --late --cause queue --worker gpu-3")]
    Decisions(decisions::Filters),
    /// Recently used prefixes on the workers: the largest, the newest, or the most shared.
    #[command(after_help = "Example:\n  tailroute ctl index --order shared --worker gpu-3")]
    Index {
        /// Only prefixes on this worker.
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
        /// The order of the list.
        #[arg(long, default_value = "largest", value_parser = ["largest", "newest", "shared"])]
        order: String,
        /// Maximum number of prefixes.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
    },
    /// Changes as they happen, until interrupted.
    Events,
    /// The latency objectives and how they are met.
    Slo,
    /// The configuration in force, and the errors of the last one that was read.
    Config,
    /// The OpenAPI document of the admin port.
    Openapi,
    /// Shell completions and man pages for all tailroute commands.
    #[command(
        visible_alias = "completions",
        after_help = "Examples:\n  tailroute ctl generate zsh > ~/.zfunc/_tailroute\n  tailroute ctl generate man --dir /usr/local/share/man/man1"
    )]
    Generate(generate::Generate),
}

#[derive(Debug, clap::Subcommand)]
enum KeysCommand {
    /// All keys.
    List,
    /// Restore a key's whole allowance, whatever it has used or owes.
    Reset {
        /// The key's name.
        name: String,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
}

#[derive(Debug, clap::Subcommand)]
enum CaptureCommand {
    /// Whether turns are captured, and how many are stored.
    Status,
    /// Start a capture; discards the previous one.
    Start {
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
        /// Maximum size in bytes; 16 MiB unless given.
        #[arg(long)]
        max_bytes: Option<u32>,
    },
    /// Stop the capture; stored turns are kept.
    Stop {
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
    /// The captured turns, as a trace for `tailroute replay`.
    Turns,
}

/// Runs the command; `program` is the whole command line. Fails if the router cannot be reached or rejects the request.
pub fn run(args: Args, program: clap::Command) -> anyhow::Result<ExitCode> {
    if let What::Generate(what) = &args.what {
        if let Some(text) = generate::run(what, program)? {
            simulator::terminal::print(&text)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let client = Client::new(args.target.target()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(perform(&client, args.what, args.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn perform(client: &Client, what: What, json: bool) -> anyhow::Result<()> {
    let answer = match what {
        What::Policy { what } => policy::run(client, what.unwrap_or(policy::Policy::Show)).await?,
        What::Workers { what } => workers::run(client, what.unwrap_or(workers::WorkersCommand::List)).await?,
        What::Keys { what } => keys(client, what.unwrap_or(KeysCommand::List)).await?,
        What::Capture {
            what: Some(CaptureCommand::Turns),
        } => {
            let turns = client.turns().await?;
            return Ok(simulator::terminal::print(turns.trim_end())?);
        }
        What::Capture { what } => capture(client, what.unwrap_or(CaptureCommand::Status)).await?,
        What::Audit { limit } => {
            let log = client.get(&format!("/admin/v1/audit?limit={limit}")).await?;
            CommandOutput::new(log, audit::audit)
        }
        What::Explain { request } => decisions::explain(client, &request).await?,
        What::Trace { id } => decisions::trace(client, &id).await?,
        What::Decisions(filters) => decisions::list(client, &filters).await?,
        What::Index { worker, order, limit } => {
            let worker = worker.map_or(String::new(), |name| {
                format!("&worker={}", client::escaped(&name))
            });
            let path = format!("/admin/v1/index?order={order}&limit={limit}{worker}");
            CommandOutput::new(client.get(&path).await?, show::index)
        }
        What::Events => return events(client, json).await,
        What::Slo => CommandOutput::new(client.get("/admin/v1/slo").await?, status::slo),
        What::Config => CommandOutput::new(client.get("/admin/v1/config").await?, status::config),
        What::Openapi => CommandOutput::new(client.get("/admin/v1/openapi.json").await?, indented),
        What::Generate(_) => return Ok(()),
    };
    let text = if json { indented(&answer.json) } else { answer.text };
    Ok(simulator::terminal::print(&text)?)
}

async fn keys(client: &Client, what: KeysCommand) -> anyhow::Result<CommandOutput> {
    let answer = match what {
        KeysCommand::List => client.get("/admin/v1/keys").await?,
        KeysCommand::Reset { name, reason } => {
            let path = format!("/admin/v1/keys/{}/reset", client::escaped(&name));
            let body = json!({ "reason": reason });
            client.send(Method::POST, &path, &body).await?
        }
    };
    Ok(CommandOutput::new(answer, status::keys))
}

async fn capture(client: &Client, what: CaptureCommand) -> anyhow::Result<CommandOutput> {
    let (change, body) = match what {
        CaptureCommand::Status | CaptureCommand::Turns => {
            return Ok(CommandOutput::new(
                client.get("/admin/v1/capture").await?,
                status::capture,
            ));
        }
        CaptureCommand::Start { reason, max_bytes } => {
            ("start", json!({ "reason": reason, "max_bytes": max_bytes }))
        }
        CaptureCommand::Stop { reason } => ("stop", json!({ "reason": reason })),
    };
    let path = format!("/admin/v1/capture/{change}");
    let answer = client.send(Method::POST, &path, &body).await?;
    Ok(CommandOutput::new(answer, status::capture))
}

async fn events(client: &Client, json: bool) -> anyhow::Result<()> {
    let mut events = client.events().await?;
    while let Some(event) = events.next().await {
        let event = event?;
        let text = if json {
            event.to_string()
        } else {
            event::event(&printable_json(&event))
        };
        simulator::terminal::print(&text)?;
    }
    Ok(())
}

/// Parses `KEY=VALUE`; a value that is not valid JSON is taken as a string.
fn pair(text: &str, example: &str) -> Result<(String, serde_json::Value), String> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text}: expected KEY=VALUE, such as {example}"))?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.to_owned()));
    Ok((key.to_owned(), value))
}
