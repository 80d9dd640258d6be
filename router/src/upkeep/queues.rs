//! What engines say of their own queues: asked on a timer, held against the books.
//!
//! vLLM and SGLang publish how many requests wait and how many run in `/metrics`; SGLang's `/v1/loads` also counts the
//! uncached tokens that wait. A worker that is one rank of an endpoint goes by that rank's figures. The rule by which such a figure corrects the predicted wait is
//! [`policy::estimate::PendingWork::reconcile`]'s. An engine that publishes neither is asked less and less often.

mod exposition;

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use policy::estimate::QueueFigure;
use policy::units::{Millis, Tokens};
use serde_json::Value;
use tokio::time::MissedTickBehavior;
use tracing::{debug, info};

use crate::app::App;
use crate::control;
use crate::fleet::Worker;

/// Figures are believed for this many intervals: one that is lost does not matter, an engine that stops answering does.
const INTERVALS: f64 = 2.5;
/// An engine without figures is asked again after so many intervals.
const SELDOM: u32 = 60;

/// What an engine's page says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    waiting: u32,
    running: u32,
    waiting_tokens: Option<Tokens>,
}

/// Asks one worker for as long as the task lives.
pub async fn watch(app: Arc<App>, worker: Arc<Worker>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut skip = 0;
    let mut known = false;
    loop {
        ticks.tick().await;
        if !worker.is_ready() {
            continue;
        }
        if skip > 0 {
            skip -= 1;
            continue;
        }
        let asked = app.clock.now();
        let in_flight = worker.with_load(|load| load.in_flight);
        let Some(counts) = ask(&app, &worker).await else {
            debug!(worker = worker.name(), "it says nothing of its queue");
            skip = if known { 0 } else { SELDOM };
            continue;
        };
        if !std::mem::replace(&mut known, true) {
            info!(worker = worker.name(), "its own queue figures are followed");
        }
        let cost = worker.cost();
        let figure = QueueFigure {
            asked,
            good_for: Millis(interval.as_secs_f64() * 1e3 * INTERVALS),
            waiting: counts.waiting,
            running: counts.running,
            waiting_work: counts.waiting_tokens.map(|tokens| {
                Millis(cost.alpha_ms_per_token * tokens.as_f64() + cost.beta_ms * f64::from(counts.waiting))
            }),
            in_flight,
            mean_work: Millis::ZERO,
        };
        let found = worker.reconcile(app.clock.now(), figure);
        if found.lost > 0 {
            debug!(
                worker = worker.name(),
                lost = found.lost,
                "requests counted here are not there"
            );
        }
    }
}

async fn ask(app: &App, worker: &Worker) -> Option<Counts> {
    let page = control::call(app, worker, Method::GET, "/metrics", None)
        .await
        .ok()?;
    let rank = worker.spec.rank;
    let (mut counts, is_sglang) = read(&page, rank)?;
    if is_sglang && let Ok(loads) = control::call(app, worker, Method::GET, "/v1/loads", None).await {
        counts.waiting_tokens = waiting_tokens(&loads, rank);
    }
    Some(counts)
}

/// The counts of a metrics page, all ranks' or one's, and whether it is SGLang's. `None` if it has none.
fn read(page: &[u8], rank: Option<u32>) -> Option<(Counts, bool)> {
    let page = std::str::from_utf8(page).ok()?;
    let families = [
        ("vllm:num_requests_waiting", "vllm:num_requests_running", false),
        ("sglang:num_queue_reqs", "sglang:num_running_reqs", true),
    ];
    families.into_iter().find_map(|(waiting, running, is_sglang)| {
        let [waiting, running] = exposition::figures(page, [waiting, running], rank);
        let counts = Counts {
            waiting: waiting? as u32,
            running: running.unwrap_or(0.0) as u32,
            waiting_tokens: None,
        };
        Some((counts, is_sglang))
    })
}

/// `num_waiting_uncached_tokens` of `/v1/loads`, of one rank or summed over what the answer lists.
fn waiting_tokens(answer: &[u8], rank: Option<u32>) -> Option<Tokens> {
    fn sum(value: &Value, rank: Option<u32>) -> Option<u64> {
        let all = |parts: &mut dyn Iterator<Item = &Value>| {
            parts
                .filter_map(|part| sum(part, rank))
                .reduce(u64::saturating_add)
        };
        match value {
            Value::Object(fields) => match fields.get("num_waiting_uncached_tokens") {
                Some(count) => {
                    let of = fields.get("dp_rank").and_then(Value::as_u64);
                    let asked = rank.is_none_or(|rank| of == Some(u64::from(rank)));
                    count.as_u64().filter(|_| asked)
                }
                None => all(&mut fields.values()),
            },
            Value::Array(items) => all(&mut items.iter()),
            _ => None,
        }
    }
    sum(&serde_json::from_slice(answer).ok()?, rank).map(Tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As vLLM 0.32 writes it with `--data-parallel-size 2`: of the page only what is about requests.
    const VLLM: &str = include_str!("queues/vllm.prom");
    /// As SGLang 0.5.23 writes it with `--dp-size 2 --tp-size 4 --enable-dp-attention`, metrics of all schedulers, and
    /// priorities.
    const SGLANG: &str = include_str!("queues/sglang.prom");

    fn counts(waiting: u32, running: u32) -> Counts {
        Counts {
            waiting,
            running,
            waiting_tokens: None,
        }
    }

    #[test]
    fn vllm_and_sglang_say_it_under_their_own_names() {
        assert_eq!(read(VLLM.as_bytes(), None), Some((counts(9, 12), false)));
        assert_eq!(read(SGLANG.as_bytes(), None), Some((counts(5, 11), true)));
        assert_eq!(read(b"process_cpu_seconds_total 1\n", None), None);
        assert_eq!(read(b"\xff\xfe", None), None);
    }

    #[test]
    fn a_rank_goes_by_its_own_figures() {
        assert_eq!(read(VLLM.as_bytes(), Some(0)), Some((counts(2, 8), false)));
        assert_eq!(read(VLLM.as_bytes(), Some(1)), Some((counts(7, 4), false)));
        assert_eq!(read(SGLANG.as_bytes(), Some(0)), Some((counts(5, 7), true)));
        assert_eq!(read(SGLANG.as_bytes(), Some(1)), Some((counts(0, 4), true)));
        assert_eq!(read(VLLM.as_bytes(), Some(2)), None);
        // An engine that tells one figure of all its ranks tells nothing of any.
        assert_eq!(read(b"vllm:num_requests_waiting 9\n", Some(0)), None);
    }

    #[test]
    fn sglangs_loads_are_found_however_they_are_nested() {
        let tokens = |text: &str, rank| waiting_tokens(text.as_bytes(), rank);
        let both = r#"{"dp_rank_count":2,"loads":[{"dp_rank":0,"num_waiting_uncached_tokens":70},
            {"dp_rank":1,"num_waiting_uncached_tokens":5}],"aggregate":{"total_waiting_reqs":3}}"#;
        assert_eq!(tokens(both, None), Some(Tokens(75)));
        assert_eq!(tokens(both, Some(1)), Some(Tokens(5)));
        assert_eq!(tokens(both, Some(2)), None);
        assert_eq!(
            tokens(r#"{"num_waiting_uncached_tokens":3}"#, None),
            Some(Tokens(3))
        );
        assert_eq!(tokens(r#"{"loads":[]}"#, None), None);
        assert_eq!(tokens("nonsense", None), None);
    }
}
