//! Reads engines' own queue figures and prefill counters on a timer and reconciles them with the router's predictions.
//!
//! [`policy::estimate::PendingWork::reconcile`] corrects the predicted wait by the figures. While an engine is silent,
//! the effect of its last ones fades. An engine that publishes none is queried less often, and so is one without
//! requests while the router is idle ([`state::idle`]). A figure that no engine can have is ignored and logged once,
//! until a plausible one.

pub(super) mod exposition;

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use policy::cost::PrefillCost;
use policy::estimate::QueueFigure;
use policy::units::{Millis, Tokens};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, info, warn};

use super::{facts, learner};
use fleet::Worker;
use fleet::facts::FactSource;
use learning::feedback::Counted;
use state::State;
use state::control;

/// Number of intervals for which a figure is valid: one lost reading does not matter, an engine that stops responding
/// does.
const INTERVALS: f64 = 2.5;
/// Largest number of requests that an engine plausibly holds, waiting or running.
const MOST_REQUESTS: f64 = 100_000.0;
/// Largest number of tokens that the requests waiting at an engine plausibly have.
const MOST_WAITING_TOKENS: u64 = 1_000_000_000;
/// Number of consecutive readings with missing requests from which on the counts are reported as different.
const DRIFTS: u32 = 3;
/// Length of a response above which parsing moves to another thread, in bytes.
const LONG_ANSWER: usize = 64 << 10;
/// Number of intervals until an engine without figures is queried again.
const SELDOM: u32 = 60;
/// Largest number of intervals between two readings of an engine without requests while the router is idle. Odd, so
/// that every other reading coincides with a probe at the default intervals.
const IDLE: u32 = 15;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    waiting: u32,
    running: u32,
    waiting_tokens: Option<Tokens>,
    /// Prefill counters since the engine's start.
    prefills: Option<Counted>,
    /// Name and value of a figure that no engine can have, in which case the queue figures are ignored.
    absurd: Option<(&'static str, f64)>,
}

impl Counts {
    /// Returns the figure, with the predicted prefill of the waiting tokens if the engine reports them.
    fn figure(&self, cost: &PrefillCost) -> QueueFigure {
        let waiting = f64::from(self.waiting);
        QueueFigure {
            waiting: self.waiting,
            running: self.running,
            waiting_work: self.waiting_tokens.map(|tokens| {
                let line = cost.alpha_ms_per_token * tokens.as_f64() + cost.beta_ms * waiting;
                Millis(line.max(cost.floor_ms * waiting))
            }),
            ..QueueFigure::default()
        }
    }
}

/// Reads one worker's figures until the task is cancelled.
pub async fn watch(state: Arc<State>, worker: Arc<Worker>) {
    let Some(interval) = state.config.health.queue_interval else {
        return;
    };
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Whether the next reading is far off, unless a request comes.
    let mut waits = false;
    let mut known = false;
    let mut drift = Drift::default();
    let mut was_absurd = false;
    loop {
        let tick = tokio::select! {
            tick = ticks.tick() => tick,
            () = state.operations.idle.ends(), if waits => {
                ticks.reset();
                Instant::now()
            }
        };
        waits = false;
        if !worker.is_well() {
            state.routing.feedback.counters.lock().forget(worker.id);
            continue;
        }
        let asked = state.routing.clock.now();
        let (in_flight, others) = worker.with_load(|load| (load.in_flight, load.others));
        let page = EngineReading::fetch(&state, &worker).await;
        if let Some(page) = &page {
            page.note(&state, &worker);
        }
        let Some(counts) = page.and_then(|page| page.counts) else {
            debug!(worker = worker.name(), "no queue figures");
            if !known {
                ticks.reset_after(interval * SELDOM);
            }
            continue;
        };
        if !std::mem::replace(&mut known, true) {
            info!(worker = worker.name(), "using the worker's queue figures");
        }
        if let Some(prefills) = counts.prefills {
            learner::learn_counted(&state.routing, &worker, prefills);
        }
        if let Some((figure, value)) = counts.absurd {
            if !std::mem::replace(&mut was_absurd, true) {
                warn!(
                    worker = worker.name(),
                    figure,
                    value,
                    "the worker's queue figures are implausible and are ignored until they are not"
                );
            }
            continue;
        }
        was_absurd = false;
        let figure = QueueFigure {
            asked,
            good_for: Millis(interval.as_secs_f64() * 1e3 * INTERVALS),
            in_flight: in_flight.saturating_add(others),
            ..counts.figure(&worker.cost())
        };
        let found = worker.reconcile(state.routing.clock.now(), figure);
        if found.lost > 0 {
            debug!(
                worker = worker.name(),
                lost = found.lost,
                "some prefills counted here are unknown to the worker"
            );
        }
        let there = counts.waiting.saturating_add(counts.running);
        drift.note(&state, &worker, in_flight, there);
        if state.operations.idle.is_idle() && in_flight == 0 && others == 0 && there == 0 {
            ticks.reset_at(tick + interval * IDLE);
            waits = true;
        }
    }
}

