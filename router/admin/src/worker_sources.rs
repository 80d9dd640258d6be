//! Sources of the router's figures about a worker. `tailroute doctor` judges a fleet by them.

use config::KvEvents;
use policy::fleet_record::{CapacitySource, CostSource};
use policy::units::Millis;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Admin;
use fleet::Worker;

/// Sources of a worker's figures.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(super) struct FigureSources {
    /// Data-parallel rank that the worker's requests are pinned to; absent if its address has only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    /// Source of `capacity_tokens`.
    capacity_source: CapacitySource,
    /// Source of `cost`.
    cost_source: CostSource,
    /// Number of responses that the cost was learned from.
    cost_answers: u64,
    /// Whether a response has reported cached tokens since the worker became ready.
    cached_tokens_reported: bool,
    /// Setting for following the worker's cache events.
    events_source: EventsSource,
    /// Number of store events received from the worker; absent while its events are not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_stored: Option<u64>,
    /// Time at which the worker last became ready, in milliseconds since 1970; absent if it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_since_unix_ms: Option<f64>,
    /// Requests that wait or run at the engine, by its last queue figure, beyond those that this router and its
    /// replicas have sent; absent without a recent figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    foreign_requests: Option<u32>,
}

/// Setting for following a worker's cache events.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum EventsSource {
    /// The publisher that the worker names is followed, if there is one.
    Auto,
    /// The configured publisher is followed.
    Configured,
    /// No events are followed: `kv_events = "off"`.
    Off,
}

impl FigureSources {
    pub(super) fn of(admin: &Admin, worker: &Worker) -> Self {
        let state = &admin.state;
        let answers = state.routing.feedback.costs.lock().state(worker.id);
        let cost_answers = answers.map_or(0, |costs| costs.answers);
        let ready_since = worker.ready_since();
        Self {
            rank: worker.spec.rank,
            capacity_source: state.routing.capacity_source(worker),
            cost_source: state.routing.cost_source(worker),
            cost_answers,
            cached_tokens_reported: worker.reports_cached(),
            events_source: match worker.spec.kv_events {
                KvEvents::Auto => EventsSource::Auto,
                KvEvents::At { .. } => EventsSource::Configured,
                KvEvents::Off => EventsSource::Off,
            },
            events_stored: state.routing.knowledge.stored(worker.id),
            ready_since_unix_ms: ready_since.map(|since| state.routing.clock.unix_ms(since).round()),
            foreign_requests: foreign_requests(worker, state.routing.clock.now()),
        }
    }
}

fn foreign_requests(worker: &Worker, now: Millis) -> Option<u32> {
    let (figure, _) = worker.with_load(|load| load.figure)?;
    if now >= figure.asked + figure.good_for {
        return None;
    }
    let there = figure.waiting.saturating_add(figure.running);
    Some(there.saturating_sub(figure.in_flight))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use fleet::overrides::Measured;
    use policy::cost::PrefillCost;
    use policy::units::Tokens;
    use serde_json::{Value, json};

    use super::*;

    fn admin(change: impl FnOnce(&mut Vec<config::Worker>)) -> Admin {
        let overrides = config::Overrides {
            workers: vec!["http://127.0.0.1:8".to_owned(), "http://127.0.0.1:9".to_owned()],
            ..Default::default()
        };
        let mut config = config::load_file(None, BTreeMap::new(), overrides).unwrap();
        change(&mut config.workers);
        let state = state::State::new(config).unwrap();
        let proxy = proxy::Proxy::new(Arc::clone(&state), None).unwrap();
        Admin {
            state,
            proxy,
            bus: None,
            history: crate::history::History::default(),
        }
    }

    fn shown(admin: &Admin, at: usize) -> Value {
        let worker = &admin.state.routing.fleet.present()[at];
        serde_json::to_value(FigureSources::of(admin, worker)).unwrap()
    }

    #[tokio::test]
    async fn a_worker_without_settings_begins_with_assumptions() {
        let expected = json!({
            "capacity_source": "assumed", "cost_source": "default", "cost_answers": 0,
            "cached_tokens_reported": false, "events_source": "auto",
        });
        assert_eq!(shown(&admin(|_| ()), 0), expected);
    }

    #[tokio::test]
    async fn settings_reports_and_calibrations_are_told_apart() {
        let admin = admin(|workers| {
            let one = &mut workers[1];
            (one.capacity_is_known, one.cost_is_known, one.kv_events) = (true, true, KvEvents::Off);
            one.rank = Some(3);
        });
        let expected = json!({
            "capacity_source": "configured", "cost_source": "configured", "cost_answers": 0,
            "cached_tokens_reported": false, "events_source": "off", "rank": 3,
        });
        assert_eq!(shown(&admin, 1), expected);
        let worker = &admin.state.routing.fleet.present()[0];
        admin
            .state
            .routing
            .knowledge
            .set_reported_capacity(worker.id, Tokens(4096), 16);
        assert_eq!(worker.cached(Some(0)), Some(0));
        let cost = PrefillCost::linear(0.2, 9.0);
        worker.calibrated(Measured {
            cost,
            at_unix_s: 1,
            r_squared: 1.0,
        });
        let shown = shown(&admin, 0);
        assert_eq!(
            (
                &shown["capacity_source"],
                &shown["cost_source"],
                &shown["cached_tokens_reported"]
            ),
            (&json!("reported"), &json!("calibrated"), &json!(true))
        );
    }
}
