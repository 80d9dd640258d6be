//! Whether a worker may be given work: a judgement over several probes, never over one.
//!
//! One failed probe says little (a busy engine answers late), so it takes `unhealthy_after` failures in a row to take a
//! worker out and `healthy_after` successes in a row to bring it back. The very first success is enough to begin.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use super::Worker;
use super::probe;
use crate::app::App;

/// The state of one worker's health.
#[derive(Clone, Copy, Debug)]
pub struct Health {
    unhealthy_after: u32,
    healthy_after: u32,
    /// `None` until the first success.
    ready: Option<bool>,
    /// Observations in a row that contradict `ready`.
    streak: u32,
}

impl Health {
    /// Nothing known yet.
    #[must_use]
    pub fn new(unhealthy_after: NonZeroU32, healthy_after: NonZeroU32) -> Self {
        Self {
            unhealthy_after: unhealthy_after.get(),
            healthy_after: healthy_after.get(),
            ready: None,
            streak: 0,
        }
    }

    /// Whether the worker may be given work.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// Takes one observation; returns the new readiness if it changed.
    pub fn observe(&mut self, healthy: bool) -> Option<bool> {
        let (contradicts, needed) = match self.ready {
            None if healthy => (true, 1),
            None => (false, 1),
            Some(true) => (!healthy, self.unhealthy_after),
            Some(false) => (healthy, self.healthy_after),
        };
        self.streak = if contradicts { self.streak + 1 } else { 0 };
        if self.streak < needed {
            return None;
        }
        self.streak = 0;
        self.ready = Some(healthy);
        Some(healthy)
    }
}

/// Probes one worker for as long as the task lives.
pub async fn watch(app: Arc<App>, worker: Arc<Worker>) {
    let settings = &app.config.health;
    let mut ticks = tokio::time::interval(settings.interval.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut bytes_seen = 0;
    loop {
        ticks.tick().await;
        let outcome = probe::health(&app, &worker).await;
        let sending = std::mem::replace(&mut bytes_seen, worker.bytes_seen()) != worker.bytes_seen();
        let healthy = match outcome {
            Ok(()) => true,
            Err(error) if sending && error.is_timeout() => {
                debug!(
                    worker = worker.name(),
                    "probe timed out while answers were coming in: busy, not dead"
                );
                continue;
            }
            Err(error) => {
                debug!(worker = worker.name(), %error, "probe failed");
                false
            }
        };
        if healthy && !worker.is_ready() {
            // Ask before it is given work: what it serves and what it understands decide what it is sent.
            probe::introduce(&app, &worker).await;
        }
        note(&app, &worker, healthy);
    }
}

/// Records an observation and acts on the change that it makes, if any.
pub fn note(app: &App, worker: &Worker, healthy: bool) {
    match worker.observe_health(healthy) {
        Some(true) => info!(worker = worker.name(), "ready"),
        Some(false) => {
            warn!(
                worker = worker.name(),
                "not ready: it fails its probes or refuses connections"
            );
            // It may come back empty, and what it told us cannot be checked.
            app.knowledge.forget(worker.id);
        }
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(unhealthy_after: u32, healthy_after: u32) -> Health {
        Health::new(
            NonZeroU32::new(unhealthy_after).unwrap(),
            NonZeroU32::new(healthy_after).unwrap(),
        )
    }

    #[test]
    fn the_first_success_is_enough_to_begin() {
        let mut health = health(3, 3);
        assert!(!health.is_ready());
        assert_eq!(health.observe(false), None);
        assert_eq!(health.observe(true), Some(true));
        assert!(health.is_ready());
    }

    #[test]
    fn it_takes_failures_in_a_row_to_go_and_successes_in_a_row_to_return() {
        let mut health = health(3, 2);
        health.observe(true);
        let seen: Vec<_> = [
            false, false, true, false, false, false, false, true, false, true, true,
        ]
        .into_iter()
        .map(|healthy| health.observe(healthy))
        .collect();
        let mut expected = [None; 11];
        expected[5] = Some(false);
        expected[10] = Some(true);
        assert_eq!(seen, expected);
    }
}
