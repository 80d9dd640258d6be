//! Watches for overload and names it in the log: when it begins, once a minute while it lasts, and when it ends. Also
//! logs the counts of failed requests.

use std::sync::Arc;
use std::time::Duration;

use policy::slo::overload::Change;
use proxy::Proxy;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{info, warn};

const LOOK: Duration = Duration::from_secs(1);
const REMIND: Duration = Duration::from_secs(60);

pub(super) async fn watch(proxy: Arc<Proxy>) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reminded = Instant::now();
    loop {
        ticks.tick().await;
        proxy.state.routing.flush_failures();
        let change = proxy.state.look_for_overload();
        match change {
            Some(Change::Ended(lasted)) => {
                proxy.state.overload_changed();
                info!(lasted_s = (lasted.0 / 1e3).round(), "overload has ended");
            }
            Some(Change::Began) => {
                proxy.state.overload_changed();
                report(&proxy);
                reminded = Instant::now();
            }
            None if reminded.elapsed() >= REMIND => {
                report(&proxy);
                reminded = Instant::now();
            }
            None => {}
        }
        if proxy.state.overload().is_none() {
            // Only requests bring about overload or fail.
            proxy.state.operations.idle.ends().await;
        }
    }
}

/// Logs overload with its counts, if there is any.
fn report(proxy: &Proxy) {
    let Some(overload) = proxy.state.overload() else {
        return;
    };
    warn!(
        wait_ms = overload.waits.wait_ms.round(),
        objective_ms = overload.waits.objective_ms,
        workers_over = overload.waits.workers_over,
        workers_ready = overload.waits.workers_ready,
        late = overload.late,
        within_objective = overload.within,
        refused = overload.refused,
        in_flight = proxy.in_flight(),
        "overloaded: the wait on most workers exceeds the objective, or requests are refused for lack of room; add \
         workers, or set admission.shed to keep the turns that can be within objective (docs/admission.md)"
    );
}