/// Comparison of the router's count of a worker's requests with the worker's own. It corrects nothing, since the
/// router's count is higher while a request is in transit, and for clients that read slowly; it detects a leaked count.
#[derive(Debug, Default)]
struct Drift {
    before: u32,
    in_a_row: u32,
}

impl Drift {
    fn note(&mut self, state: &State, worker: &Worker, in_flight: u32, there: u32) {
        if self.looked(in_flight, there) {
            state.routing.metrics.in_flight_drift(worker.name());
        }
        if self.in_a_row == DRIFTS {
            warn!(
                worker = worker.name(),
                in_flight, there, "the worker reports fewer requests than are counted here"
            );
        }
    }

    /// Returns whether the router's count `here` has been higher than the worker's `there` for [`DRIFTS`] readings.
    fn looked(&mut self, here: u32, there: u32) -> bool {
        let all_along = here.min(std::mem::replace(&mut self.before, here));
        self.in_a_row = if all_along > there { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= DRIFTS
    }
}

/// The result of one reading of an engine.
#[derive(Debug, Default, PartialEq)]
struct EngineReading {
    counts: Option<Counts>,
    is_sglang: bool,
    /// Whether the engine sleeps, if it reports that.
    asleep: Option<bool>,
    /// Start of the engine's process, in seconds since 1970.
    started: Option<f64>,
}

impl EngineReading {
    async fn fetch(state: &State, worker: &Worker) -> Option<Self> {
        let page = control::call(&state.transport, worker, Method::GET, "/metrics", None)
            .await
            .ok()?;
        let rank = worker.spec.rank;
        let mut page = beside(page, move |page| Self::read(page, rank)).await?;
        if let Some(mut counts) = page.counts
            && page.is_sglang
            && let Ok(loads) = control::call(&state.transport, worker, Method::GET, "/v1/loads", None).await
        {
            page.counts = beside(loads, move |loads| {
                counts.take_loads(loads, rank);
                counts
            })
            .await;
        }
        Some(page)
    }

    fn read(page: &[u8], rank: Option<u32>) -> Self {
        let Ok(text) = std::str::from_utf8(page) else {
            return Self::default();
        };
        let (counts, is_sglang) = read(page, rank).unzip();
        let [started] = exposition::figures(text, ["process_start_time_seconds"], None);
        Self {
            counts,
            is_sglang: is_sglang.unwrap_or_default(),
            asleep: exposition::flag(text, "vllm:engine_sleep_state", ["sleep_state", "awake"], rank)
                .map(|awake| !awake),
            started,
        }
    }

