mod show;

use std::time::Duration;

use anyhow::Context as _;
use http::Method;
use serde_json::{Map, Value, json};

use super::answer::CommandOutput;
use super::client::{Client, escaped};
use super::pair;

/// Workers per page of the list.
const PAGE: usize = 1_000;
const PAGES: usize = 66;
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Subcommand)]
pub(super) enum WorkersCommand {
    /// All workers.
    List,
    /// One worker.
    Show {
        /// The worker's name.
        name: String,
    },
    /// Add a worker to the fleet, until it is removed or the router stops.
    Add {
        /// The worker's base URL, without `/v1`.
        url: String,
        /// The worker's name; by default the URL's host and port.
        #[arg(long)]
        name: Option<String>,
        /// Other keys of `[[workers]]`, such as `capacity_tokens=500000 dialect=none`.
        #[arg(value_name = "KEY=VALUE", value_parser = |text: &str| pair(text, "capacity_tokens=500000"))]
        more: Vec<(String, Value)>,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
    /// Drain a worker and remove it from the fleet.
    Remove {
        #[command(flatten)]
        named: WorkerNames,
        /// Also if it is the last ready worker.
        #[arg(long)]
        force: bool,
        /// Wait until it is removed.
        #[arg(long)]
        wait: bool,
    },
    /// Send a worker only turns that no other worker can serve.
    Cordon {
        #[command(flatten)]
        named: WorkerNames,
        /// Also if it is the last ready worker.
        #[arg(long)]
        force: bool,
    },
    /// Send a worker turns again.
    Uncordon(WorkerNames),
    /// Send a worker no turns.
    Drain {
        #[command(flatten)]
        named: WorkerNames,
        /// Also if it is the last ready worker.
        #[arg(long)]
        force: bool,
        /// Wait until its turns have finished.
        #[arg(long)]
        wait: bool,
    },
    /// Override a worker's learned α.
    Alpha {
        #[command(flatten)]
        named: WorkerNames,
        /// Milliseconds per uncached token.
        #[arg(long)]
        ms_per_token: f64,
        /// Revert after this time: 90, 90s, 10m, 2h or 1d; a number alone is seconds.
        #[arg(long = "for", value_name = "TIME", value_parser = simulator::args::seconds)]
        revert_after_s: Option<f64>,
    },
    /// Use a worker's learned α again.
    AlphaRevert(WorkerNames),
}

#[derive(Debug, clap::Args)]
pub(super) struct WorkerNames {
    /// The names of one or several workers.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The reason, for the audit log.
    #[arg(long)]
    reason: String,
}

pub(super) async fn run(client: &Client, what: WorkersCommand) -> anyhow::Result<CommandOutput> {
    let answer = match what {
        WorkersCommand::List => return Ok(CommandOutput::new(all(client).await?, show::workers)),
        WorkersCommand::Show { name } => client.get(&path(&name)).await?,
        WorkersCommand::Add {
            url,
            name,
            more,
            reason,
        } => {
            let mut worker = Map::from_iter(more);
            worker.insert("url".to_owned(), json!(url));
            worker.extend(name.map(|name| ("name".to_owned(), json!(name))));
            let body = json!({ "worker": worker, "reason": reason });
            client.send(Method::POST, "/admin/v1/workers", &body).await?
        }
        WorkersCommand::Remove { named, force, wait } => return remove(client, named, force, wait).await,
        WorkersCommand::Cordon { named, force } => {
            return each(client, named, Method::POST, "cordon", forced(force)).await;
        }
        WorkersCommand::Uncordon(named) => {
            return each(client, named, Method::POST, "uncordon", json!({})).await;
        }
        WorkersCommand::Drain { named, force, wait } => return drain(client, named, force, wait).await,
        WorkersCommand::Alpha {
            named,
            ms_per_token,
            revert_after_s,
        } => {
            let body = json!({ "alpha_ms_per_token": ms_per_token, "revert_after_s": revert_after_s });
            return each(client, named, Method::PUT, "alpha", body).await;
        }
        WorkersCommand::AlphaRevert(named) => {
            return each(client, named, Method::POST, "alpha/revert", json!({})).await;
        }
    };
    Ok(CommandOutput::new(answer, show::worker))
}

fn forced(force: bool) -> Value {
    match force {
        true => json!({ "force": true }),
        false => json!({}),
    }
}

/// Makes one change to each worker, in order. Fails at the first that is refused; the error names it, and those before
/// it are changed.
async fn each(
    client: &Client,
    named: WorkerNames,
    method: Method,
    action: &str,
    mut body: Value,
) -> anyhow::Result<CommandOutput> {
    body["reason"] = json!(named.reason);
    let mut answers = Vec::new();
    for name in &named.names {
        let answer = client
            .send(method.clone(), &format!("{}/{action}", path(name)), &body)
            .await;
        let answer = match named.names.len() {
            1 => answer,
            _ => answer.with_context(|| format!("{name} (those before it were changed)")),
        };
        answers.push(answer?);
    }
    Ok(shown(answers))
}

/// Formats one worker, or several as a list.
fn shown(mut answers: Vec<Value>) -> CommandOutput {
    match answers.len() {
        1 => CommandOutput::new(answers.remove(0), show::worker),
        _ => CommandOutput::new(json!({ "workers": answers }), show::workers),
    }
}

async fn remove(
    client: &Client,
    named: WorkerNames,
    force: bool,
    wait: bool,
) -> anyhow::Result<CommandOutput> {
    let names = named.names.clone();
    let answer = each(client, named, Method::POST, "remove", forced(force)).await?;
    for name in names {
        while wait && is_there(client, &name).await? {
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(answer)
}

async fn drain(
    client: &Client,
    named: WorkerNames,
    force: bool,
    wait: bool,
) -> anyhow::Result<CommandOutput> {
    let names = named.names.clone();
    let answer = each(client, named, Method::POST, "drain", forced(force)).await?;
    if !wait {
        return Ok(answer);
    }
    let mut answers = Vec::new();
    for name in names {
        answers.push(loop {
            let answer = client.get(&path(&name)).await?;
            if answer["state"] != "draining" {
                break answer;
            }
            tokio::time::sleep(LOOK).await;
        });
    }
    Ok(shown(answers))
}

async fn is_there(client: &Client, name: &str) -> anyhow::Result<bool> {
    let list = all(client).await?;
    let mut workers = list["workers"].as_array().into_iter().flatten();
    Ok(workers.any(|worker| worker["name"] == name))
}

fn path(name: &str) -> String {
    format!("/admin/v1/workers/{}", escaped(name))
}

/// Fetches all pages of the list. Fails if there are more than any router has workers for.
pub(crate) async fn all(client: &Client) -> anyhow::Result<Value> {
    let mut workers: Vec<Value> = Vec::new();
    for _ in 0..PAGES {
        let part = client
            .get(&format!(
                "/admin/v1/workers?limit={PAGE}&offset={}",
                workers.len()
            ))
            .await?;
        let part = part["workers"].as_array().cloned().unwrap_or_default();
        let whole = part.len() < PAGE;
        workers.extend(part);
        if whole {
            return Ok(json!({ "total": workers.len(), "workers": workers }));
        }
    }
    anyhow::bail!("the router lists more than {} workers", PAGES * PAGE)
}
