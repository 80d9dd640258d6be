//! Collects the facts: from the admin port, from the workers, and through the clients' URL. Only the list of workers is
//! indispensable; everything else that cannot be read is a missing fact.

use anyhow::Context as _;
use futures_util::{StreamExt as _, stream};
use reqwest::Url;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::exchange::{PATIENCE, get};
use super::facts::{Facts, Offset, Turn, Worker};
use super::{Options, stream_probe, worker_probe};
use crate::ctl::client::Client;
use crate::ctl::workers;
use crate::unix_ms;

/// Readings of the workers' queues: a request in transit is counted by one side only for a moment.
const READINGS: usize = 3;
const AT_ONCE: usize = 16;

/// Collects all facts about a router. Fails if the router cannot be reached, or does not list its workers.
pub async fn gather(client: &Client, router: &str, options: &Options) -> anyhow::Result<Facts> {
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(PATIENCE)
        .build()?;
    let mut workers = list(client).await?;
    for _ in 1..READINGS {
        tokio::time::sleep(options.between_readings).await;
        fewest_foreign(&mut workers, &list(client).await?);
    }
    let mut facts = Facts {
        router: router.to_owned(),
        now_unix_ms: unix_ms(),
        clock: router_clock(&http, router).await,
        ..Facts::default()
    };
    read_router(client, &mut facts).await;
    facts.workers = ask_workers(&http, workers, options).await;
    if let Some(url) = &options.url {
        facts.stream = Some(stream_probe::run(&http, url, options.key.as_deref()).await);
    }
    Ok(facts)
}

async fn list(client: &Client) -> anyhow::Result<Vec<Worker>> {
    let answer = workers::all(client).await?;
    serde_json::from_value(answer["workers"].clone())
        .context("the router's list of workers is not understood")
}

/// Keeps the smallest number of foreign requests seen at each worker. One reading of none suffices; any other number
/// counts only if no reading is missing.
fn fewest_foreign(workers: &mut [Worker], later: &[Worker]) {
    for worker in workers {
        let now = later.iter().find(|now| now.name == worker.name);
        let now = now.and_then(|now| now.foreign_requests);
        worker.foreign_requests = match (worker.foreign_requests, now) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (Some(before), Some(now)) => Some(before.min(now)),
            _ => None,
        };
    }
}

async fn router_clock(http: &reqwest::Client, router: &str) -> Option<Offset> {
    let url: Url = format!("http://{router}/livez").parse().ok()?;
    get(http, url, None).await.ok()?.1
}

async fn read_router(client: &Client, facts: &mut Facts) {
    let page = read::<Value>(client, "/admin/v1/decisions?limit=200")
        .await
        .unwrap_or_default();
    facts.turns = page["decisions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Turn::of)
        .collect();
    facts.configuration = read(client, "/admin/v1/config").await.unwrap_or_default();
    facts.replicas = read(client, "/admin/v1/replicas").await.unwrap_or_default();
    let sources = read::<Value>(client, "/admin/v1/discovery")
        .await
        .unwrap_or_default();
    facts.discovery = serde_json::from_value(sources["sources"].clone()).unwrap_or_default();
    let objectives = read::<Value>(client, "/admin/v1/slo").await.unwrap_or_default();
    facts.hits = serde_json::from_value(objectives["hits"].clone()).ok();
    facts.metrics = client.text("/metrics").await.ok();
}

async fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Option<T> {
    serde_json::from_value(client.get(path).await.ok()?).ok()
}

async fn ask_workers(http: &reqwest::Client, workers: Vec<Worker>, options: &Options) -> Vec<Worker> {
    let asked = workers
        .into_iter()
        .enumerate()
        .map(|(at, mut worker)| async move {
            worker.direct = worker_probe::run(http, &worker, at as u64, options).await;
            worker
        });
    stream::iter(asked).buffered(AT_ONCE).collect().await
}
