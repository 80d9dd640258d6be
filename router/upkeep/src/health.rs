//! Probes the health of a worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tracing::{debug, warn};

use super::facts::introduce;
use fleet::Worker;
use fleet::health::Probe;
use proxy::Proxy;
use state::Routing;
use state::control::{self, CallError};

/// Records a failed probe. A worker that is not in use gets one warning, at the first; one in use, when it is taken
/// out.
fn failed(routing: &Routing, worker: &Worker, error: &CallError) {
    let is_first = worker.probe_failed(routing.clock.now(), error.to_string());
    if is_first && !worker.is_well() {
        warn!(worker = worker.name(), url = %worker.spec.url, %error, "worker does not answer its probe");
    } else {
        debug!(worker = worker.name(), %error, "probe failed");
    }
}

/// Probes one worker until the task is cancelled.
pub async fn watch(proxy: Arc<Proxy>, worker: Arc<Worker>) {
    let settings = &proxy.state.config.health;
    let mut ticks = tokio::time::interval(settings.interval.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut bytes_seen = 0;
    loop {
        ticks.tick().await;
        let outcome = control::probe(&proxy.state.transport, &worker, &settings.path).await;
        // Notices progress.
        let _ = proxy.state.routing.is_silent(&worker);
        let sending = std::mem::replace(&mut bytes_seen, worker.bytes_seen()) != worker.bytes_seen();
        let probe = match outcome {
            Ok(_) => {
                worker.probe_succeeded();
                Probe::Well
            }
            Err(error) if sending && error.is_timeout() => {
                debug!(
                    worker = worker.name(),
                    "probe timed out while answers were coming in: worker is busy"
                );
                Probe::Busy
            }
            Err(error) => {
                failed(&proxy.state.routing, &worker, &error);
                let is_busy =
                    worker.with_load(|load| load.in_flight > 0) && !proxy.state.routing.is_silent(&worker);
                if error.is_timeout() && is_busy {
                    Probe::Late
                } else {
                    Probe::Bad
                }
            }
        };
        if probe == Probe::Well && !worker.is_well() {
            introduce(&proxy.state.routing, &worker).await;
        }
        proxy.state.note_health(&worker, probe);
        if let Some(origin) = &worker.origin {
            origin.tidy();
        }
    }
}
