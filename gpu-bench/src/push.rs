//! Sends a calibration to a running router: `gpu-bench push`, and `--push`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use serde_json::json;

use crate::access::{bearer, secret};
use crate::calibration::Calibration;
use crate::source::http::{Client, ProbeError};
use crate::terminal::complain;

/// Timeout of a request to the router.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options of all commands that send a calibration.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ToArgs {
    /// The worker's name on the router; by default the worker with the measured URL.
    #[arg(long, value_name = "NAME")]
    pub push_worker: Option<String>,
    /// File with an admin token of the router that has the role operate.
    #[arg(long, value_name = "FILE", env = "TAILROUTE_TOKEN_FILE")]
    pub push_token_file: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Workers {
    workers: Vec<Known>,
}

#[derive(Deserialize)]
struct Known {
    name: String,
    url: String,
}

/// Sends a calibration and returns the worker's name on the router. Fails if the router is unreachable or refuses it.
pub async fn send(router: &str, to: &ToArgs, calibration: &Calibration) -> anyhow::Result<String> {
    let token = to.push_token_file.as_deref().map(secret).transpose()?;
    let token = token.as_deref().map(bearer).transpose()?;
    let client = Client::new(router.to_owned(), token, PATIENCE)?;
    let name = match &to.push_worker {
        Some(name) => name.clone(),
        None => worker_of(&client, &calibration.worker).await?,
    };
    let (cost, fit) = (&calibration.fit.cost, &calibration.fit);
    let body = json!({
        "alpha_ms_per_token": cost.alpha_ms_per_token,
        "beta_ms": cost.beta_ms,
        "gamma_ms_per_token2": cost.gamma_ms_per_token2,
        "floor_ms": fit.floor.map_or(0.0, |floor| floor.ms),
        "model": calibration.model,
        "measured_at_unix_s": calibration.measured_at_unix_s,
        "r_squared": fit.r_squared.clamp(0.0, 1.0),
        "reason": format!("measured by {}", calibration.bench),
    });
    let path: String = name.bytes().map(escaped).collect();
    let put = client
        .put(&format!("/admin/v1/workers/{path}/calibration"), &body)
        .await;
    put.map_err(|error| told(router, error))?;
    Ok(name)
}

async fn worker_of(client: &Client, url: &str) -> anyhow::Result<String> {
    let list = client.json::<Workers>("/admin/v1/workers?limit=1000").await;
    let workers = list.map_err(|error| told(client.base(), error))?.workers;
    let bare = |url: &str| url.trim_end_matches('/').to_owned();
    let found = workers.iter().find(|worker| bare(&worker.url) == bare(url));
    found.map(|worker| worker.name.clone()).ok_or_else(|| {
        let names: Vec<&str> = workers
            .iter()
            .take(8)
            .map(|worker| worker.name.as_str())
            .collect();
        anyhow!(
            "the router knows no worker at {url}; name it with --push-worker; it knows {}",
            names.join(", ")
        )
    })
}

/// Rewords errors for the router where the text for workers would mislead.
fn told(router: &str, error: ProbeError) -> anyhow::Error {
    match error {
        ProbeError::Unauthorised { status } => anyhow!(
            "the router at {router} answered {status}: a token with the operate role is required; pass it with \
             --push-token-file"
        ),
        ProbeError::Status { status, said } => anyhow!("the router at {router} answered {status}: {said}"),
        ProbeError::Connection(error) => {
            anyhow::Error::from_boxed(error).context(format!("the router at {router} cannot be reached"))
        }
        error => anyhow::Error::new(error)
            .context(format!("the router at {router} did not accept the calibration")),
    }
}

/// Percent-encodes a byte of a name for a path.
fn escaped(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// Sends the calibration, whose file is already written, to the router, if one is given. Fails if the router does not
/// accept it.
pub async fn after(router: Option<&str>, to: &ToArgs, calibration: &Calibration) -> anyhow::Result<()> {
    let Some(router) = router else { return Ok(()) };
    let name = send(router, to, calibration)
        .await
        .context("the calibration was written, but not pushed")?;
    complain(&format!("{router} now uses it for {name}"));
    Ok(())
}
