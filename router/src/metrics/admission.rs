//! Who came in, who did not, and who waited.

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::registrar::Registrar;
use super::{Metrics, clamp};

/// Admission. Its label `key` is a name of the configuration, `anonymous` without keys, or empty for who had none.
#[derive(Debug)]
pub(super) struct Admission {
    requests: IntCounterVec,
    wait_seconds: HistogramVec,
    reloads: IntCounterVec,
    no_tls: IntCounter,
    waiting: IntGauge,
    inside: IntGauge,
}

impl Admission {
    pub(super) fn new(metrics: &Registrar) -> Result<Self, prometheus::Error> {
        let reloads = metrics.counter(
            "tailroute_config_reloads_total",
            "Times that the configuration was read again: applied, or refused because something in it was wrong.",
            &["outcome"],
        )?;
        for outcome in ["applied", "refused"] {
            reloads.with_label_values(&[outcome]);
        }
        Ok(Self {
            reloads,
            requests: metrics.counter(
                "tailroute_admission_requests_total",
                "Turns let in, and requests turned away, by key: admitted, unauthorized, requests_limited, \
                 tokens_limited, queue_full, queue_timeout, shed.",
                &["key", "outcome"],
            )?,
            wait_seconds: metrics.seconds(
                "tailroute_admission_wait_seconds",
                "From a turn's last byte in to being let in.",
                &["key"],
            )?,
            no_tls: metrics.plain_counter(
                "tailroute_tls_failures_total",
                "Connections to the data port that did not come up as TLS should.",
            )?,
            waiting: metrics.count("tailroute_admission_waiting", "Requests that wait in the router.")?,
            inside: metrics.count(
                "tailroute_admission_inside",
                "Requests that were let in and have not ended, where their number is bounded.",
            )?,
        })
    }
}

impl Metrics {
    /// Admission turned a request away.
    pub fn admission(&self, key: &str, outcome: &str) {
        self.admission.requests.with_label_values(&[key, outcome]).inc();
    }

    /// A turn was let in.
    pub fn admitted(&self, key: &str, waited_s: f64) {
        self.admission(key, "admitted");
        self.admission
            .wait_seconds
            .with_label_values(&[key])
            .observe(waited_s);
    }

    /// The configuration was read again.
    pub fn reloaded(&self, applied: bool) {
        let outcome = if applied { "applied" } else { "refused" };
        self.admission.reloads.with_label_values(&[outcome]).inc();
    }

    /// A connection to the data port that was to be encrypted did not come up.
    pub fn no_tls(&self) {
        self.admission.no_tls.inc();
    }

    pub(super) fn set_admission(&self, (waiting, inside): (usize, usize)) {
        self.admission.waiting.set(clamp(waiting as u64));
        self.admission.inside.set(clamp(inside as u64));
    }
}
