//! Metrics of predicted cache contents, and of workers' cache events.

use std::time::{SystemTime, UNIX_EPOCH};

use policy::evidence::Event;

use super::labelled::{Counter, Gauge, Histogram, IntGauge, Labelled};
use super::registrar::{MetricError, Registrar};
use super::{Metrics, clamp};

/// Predicted and reported cached tokens, and cache events.
#[derive(Debug)]
pub(super) struct Caches {
    prompt_tokens: Labelled<Counter>,
    corrected: Labelled<Counter>,
    agreement: Labelled<Counter>,
    cached_error: Labelled<Histogram>,
    kv_events: Labelled<Counter>,
    kv_streams: Labelled<Counter>,
    kv_behind: Labelled<IntGauge>,
    kv_lag: Labelled<Gauge>,
}

impl Caches {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, MetricError> {
        Ok(Self {
            prompt_tokens: metrics.counter("tailroute_prompt_tokens_total")?,
            corrected: metrics.counter("tailroute_mirror_corrections_total")?,
            agreement: metrics.counter("tailroute_cached_tokens_agreement_total")?,
            cached_error: metrics.histogram("tailroute_cached_tokens_error")?,
            kv_events: metrics.counter("tailroute_kv_events_total")?,
            kv_streams: metrics.counter("tailroute_kv_stream_total")?,
            kv_behind: metrics.gauge("tailroute_kv_stream_behind_batches")?,
            kv_lag: metrics.real("tailroute_kv_stream_lag_seconds")?,
        })
    }
}

impl Metrics {
    /// Counts the prompt tokens that a worker reported.
    pub fn tokens(&self, worker: &str, prompt: u64, predicted_cached: u64, reported_cached: Option<u64>) {
        let add = |kind, tokens| {
            self.caches
                .prompt_tokens
                .with_label_values(&[worker, kind])
                .inc_by(tokens)
        };
        add("all", prompt);
        add("predicted_cached", predicted_cached);
        if let Some(cached) = reported_cached {
            add("reported_cached", cached);
        }
    }

    /// Compares the cached tokens that a worker reported with the prediction.
    pub fn agreement(&self, worker: &str, evidence: &str, predicted: u64, reported: u64, block: u64) {
        let error = predicted.abs_diff(reported);
        let agreement = match error {
            0 => "exact",
            _ if error <= block => "block",
            _ if error * 10 <= reported => "tenth",
            _ => "off",
        };
        self.caches
            .agreement
            .with_label_values(&[worker, evidence, agreement])
            .inc();
        self.caches
            .cached_error
            .with_label_values(&[worker, evidence])
            .observe(error as f64);
    }

    /// Counts a response that showed part of the believed cache contents to be missing.
    pub fn mirror_corrected(&self, worker: &str) {
        self.caches.corrected.with_label_values(&[worker]).inc();
    }

    /// Counts applied cache events of a worker.
    pub fn kv_events(&self, worker: &str, events: &[Event]) {
        let mut counts = [("stored", 0), ("copied", 0), ("removed", 0), ("cleared", 0)];
        for event in events {
            let kind = match event {
                Event::Stored(_) => 0,
                Event::Copied { .. } => 1,
                Event::Removed { .. } => 2,
                Event::Cleared => 3,
            };
            counts[kind].1 += 1;
        }
        for (kind, count) in counts.into_iter().filter(|&(_, count)| count > 0) {
            self.caches
                .kv_events
                .with_label_values(&[worker, kind])
                .inc_by(count);
        }
    }

    /// Sets the number of missing batches of a worker's cache events.
    pub fn kv_behind(&self, worker: &str, batches: u64) {
        self.caches
            .kv_behind
            .with_label_values(&[worker])
            .set(clamp(batches));
    }

    /// Sets the lag of a batch that was created at this time, in seconds since 1970, and applied now.
    pub fn kv_lag(&self, worker: &str, made_s: f64) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let lag = now.map_or(0.0, |now| now.as_secs_f64()) - made_s;
        // Clocks of two hosts may differ by more than the lag.
        self.caches.kv_lag.with_label_values(&[worker]).set(lag.max(0.0));
    }

    /// Counts an event of a worker's event stream itself.
    pub fn kv_stream(&self, worker: &str, what: &str) {
        self.caches.kv_streams.with_label_values(&[worker, what]).inc();
    }
}
