mod show;

use std::time::Duration;

use http::Method;
use serde_json::{Map, Value, json};

use super::answer::Answer;
use super::client::{Client, escaped};
use super::pair;

const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Workers {
    /// All workers.
    List,
    /// One worker.
    Show {
        /// Its name.
        name: String,
    },
    /// Add a worker to the fleet, until it is removed or the router stops.
    Add {
        /// Its base URL, without `/v1`.
        url: String,
        /// Its name; by default the URL's host and port.
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
        named: Named,
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
        named: Named,
        /// Also if it is the last ready worker.
        #[arg(long)]
        force: bool,
    },
    /// Send a worker turns again.
    Uncordon(Named),
    /// Send a worker no turns.
    Drain {
        #[command(flatten)]
        named: Named,
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
        named: Named,
        /// Milliseconds per uncached token.
        #[arg(long)]
        ms_per_token: f64,
        /// Revert after this many seconds.
        #[arg(long = "for", value_name = "SECONDS")]
        revert_after_s: Option<f64>,
    },
    /// Use a worker's learned α again.
    AlphaRevert(Named),
}

#[derive(Debug, clap::Args)]
pub(super) struct Named {
    /// The worker's name.
    name: String,
    /// The reason, for the audit log.
    #[arg(long)]
    reason: String,
}

pub(super) async fn run(client: &Client, what: Workers) -> anyhow::Result<Answer> {
    let post = async |named: &Named, action: &str, force: bool| {
        let path = format!("{}/{action}", path(&named.name));
        let mut body = json!({ "reason": named.reason });
        if force {
            body["force"] = json!(true);
        }
        client.send(Method::POST, &path, &body).await
    };
    let answer = match what {
        Workers::List => return Ok(Answer::new(all(client).await?, show::workers)),
        Workers::Show { name } => client.get(&path(&name)).await?,
        Workers::Add {
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
        Workers::Remove { named, force, wait } => {
            let answer = post(&named, "remove", force).await?;
            while wait && is_there(client, &named.name).await? {
                tokio::time::sleep(LOOK).await;
            }
            answer
        }
        Workers::Cordon { named, force } => post(&named, "cordon", force).await?,
        Workers::Uncordon(named) => post(&named, "uncordon", false).await?,
        Workers::Drain { named, force, wait } => {
            let mut answer = post(&named, "drain", force).await?;
            while wait && answer["state"] == "draining" {
                tokio::time::sleep(LOOK).await;
                answer = client.get(&path(&named.name)).await?;
            }
            answer
        }
        Workers::Alpha {
            named,
            ms_per_token,
            revert_after_s,
        } => {
            let body = json!({
                "alpha_ms_per_token": ms_per_token, "reason": named.reason, "revert_after_s": revert_after_s,
            });
            client
                .send(Method::PUT, &format!("{}/alpha", path(&named.name)), &body)
                .await?
        }
        Workers::AlphaRevert(named) => post(&named, "alpha/revert", false).await?,
    };
    Ok(Answer::new(answer, show::worker))
}

async fn is_there(client: &Client, name: &str) -> anyhow::Result<bool> {
    let list = all(client).await?;
    let mut workers = list["workers"].as_array().into_iter().flatten();
    Ok(workers.any(|worker| worker["name"] == name))
}

fn path(name: &str) -> String {
    format!("/admin/v1/workers/{}", escaped(name))
}

/// Fetches all pages of the list.
pub(crate) async fn all(client: &Client) -> anyhow::Result<Value> {
    let mut workers: Vec<Value> = Vec::new();
    loop {
        let part = client
            .get(&format!("/admin/v1/workers?limit=1000&offset={}", workers.len()))
            .await?;
        let part = part["workers"].as_array().cloned().unwrap_or_default();
        let whole = part.len() < 1000;
        workers.extend(part);
        if whole {
            return Ok(json!({ "total": workers.len(), "workers": workers }));
        }
    }
}
