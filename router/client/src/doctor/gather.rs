//! Collects the facts: from the admin port, from the workers, and through the clients' URL. Only the list of workers is
//! indispensable; everything else that cannot be read is a missing fact.

use anyhow::Context as _;
use futures_util::{StreamExt as _, stream};
use reqwest::Url;
use serde_json::Value;

use super::exchange::get;
use super::facts::{DecisionFacts, Facts, Offset, WorkerFacts};
use super::{Options, stream_probe, worker_probe};
use crate::bounded::{self, FetchError};
use crate::ctl::client::Client;
use crate::ctl::workers;
use crate::unix_ms;

/// Readings of the workers' queues: a request in transit is counted by one side only for a moment.
const READINGS: usize = 3;
const AT_ONCE: usize = 16;
/// Maximum number of turns that are examined.
const TURNS: usize = 200;

/// Collects all facts about a router. Fails if the router cannot be reached, or does not list its workers.
pub async fn gather(client: &Client, router: &str, options: &Options) -> anyhow::Result<Facts> {
    let http = bounded::client().build()?;
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
    facts.workers = ask_workers(&http, workers, &facts, options).await;
    if let Some(url) = &options.url {
        facts.stream = Some(stream_probe::run(&http, url, options.key.as_deref()).await);
    }
    Ok(facts)
}

async fn list(client: &Client) -> anyhow::Result<Vec<WorkerFacts>> {
    let answer = workers::all(client).await?;
    serde_json::from_value(answer["workers"].clone())
        .context("the router's list of workers is not understood")
}

/// Keeps the smallest number of foreign requests seen at each worker. One reading of none suffices; any other number
/// counts only if no reading is missing.
fn fewest_foreign(workers: &mut [WorkerFacts], later: &[WorkerFacts]) {
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

/// Reads everything at once, so that a router that does not answer is waited for only once.
async fn read_router(client: &Client, facts: &mut Facts) {
    let get = async |path: &'static str| (path, client.get(path).await);
    let metrics = async { ("/metrics", client.text("/metrics").await) };
    let (late, punctual, slo, configuration, replicas, discovery, (_, metrics)) = tokio::join!(
        get("/admin/v1/decisions?late=true&limit=200"),
        get("/admin/v1/decisions?late=false&limit=200"),
        get("/admin/v1/slo"),
        get("/admin/v1/config"),
        get("/admin/v1/replicas"),
        get("/admin/v1/discovery"),
        metrics,
    );
    let mut read = |(path, answer): (&'static str, anyhow::Result<Value>)| {
        answer.unwrap_or_else(|error| {
            facts.unread.extend(unread(path, &error));
            Value::Null
        })
    };
    let pages = [read(late), read(punctual)];
    let slo = read(slo);
    let (configuration, replicas, discovery) = (read(configuration), read(replicas), read(discovery));
    facts.turns = newest(&pages);
    facts.objective_ms = of_no_class(&slo);
    facts.hits = serde_json::from_value(slo["hits"].clone()).ok();
    facts.overload = serde_json::from_value(slo["overload"].clone()).ok();
    facts.configuration = serde_json::from_value(configuration).unwrap_or_default();
    facts.replicas = serde_json::from_value(replicas).unwrap_or_default();
    facts.discovery = serde_json::from_value(discovery["sources"].clone()).unwrap_or_default();
    match metrics {
        Ok(page) => facts.metrics = Some(page),
        Err(error) => facts.unread.extend(unread("/metrics", &error)),
    }
}

/// Returns the path and the error of a request without a response. A rejection does not count, since the router may be
/// older.
fn unread(path: &'static str, error: &anyhow::Error) -> Option<(&'static str, String)> {
    let failed = error.downcast_ref::<FetchError>()?;
    Some((path, failed.to_string()))
}

/// Returns the newest turns of several pages that have ended.
fn newest(pages: &[Value]) -> Vec<DecisionFacts> {
    let decisions = pages.iter().filter_map(|page| page["decisions"].as_array());
    let mut turns: Vec<DecisionFacts> = decisions.flatten().filter_map(DecisionFacts::of).collect();
    turns.sort_by(|one, two| two.arrived_unix_ms.total_cmp(&one.arrived_unix_ms));
    turns.truncate(TURNS);
    turns
}

fn of_no_class(slo: &Value) -> Option<f64> {
    let mut classes = slo["objective"]["classes"].as_array()?.iter();
    classes.find(|class| class["class"] == "default")?["ttft_ms"].as_f64()
}

async fn ask_workers(
    http: &reqwest::Client,
    workers: Vec<WorkerFacts>,
    facts: &Facts,
    options: &Options,
) -> Vec<WorkerFacts> {
    let asked = workers
        .into_iter()
        .enumerate()
        .map(|(at, mut worker)| async move {
            let shown = facts.shown_by(&worker.name);
            worker.direct = worker_probe::run(http, &worker, shown, at as u64, options).await;
            worker
        });
    stream::iter(asked).buffered(AT_ONCE).collect().await
}