    /// Records the facts of the page.
    fn note(&self, state: &State, worker: &Worker) {
        if let Some(started) = self.started
            && worker.facts.learn_start(state.routing.clock.now(), started)
        {
            state.note_restart(worker);
        }
        if let Some(asleep) = self.asleep {
            facts::note_sleep(state, worker, asleep, FactSource::Metrics);
        }
    }
}

/// Parses a response; a long one on a blocking thread.
async fn beside<T: Send + 'static>(
    answer: Bytes,
    read: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> Option<T> {
    if answer.len() <= LONG_ANSWER {
        return Some(read(&answer));
    }
    tokio::task::spawn_blocking(move || read(&answer)).await.ok()
}

/// Returns the figures of a metrics page, of all ranks or of one, and whether it is SGLang's. `None` if it has none.
fn read(page: &[u8], rank: Option<u32>) -> Option<(Counts, bool)> {
    let page = std::str::from_utf8(page).ok()?;
    let families = [
        ("vllm:num_requests_waiting", "vllm:num_requests_running", false),
        ("sglang:num_queue_reqs", "sglang:num_running_reqs", true),
    ];
    families
        .into_iter()
        .find_map(|(waiting_name, running_name, is_sglang)| {
            let [waiting, running] = exposition::figures(page, [waiting_name, running_name], rank);
            let (queued, runs) = (waiting?, running.unwrap_or(0.0));
            let counts = Counts {
                // These casts saturate.
                waiting: queued as u32,
                running: runs as u32,
                waiting_tokens: None,
                prefills: vllms_prefills(page, rank).filter(|_| !is_sglang),
                absurd: [(waiting_name, queued), (running_name, runs)]
                    .into_iter()
                    .find(|(_, value)| *value > MOST_REQUESTS),
            };
            Some((counts, is_sglang))
        })
}

/// Returns the prefill counters from vLLM's histograms of finished requests.
fn vllms_prefills(page: &str, rank: Option<u32>) -> Option<Counted> {
    let names = [
        "vllm:request_prefill_time_seconds_sum",
        "vllm:request_prefill_time_seconds_count",
        "vllm:request_prefill_kv_computed_tokens_sum",
    ];
    let [seconds, requests, tokens] = exposition::figures(page, names, rank);
    Some(Counted {
        took: Millis(seconds? * 1e3),
        tokens: tokens?,
        requests: Some(requests?),
    })
}

impl Counts {
    /// Adds the figures of SGLang's `/v1/loads`.
    fn take_loads(&mut self, answer: &[u8], rank: Option<u32>) {
        let Ok(answer) = serde_json::from_slice::<Value>(answer) else {
            return;
        };
        let sum = |field| sum(&answer, field, rank);
        let name = "num_waiting_uncached_tokens";
        let waiting = sum(name);
        if let Some(tokens) = waiting.filter(|tokens| *tokens > MOST_WAITING_TOKENS) {
            self.absurd = Some((name, tokens as f64));
        }
        self.waiting_tokens = waiting.map(Tokens);
        if let (Some(busy_us), Some(tokens)) =
            (sum("total_prefill_busy_us"), sum("total_prefill_uncached_tokens"))
        {
            self.prefills = Some(Counted {
                took: Millis(busy_us as f64 / 1e3),
                tokens: tokens as f64,
                requests: None,
            });
        }
    }
}

/// Returns a field of `/v1/loads`, of one rank or summed over the entries.
fn sum(value: &Value, field: &str, rank: Option<u32>) -> Option<u64> {
    let all = |parts: &mut dyn Iterator<Item = &Value>| {
        parts
            .filter_map(|part| sum(part, field, rank))
            .reduce(u64::saturating_add)
    };
    match value {
        Value::Object(fields) => match fields.get(field) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Page of vLLM 0.32 with `--data-parallel-size 2`, reduced to the request metrics.
    const VLLM: &str = include_str!("queues/vllm.prom");
    /// Page of SGLang 0.5.23 with `--dp-size 2 --tp-size 4 --enable-dp-attention`, metrics of all schedulers, and
    /// priorities.
    const SGLANG: &str = include_str!("queues/sglang.prom");

    fn counts(waiting: u32, running: u32) -> Counts {
        Counts {
            waiting,
            running,
            ..Counts::default()
        }
    }

    fn read_queue(page: &[u8], rank: Option<u32>) -> Option<(Counts, bool)> {
        let (found, is_sglang) = read(page, rank)?;
        Some((counts(found.waiting, found.running), is_sglang))
    }

    #[test]
    fn counts_differ_only_if_they_do_so_for_a_while() {
        let mut drift = Drift::default();
        let looks = [
            (3, 1),
            (3, 3),
            (3, 1),
            (1, 1),
            (5, 1),
            (5, 0),
            (5, 4),
            (5, 4),
            (4, 4),
        ];
        let seen: Vec<bool> = looks.map(|(here, there)| drift.looked(here, there)).to_vec();
        assert_eq!(
            seen,
            [false, false, false, false, false, false, false, true, false]
        );
    }

    #[test]
    fn vllm_and_sglang_say_it_under_their_own_names() {
        assert_eq!(read_queue(VLLM.as_bytes(), None), Some((counts(9, 12), false)));
        assert_eq!(read_queue(SGLANG.as_bytes(), None), Some((counts(5, 11), true)));
        assert_eq!(read_queue(b"process_cpu_seconds_total 1\n", None), None);
        assert_eq!(read_queue(b"\xff\xfe", None), None);
    }

    #[test]
    fn a_rank_goes_by_its_own_figures() {
        assert_eq!(read_queue(VLLM.as_bytes(), Some(0)), Some((counts(2, 8), false)));
        assert_eq!(read_queue(VLLM.as_bytes(), Some(1)), Some((counts(7, 4), false)));
        assert_eq!(read_queue(SGLANG.as_bytes(), Some(0)), Some((counts(5, 7), true)));
        assert_eq!(read_queue(SGLANG.as_bytes(), Some(1)), Some((counts(0, 4), true)));
        assert_eq!(read_queue(VLLM.as_bytes(), Some(2)), None);
        // A figure over all ranks is not that of any one rank.
        assert_eq!(read_queue(b"vllm:num_requests_waiting 9\n", Some(0)), None);
    }

    #[test]
    fn vllm_counts_what_its_prefills_took() {
        let prefills = |rank| read(VLLM.as_bytes(), rank).unwrap().0.prefills;
        let counted = |seconds: f64, tokens, requests| {
            Some(Counted {
                took: Millis(seconds * 1e3),
                tokens,
                requests: Some(requests),
            })
        };
        assert_eq!(prefills(Some(1)), counted(1.5, 2496.0, 5.0));
        assert_eq!(prefills(None), counted(10.25, 20_512.0, 17.0));
        assert_eq!(
            read(b"vllm:num_requests_waiting 9\n", None).unwrap().0.prefills,
            None
        );
        // Verbatim output of a vLLM 0.32 that had answered 13 requests.
        let said = "vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 0.0\n\
            vllm:request_prefill_time_seconds_bucket{engine=\"0\",le=\"+Inf\",model_name=\"tiny\"} 13.0\n\
            vllm:request_prefill_time_seconds_count{engine=\"0\",model_name=\"tiny\"} 13.0\n\
            vllm:request_prefill_time_seconds_sum{engine=\"0\",model_name=\"tiny\"} 12.435293920010736\n\
            vllm:request_prefill_time_seconds_created{engine=\"0\",model_name=\"tiny\"} 1.7952990595891955e+09\n\
            vllm:request_prefill_kv_computed_tokens_count{engine=\"0\",model_name=\"tiny\"} 13.0\n\
            vllm:request_prefill_kv_computed_tokens_sum{engine=\"0\",model_name=\"tiny\"} 10106.0\n";
        let found = read(said.as_bytes(), None).unwrap().0.prefills;
        assert_eq!(found, counted(12.435_293_920_010_736, 10_106.0, 13.0));
    }

    #[test]
    fn a_figure_that_no_engine_can_have_is_named() {
        let absurd = |page: &str| read(page.as_bytes(), None).unwrap().0.absurd;
        for value in ["4294967295", "1e15", "100001"] {
            for name in ["vllm:num_requests_waiting", "vllm:num_requests_running"] {
                let page = format!("vllm:num_requests_waiting 0\n{name} {value}\n");
                assert_eq!(absurd(&page).map(|(name, _)| name), Some(name), "{value}");
            }
        }
        assert_eq!(absurd("vllm:num_requests_waiting 100000\n"), None);
        let mut counts = Counts::default();
        counts.take_loads(br#"{"num_waiting_uncached_tokens":18446744073709551615}"#, None);
        assert_eq!(
            counts.absurd.map(|(name, _)| name),
            Some("num_waiting_uncached_tokens")
        );
    }

    /// Response of SGLang 0.5.23's `/v1/loads`.
    const LOADS: &str = r#"{"timestamp":"2026-11-21T20:15:00+00:00","version":"0.5.23","num_accelerators":4,"loads":[
        {"dp_rank":0,"num_waiting_uncached_tokens":70,"total_prefill_uncached_tokens":9000,"total_prefill_busy_us":812500},
        {"dp_rank":1,"num_waiting_uncached_tokens":5,"total_prefill_uncached_tokens":100,"total_prefill_busy_us":20000}]}"#;

    #[test]
    fn sglangs_loads_are_found_however_they_are_nested() {
        let take = |text: &str, rank| {
            let mut counts = Counts::default();
            counts.take_loads(text.as_bytes(), rank);
            counts
        };
        let tokens = |text, rank| take(text, rank).waiting_tokens;
        assert_eq!(tokens(LOADS, None), Some(Tokens(75)));
        assert_eq!(tokens(LOADS, Some(1)), Some(Tokens(5)));
        assert_eq!(tokens(LOADS, Some(2)), None);
        assert_eq!(
            tokens(r#"{"num_waiting_uncached_tokens":3}"#, None),
            Some(Tokens(3))
        );
        assert_eq!(tokens(r#"{"loads":[]}"#, None), None);
        assert_eq!(tokens("nonsense", None), None);
        let counted = |ms, tokens| {
            Some(Counted {
                took: Millis(ms),
                tokens,
                requests: None,
            })
        };
        assert_eq!(take(LOADS, None).prefills, counted(832.5, 9100.0));
        assert_eq!(take(LOADS, Some(1)).prefills, counted(20.0, 100.0));
        assert_eq!(take(r#"{"total_prefill_busy_us":1}"#, None).prefills, None);
    }
}
